# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON of an explanation: its keys do not change. Knows nothing of files or arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from verl_otel.analysis import cost, stragglers
from verl_otel.analysis.facts import DeviceTime, Explanation, Segment, Step, Verdict


def to_json(run: Explanation, steps: Sequence[Step]) -> dict[str, Any]:
    """Return an explanation of some steps as plain data. Seconds everywhere; ids in hexadecimal; null for what is not known."""
    price = cost.sum_up(run.steps, run.unused)
    found = {
        "run_id": run.run_id,
        "state": run.state,
        "folders": list(run.folders),
        "counts": {
            **run.counts._asdict(),
            "steps": len(run.steps),
            "held": sum(bool(step.verdicts) for step in run.steps),
        },
        "steps": [_step(step) for step in steps],
        "run": {
            "gpu": _devices(run.devices),
            "cost": None if price is None else price._asdict(),
            "stragglers": [each._asdict() for each in stragglers.persist(run.steps)],
        },
        "events": [
            {
                "kind": event.kind,
                "after": (event.time_ns - run.start_ns) / 1e9 if run.start_ns else None,
                "text": event.text,
                "detail": event.detail,
            }
            for event in run.events
        ],
        "missing": [*getattr(run.gaps, "missing", ()), *run.problems],
        "orphans": getattr(run.gaps, "orphans", 0),
        "unknown": list(cost.UNKNOWN),
        "clocks": [{"host": host, "ahead": ahead, "uncertainty": doubt} for host, ahead, doubt in run.offsets],
    }
    return {key: strict(value) for key, value in found.items()}


def strict(thing: Any) -> Any:
    """Return plain data without the numbers that JSON does not know."""
    if isinstance(thing, dict):
        return {str(key): strict(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [strict(value) for value in thing]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing


def _step(step: Step) -> dict[str, Any]:
    return {
        "number": step.number,
        "trace_id": f"{step.trace_id:032x}",
        "seconds": step.seconds,
        "failed": step.failed,
        "error": step.error,
        "verdicts": [_verdict(each) for each in step.verdicts],
        "path": [_segment(each, step.start_ns) for each in step.path],
        "path_summed": [{"kind": kind, "name": name, "seconds": length / 1e9} for kind, name, length in step.groups],
        "phases": {phase.key: phase.seconds for phase in step.phases},
        "savings": [each._asdict() for each in step.savings],
        "gpu": _devices(step.devices),
        "stragglers": [each._asdict() for each in step.stragglers],
        "not_observable": list(step.blind_spots),
        "cost": None if step.cost is None else step.cost._asdict(),
        "uncertainty": step.uncertainty,
    }


def _verdict(each: Verdict) -> dict[str, Any]:
    return {**each._asdict(), "trace_id": f"{each.trace_id:032x}" if each.trace_id else None}


def _segment(each: Segment, start_ns: int) -> dict[str, Any]:
    return {
        "after": (each.start_ns - start_ns) / 1e9,
        "seconds": each.seconds,
        "kind": each.kind,
        "name": each.name,
        "phase": each.phase,
        "process": each.instance,
        "trace_id": f"{each.trace_id:032x}" if each.trace_id else None,
        "turn": each.turn,
    }


def _devices(devices: Iterable[DeviceTime]) -> dict[str, dict[str, float]]:
    return {each.device: {cause: length / 1e9 for cause, length in each.nanoseconds.items()} for each in devices}
