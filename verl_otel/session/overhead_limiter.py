# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The overhead limiter: drops the most numerous and least important spans while telemetry exceeds its CPU budget.

It runs on the drain thread, off the hot path. It drops leaf spans (`verl_otel.recording.sampled_timers`) and spans of the user that have
no kept children and whose ids were not read; failed spans are kept. Metrics and the spans of steps and trajectories are never dropped.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from verl_otel._internal import error_boundary
from verl_otel.recording.state import RECORDER

WINDOW_SECONDS: Final = 60.0
"""Seconds over which the cost is averaged: a burst at the end of a step is normal."""
MAX_RESTORE_SECONDS: Final = 3600.0
"""Longest delay in seconds until leaves are kept again. The delay doubles whenever they exceed the budget again."""
REPEAT_SECONDS: Final = 5 * WINDOW_SECONDS
"""Seconds after which exceeding the budget again does not double the delay."""
SPAN_SECONDS: Final = 2e-6
"""CPU seconds of opening and ending a span in the user's thread. An estimate: reading a clock would cost more than the span."""
CALL_SECONDS: Final = 3e-7
"""CPU seconds of a timed call."""


class OverheadLimiter:
    """Compares the CPU time of telemetry in this process with a budget.

    Args:
        budget: Share of one CPU core that telemetry may take; 0: any.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._samples: deque[tuple[float, float]] = deque()
        self._restore_after = WINDOW_SECONDS
        self._changed_at = 0.0
        self._restored_at = float("-inf")
        self.used: float | None = None
        """Cost of the last window as a share of the budget; None until there was one."""

    def update(self, now: float, seconds: float) -> None:
        """Add a measurement and decide whether leaves are kept from now on.

        Args:
            now: Monotonic seconds.
            seconds: CPU seconds of telemetry since the session started.
        """
        if not self._budget:
            return
        samples = self._samples
        samples.append((now, seconds))
        while len(samples) > 2 and now - samples[1][0] >= WINDOW_SECONDS:  # noqa: PLR2004 - the window needs both ends
            samples.popleft()
        start, seconds_before = samples[0]
        if now - start < WINDOW_SECONDS:
            return
        share = (seconds - seconds_before) / (now - start)
        self.used = share / self._budget
        if RECORDER.sampling.leaf_spans and self.used > 1:
            self._drop_leaves(now, share)
            self.restart(now, seconds)
        elif not RECORDER.sampling.leaf_spans and self.used < 1 / 2 and now - self._changed_at >= self._restore_after:
            RECORDER.sampling.leaf_spans = True
            self._restored_at = now
            self.restart(now, seconds)

    def _drop_leaves(self, now: float, share: float) -> None:
        RECORDER.sampling.leaf_spans = False
        is_repeated = now - self._restored_at <= REPEAT_SECONDS
        self._restore_after = min(2 * self._restore_after, MAX_RESTORE_SECONDS) if is_repeated else WINDOW_SECONDS
        error_boundary.warn_once(
            "budget",
            "verl-otel: telemetry took %.1f %% of a core in the last minute, more than VERL_OTEL_CPU_BUDGET allows (%.1f %%): leaf spans are "
            "left out; steps, trajectories and metrics stay complete (logged once; see verl.otel.budget.used)",
            100 * share,
            100 * self._budget,
        )

    def restart(self, now: float, seconds: float) -> None:
        """Discard earlier measurements; arguments as of `update`."""
        self._changed_at = now
        self._samples.clear()
        self._samples.append((now, seconds))


def estimate_recording(spans: int, calls: int) -> float:
    """Return the estimated CPU seconds of recording in the user's threads.

    Args:
        spans: Number of ended spans.
        calls: Number of timed calls and other histogram values.
    """
    return spans * SPAN_SECONDS + calls * CALL_SECONDS
