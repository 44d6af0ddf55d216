# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The states of a run: the value of ``verl.run.state``, and the word that is shown and that ``run.json`` has."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class RunState(IntEnum):
    """A state that the process with the training loop records. The value is that of the metric; 4 is left to boards, for runs without a value."""

    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    STOPPED = 5
    INTERRUPTED = 6

    @property
    def word(self) -> str:
        """The word that is shown."""
        return WORDS[self]


WORDS: Final = {
    RunState.RUNNING: "running",
    RunState.FINISHED: "finished",
    RunState.FAILED: "failed",
    RunState.STOPPED: "stopped by guard",
    RunState.INTERRUPTED: "interrupted",
}
NO_END: Final = "no end seen"
"""Of a run that recorded no end and is not running any more: it was killed, or its last files are missing."""
CRASHED: Final = "crashed"
"""Of a run whose trainer recorded no end, that was ended by its driver, and of which a process died; and of one whose
rollouts ended by an exception, after which verl's fully asynchronous trainer finishes."""
ROLLOUTS_ENDED_BY: Final = "rollouts_ended_by"
"""Key of that exception in the event of the crash."""
ENDED: Final = "ended"
"""Of a run whose trainer recorded no end, and that was ended by its driver."""
ENDS: Final = frozenset({ENDED, CRASHED, *WORDS.values()} - {RunState.RUNNING.word})
"""The words of a run that has ended."""
DRAIN_SECONDS: Final = 1.0
"""The usual seconds from one drain to the next."""
DRAIN_INTERVAL: Final = "drain_interval"
"""Key of ``run.json`` where it is longer: how soon a span that has ended is written."""
