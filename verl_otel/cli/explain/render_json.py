# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders an explanation as JSON. The keys are stable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from verl_otel.analysis import step_lengths
from verl_otel.analysis.gpu import token_cost
from verl_otel.analysis.model import DeviceTime, Explanation, Segment, Step, Verdict
from verl_otel.analysis.verdicts import stragglers
from verl_otel.cli.explain import advice


def to_json(run: Explanation, steps: Sequence[Step]) -> dict[str, Any]:
    """Return an explanation of some steps as plain data. Durations in seconds; ids in hexadecimal; null for unknown values."""
    price = token_cost.sum_costs(run.steps, run.unused)
    document = {
        "run_id": run.run_id,
        "state": run.state,
        "folders": list(run.folders),
        "counts": {
            **run.counts._asdict(),
            "steps": len(run.steps),
            "held": sum(bool(step.verdicts) for step in run.steps),
            "unexplained": len(step_lengths.find_unexplained(run.steps)),
        },
        "steps": [_step(step) for step in steps],
        "run": {
            "gpu": _devices(run.devices),
            "cost": None if price is None else price._asdict(),
            "stragglers": [straggler._asdict() for straggler in stragglers.find_persistent(run.steps)],
            "start_up": [
                {
                    "attempt": start_up.attempt,
                    "seconds": start_up.seconds,
                    "parts": [
                        {"kind": part.kind, "name": part.name, "seconds": part.nanoseconds / 1e9}
                        for part in start_up.parts
                    ],
                }
                for start_up in run.start_ups
            ],
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
        "missing": [*run.completeness.missing, *run.problems],
        "orphans": run.completeness.orphans,
        "unknown": list(token_cost.UNKNOWN),
        "next": [f"verl-otel explain {run.run_id} --step {step.number}" for step in steps if step.number is not None],
        "clocks": [{"host": host, "ahead": ahead, "uncertainty": doubt} for host, ahead, doubt in run.offsets],
    }
    return {key: strict(value) for key, value in document.items()}


def strict(value: Any) -> Any:
    """Return plain data with null for numbers that JSON does not support."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _step(step: Step) -> dict[str, Any]:
    return {
        "number": step.number,
        "attempt": step.attempt,
        "repeated": step.repeated,
        "trace_id": f"{step.trace_id:032x}",
        "seconds": step.seconds,
        "failed": step.failed,
        "error": step.error,
        "verdicts": [_verdict(verdict) for verdict in step.verdicts],
        "path": [_segment(segment, step.start_ns) for segment in step.path],
        "path_summed": [{"kind": kind, "name": name, "seconds": length / 1e9} for kind, name, length in step.groups],
        "between": step.between,
        "between_summed": [
            {"kind": kind, "name": name, "seconds": length / 1e9} for kind, name, length in step.between_groups
        ],
        "phases": {phase.key: phase.seconds for phase in step.phases},
        "savings": [saving._asdict() for saving in step.savings],
        "gpu": _devices(step.devices),
        "stragglers": [straggler._asdict() for straggler in step.stragglers],
        "not_observable": list(step.blind_spots),
        "cost": None if step.cost is None else step.cost._asdict(),
        "uncertainty": step.uncertainty,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        **verdict._asdict(),
        "trace_id": f"{verdict.trace_id:032x}" if verdict.trace_id else None,
        "next": advice.ADVICE[advice.find_key(verdict)],
    }


def _segment(segment: Segment, start_ns: int) -> dict[str, Any]:
    return {
        "after": (segment.start_ns - start_ns) / 1e9,
        "seconds": segment.seconds,
        "kind": segment.kind,
        "name": segment.name,
        "phase": segment.phase,
        "process": segment.instance,
        "trace_id": f"{segment.trace_id:032x}" if segment.trace_id else None,
        "turn": segment.turn,
    }


def _devices(devices: Iterable[DeviceTime]) -> dict[str, dict[str, float]]:
    return {device.device: {cause: length / 1e9 for cause, length in device.nanoseconds.items()} for device in devices}
