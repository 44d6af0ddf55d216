# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The governor: telemetry that costs more than it may does without the spans that are many and say least.

It runs on the drain thread, off the hot path. What it takes away are leaves (`verl_otel.recording.leaves`) and spans that a user opened by
himself, inside which nothing was kept and whose ids nobody has asked for; failed ones stay. Metrics, and all that makes up the traces
of steps and trajectories, stay whatever they cost.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from verl_otel import _guard
from verl_otel.recording.sampling import Policy

WINDOW: Final = 60.0
"""Seconds over which the cost is judged: a burst at the end of a step is none."""
LONGEST: Final = 3600.0
"""Seconds that it takes at most until leaves are kept again; the time doubles whenever that has turned out to be too much."""
SOON: Final = 5 * WINDOW
"""Seconds after which leaves that are too much again are a new matter: the time until they come back begins anew."""
SPAN_SECONDS: Final = 2e-6
"""CPU time of opening and ending a span in the user's thread: an estimate, since clocks would cost more than what they measure."""
CALL_SECONDS: Final = 3e-7
"""That of a timed call."""


class Governor:
    """Watches the CPU time of telemetry in this process.

    Args:
        budget: Share of one CPU core that telemetry may take; 0: any.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._seen: deque[tuple[float, float]] = deque()
        self._patience = WINDOW
        self._since = 0.0
        self._restored_at = float("-inf")
        self.used: float | None = None
        """Cost of the last window as a share of the budget; None until there was one."""

    def judge(self, now: float, seconds: float) -> None:
        """Decide whether leaves are kept from now on.

        Args:
            now: Monotonic seconds.
            seconds: CPU time that telemetry has taken since the session began.
        """
        if not self._budget:
            return
        seen = self._seen
        seen.append((now, seconds))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW:  # noqa: PLR2004 - the window needs both ends
            seen.popleft()
        begin, before = seen[0]
        if now - begin < WINDOW:
            return
        share = (seconds - before) / (now - begin)
        self.used = share / self._budget
        if Policy.leaves and self.used > 1:
            self._take_away(now, share)
            self.begin(now, seconds)
        elif not Policy.leaves and self.used < 1 / 2 and now - self._since >= self._patience:
            Policy.leaves = True
            self._restored_at = now
            self.begin(now, seconds)

    def _take_away(self, now: float, share: float) -> None:
        Policy.leaves = False
        is_again = now - self._restored_at <= SOON
        self._patience = min(2 * self._patience, LONGEST) if is_again else WINDOW
        _guard.say(
            "budget",
            "verl-otel: telemetry took %.1f %% of a core in the last minute, more than VERL_OTEL_CPU_BUDGET allows (%.1f %%): leaf spans are "
            "left out; steps, trajectories and metrics stay complete (said once; see verl.otel.budget.used)",
            100 * share,
            100 * self._budget,
        )

    def begin(self, now: float, seconds: float) -> None:
        """Judge what is taken from now on only; arguments as in `judge`."""
        self._since = now
        self._seen.clear()
        self._seen.append((now, seconds))


def estimate_recording(spans: int, calls: int) -> float:
    """Return the CPU seconds that recording has taken in the user's threads, by its number of events.

    Args:
        spans: Spans that have ended.
        calls: Timed calls and other values of histograms.
    """
    return spans * SPAN_SECONDS + calls * CALL_SECONDS
