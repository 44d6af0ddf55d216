# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Observable metrics of the session: open work, and the health and cost of the library itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from verl_otel._internal import error_boundary
from verl_otel.recording import collection, run_log, series
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

if TYPE_CHECKING:
    from verl_otel.exporting.base import Exporter

_seen_phases: set[str] = set()


def register(
    exporters: Callable[[], Iterable[Exporter]],
    overhead: Callable[[], dict[str, float]],
    budget_used: Callable[[], float | None],
) -> None:
    """Register every observable metric of the session.

    Args:
        exporters: Returns the exporters in use.
        overhead: Returns the CPU seconds of telemetry, by kind of work.
        budget_used: Returns the share of its CPU budget that telemetry takes, or None.
    """
    _seen_phases.clear()
    collection.observe(metric_names.PHASE_ACTIVE, _open_phases)
    collection.observe(metric_names.ROLLOUT_ACTIVE, _open_trajectories)
    collection.observe(metric_names.ROLLOUT_OLDEST_AGE, _oldest_trajectory)
    collection.observe(metric_names.OTEL_ERRORS, _errors)
    collection.observe(
        metric_names.OTEL_SPANS_DROPPED, lambda: _dropped("spans", exporters(), sum(RECORDER.dropped.values()))
    )
    collection.observe(
        metric_names.OTEL_BUDGET_USED, lambda: [((), used)] if (used := budget_used()) is not None else []
    )
    collection.observe(
        metric_names.OTEL_POINTS_DROPPED,
        lambda: _dropped("points", exporters(), series.dropped() + RECORDER.dropped_points),
    )
    collection.observe(metric_names.OTEL_LOGS_DROPPED, lambda: _dropped("logs", exporters(), run_log.count_dropped()))
    collection.observe(
        metric_names.OTEL_EXPORT_DURATION,
        lambda: [((("exporter", exporter.name),), exporter.seconds) for exporter in exporters()],
    )
    collection.observe(
        metric_names.OTEL_OVERHEAD, lambda: [(((attr.REASON, kind),), seconds) for kind, seconds in overhead().items()]
    )


def _errors() -> list[collection.Observation]:
    counts = error_boundary.counts()
    if RECORDER.misplaced:
        counts["exit where it was not current"] = RECORDER.misplaced
    return [(((attr.REASON, place),), count) for place, count in counts.items()]


def _open_phases() -> list[collection.Observation]:
    open_now: Counter[str] = Counter()
    for span in RECORDER.opened:
        if span.site.spec.verb == "phase":
            open_now[str(span.attributes.get(attr.PHASE, ""))] += 1
    _seen_phases.update(open_now)  # a phase that has ended is reported as 0
    return [(((attr.PHASE, phase),), open_now[phase]) for phase in sorted(_seen_phases)]


def _open_trajectories() -> list[collection.Observation]:
    trajectories = _trajectories()
    return [((), len(trajectories))] if trajectories or _had_trajectories() else []


def _oldest_trajectory() -> list[collection.Observation]:
    trajectories = _trajectories()
    if not trajectories and not _had_trajectories():
        return []
    now = clock()
    return [((), max((now - start for start in trajectories), default=0.0))]


def _trajectories() -> list[float]:
    return [span.start for span in RECORDER.opened if span.site.spec.verb == "trajectory"]


def _had_trajectories() -> bool:
    return series.exists(metric_names.ROLLOUT_TRAJECTORY_DURATION)


def _dropped(kind: str, exporters: Iterable[Exporter], in_memory: int) -> list[collection.Observation]:
    counts: Counter[str] = Counter({"memory": in_memory} if in_memory else {})
    for exporter in exporters:
        for reason, count in exporter.dropped(kind).items():
            # without addresses, which would make many series
            cause = reason.rpartition(" answers ")[2].partition(":")[0]
            counts[f"{exporter.name}: {cause}"[:64]] += count
    return [(((attr.REASON, reason),), count) for reason, count in counts.items()]


# -- the CPU time of telemetry, against its budget --

WINDOW_SECONDS: Final = 60.0
"""Seconds over which the cost is averaged: a burst at the end of a step is normal."""
SPAN_SECONDS: Final = 2e-6
"""CPU seconds of opening and ending a span in the user's thread. An estimate: reading a clock would cost more than the span."""
CALL_SECONDS: Final = 3e-7
"""CPU seconds of a timed call."""


class OverheadMeter:
    """Compares the CPU time of telemetry in this process with a budget, and logs once that it is exceeded.

    Args:
        budget: Share of one CPU core that telemetry may take; 0: any.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._samples: deque[tuple[float, float]] = deque()
        self.used: float | None = None
        """Cost of the last window as a share of the budget; None until there was one."""

    def update(self, now: float, seconds: float) -> None:
        """Add a measurement.

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
        if self.used > 1:
            error_boundary.warn_once(
                "budget",
                "verl-otel: telemetry took %.1f %% of a core in the last minute, more than VERL_OTEL_CPU_BUDGET (%.1f %%) "
                "(logged once; see verl.otel.budget.used and verl.otel.overhead)",
                100 * share,
                100 * self._budget,
            )

    def restart(self, now: float, seconds: float) -> None:
        """Discard earlier measurements; arguments as of `update`."""
        self._samples.clear()
        self._samples.append((now, seconds))


def estimate_recording(spans: int, calls: int) -> float:
    """Return the estimated CPU seconds of recording in the user's threads.

    Args:
        spans: Number of ended spans.
        calls: Number of timed calls and other histogram values.
    """
    return spans * SPAN_SECONDS + calls * CALL_SECONDS
