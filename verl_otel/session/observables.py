# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked at collection: open work, and the library's own health."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from verl_otel import _guard
from verl_otel.recording import recorder, registry
from verl_otel.recording.sampling import Policy
from verl_otel.recording.span import clock
from verl_otel.recording.store import Store
from verl_otel.semconv import attributes as attr

if TYPE_CHECKING:
    from verl_otel.exporting.exporter import Exporter

_seen_phases: set[str] = set()


def register(
    exporters: Callable[[], Iterable[Exporter]],
    overhead: Callable[[], dict[str, float]],
    budget_used: Callable[[], float | None],
) -> None:
    """Register every observable of the session.

    Args:
        exporters: Returns the exporters in use.
        overhead: Returns the CPU seconds of our threads, by kind of work.
        budget_used: Returns the share of its CPU budget that telemetry takes, or None.
    """
    _seen_phases.clear()
    recorder.observe("verl.phase.active", _open_phases)
    recorder.observe("verl.rollout.active", _open_trajectories)
    recorder.observe("verl.rollout.oldest.age", _oldest_trajectory)
    recorder.observe("verl.otel.errors", _errors)
    recorder.observe(
        "verl.otel.spans.dropped", lambda: [*_dropped("spans", exporters(), sum(Store.dropped.values())), *_left_out()]
    )
    recorder.observe("verl.otel.budget.used", lambda: [((), used)] if (used := budget_used()) is not None else [])
    recorder.observe(
        "verl.otel.points.dropped", lambda: _dropped("points", exporters(), registry.dropped() + Store.dropped_points)
    )
    recorder.observe(
        "verl.otel.export.duration", lambda: [((("exporter", each.name),), each.seconds) for each in exporters()]
    )
    recorder.observe(
        "verl.otel.overhead", lambda: [(((attr.REASON, kind),), seconds) for kind, seconds in overhead().items()]
    )


def _errors() -> list[recorder.Observation]:
    found = _guard.counts()
    if Store.misplaced:
        found["exit where it was not current"] = Store.misplaced
    return [(((attr.REASON, place),), count) for place, count in found.items()]


def _open_phases() -> list[recorder.Observation]:
    open_now: Counter[str] = Counter()
    for span in Store.opened:
        if span.site.spec.verb == "phase":
            open_now[str(span.attributes.get(attr.PHASE, ""))] += 1
    _seen_phases.update(open_now)  # a phase that ended goes to 0 and does not vanish
    return [(((attr.PHASE, phase),), open_now[phase]) for phase in sorted(_seen_phases)]


def _open_trajectories() -> list[recorder.Observation]:
    trajectories = _trajectories()
    return [((), len(trajectories))] if trajectories or _had_trajectories() else []


def _oldest_trajectory() -> list[recorder.Observation]:
    trajectories = _trajectories()
    if not trajectories and not _had_trajectories():
        return []
    now = clock()
    return [((), max((now - start for start in trajectories), default=0.0))]


def _trajectories() -> list[float]:
    return [span.start for span in Store.opened if span.site.spec.verb == "trajectory"]


def _had_trajectories() -> bool:
    return registry.exists("verl.rollout.trajectory.duration")


def _left_out() -> list[recorder.Observation]:
    return [(((attr.REASON, "over budget"),), Policy.left_out)] if Policy.left_out else []


def _dropped(what: str, exporters: Iterable[Exporter], in_memory: int) -> list[recorder.Observation]:
    found: Counter[str] = Counter({"memory": in_memory} if in_memory else {})
    for exporter in exporters:
        for reason, count in exporter.dropped(what).items():
            cause = reason.rpartition(" answers ")[2].partition(":")[0]  # a label without addresses
            found[f"{exporter.name}: {cause}"[:64]] += count
    return [(((attr.REASON, reason),), count) for reason, count in found.items()]
