# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a run, as its processes with a training loop write it into ``run.json`` (`verl_otel.session.run_status`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from verl_otel._internal import safe_files
from verl_otel.analysis.io import run_files
from verl_otel.analysis.model import Event
from verl_otel.semconv.run_state import CRASHED, ENDED, NO_END, ROLLOUTS_ENDED_BY, WORDS, RunState

MAX_NUMBER: Final = 10**15
MAX_SECONDS: Final = 1e10
MAX_TEXT: Final = 1000
MAX_LISTED: Final = 100
"""Records that are read; the writer keeps fewer."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_Number = Annotated[int, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]

RUNNING_SECONDS: Final = 15.0
"""A run whose files were written less than this long ago is still running."""


class Training(msgspec.Struct, frozen=True):
    """What one process with a training loop has written."""

    process: _Text
    """``<role>-<host>-<pid>``, as in the names of its files."""
    began: _Seconds
    """When telemetry began in it, in seconds since 1970."""
    state: _Text
    """One of `run_state.WORDS`."""
    time: _Seconds
    """When its last step ended, or its state changed, in seconds since 1970."""
    attempt: _Count = 0
    """Of the run; 0: unknown."""
    steps: _Count = 0
    """Steps that have ended in it, failed ones included."""
    step: _Number | None = None
    """Number of the last one."""
    step_seconds: _Seconds | None = None
    checkpoint: _Number | None = None
    """Step of the last checkpoint that it saved; None: it saved none."""
    total_steps: _Count | None = None
    """Steps that are planned, if they are known."""
    reward: float | None = None
    """Mean reward that was reported last."""
    verdict: _Text = ""
    """What held a step last, as the log of the training has it; empty: nothing yet."""
    error: _Text = ""
    """Type of the exception with which it ended; empty: none, or unknown."""
    error_line: _Text = ""
    """``FILE:LINE in FUNCTION`` of the user's own code that it came through; empty: unknown."""


class RunStatus(NamedTuple):
    """What all processes of a run have written."""

    trainings: tuple[Training, ...]
    earlier_steps: int = 0
    """Steps of processes whose records are not kept."""

    @property
    def steps(self) -> int:
        """Number of steps of all attempts, failed ones included."""
        return self.earlier_steps + sum(training.steps for training in self.trainings)

    @property
    def newest(self) -> Training:
        """The record that was written last."""
        return max(self.trainings, key=lambda training: training.time)

    @property
    def last(self) -> Training | None:
        """The newest record with a step; None: no step has ended."""
        return max((each for each in self.trainings if each.step is not None), key=lambda each: each.time, default=None)


def read(manifest: Mapping[str, Any]) -> RunStatus | None:
    """Return the status in a manifest; None if it has none that can be read. Records that are damaged are passed over."""
    status = manifest.get("status")
    listed = status.get("trainings") if isinstance(status, dict) else None
    if not isinstance(status, dict) or not isinstance(listed, list):
        return None
    trainings = tuple(filter(None, map(_read_training, listed[-MAX_LISTED:])))
    return RunStatus(trainings, _read_count(status.get("earlier_steps"))) if trainings else None


def _read_training(record: object) -> Training | None:
    try:
        training = msgspec.convert(record, Training)
    except (msgspec.MsgspecError, *safe_files.READ_ERRORS):
        return None
    return training if training.state in WORDS.values() else None


def _read_count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MAX_NUMBER else 0


def find_state(
    manifest: Mapping[str, Any], recorded: float | None, run_events: Iterable[Event], is_active: Callable[[], bool]
) -> str:
    """Return the word for the state of a run.

    Args:
        manifest: Its manifest. The status of an attempt before the last one does not count.
        recorded: Last value of ``verl.run.state`` in the files of a run whose manifest has no status; None: unknown.
        run_events: The events of the run. They are read only if they matter, as is what follows.
        is_active: Returns whether one of its processes lives, as far as the reader can see. A process that was killed recorded no end.
    """
    attempts, status = run_files.list_attempts(manifest), read(manifest)
    if status is not None:
        newest = status.newest
        word = newest.state if newest.attempt == 0 or newest.attempt >= len(attempts) else NO_END
    else:
        word = next((word for state, word in WORDS.items() if state == recorded), NO_END)
    if word == RunState.FINISHED.word and attempts and _has_lost_rollouts(attempts[-1], run_events):
        return CRASHED
    if word not in (NO_END, RunState.RUNNING.word):
        return word
    if attempts and "ended" in attempts[-1]:
        return _name_end(attempts[-1], run_events)
    return RunState.RUNNING.word if is_active() else NO_END


def _has_lost_rollouts(attempt: Mapping[str, Any], run_events: Iterable[Event]) -> bool:
    """Return whether the rollouts of an attempt ended by an exception that its trainer does not know of."""
    return any(ROLLOUTS_ENDED_BY in event.detail for event in _list_crashes(attempt, run_events))


def _name_end(attempt: Mapping[str, Any], run_events: Iterable[Event]) -> str:
    """Return the state of a run whose driver has ended and whose trainer recorded no end."""
    return CRASHED if any(_list_crashes(attempt, run_events)) else ENDED


def _list_crashes(attempt: Mapping[str, Any], run_events: Iterable[Event]) -> Iterator[Event]:
    """Yield the crashes since the start of an attempt."""
    started = attempt.get("started")
    begin_ns = started * 1e9 if isinstance(started, (int, float)) else 0.0
    return (event for event in run_events if event.kind == "crash" and event.time_ns >= begin_ns)
