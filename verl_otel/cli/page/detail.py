# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Converts steps, trajectories and GPU time to compact plain data: times in microseconds from the start of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from verl_otel._internal import printable
from verl_otel.analysis.model import CAUSES, DeviceTime, Segment, Step, Trajectory
from verl_otel.cli.page import downsampling

_CAUSES: Final = tuple(CAUSES)


class Names:
    """A table of texts: each is stored once, and referenced by its index."""

    def __init__(self) -> None:
        """Start with the empty text at index 0."""
        self._known: dict[str, int] = {"": 0}

    def __call__(self, text: object) -> int:
        """Return the index of a text, made printable."""
        return self._known.setdefault(printable.show(text), len(self._known))

    def texts(self) -> list[str]:
        """Return the texts in the order of their indexes."""
        return list(self._known)


class Level(NamedTuple):
    """Limits on the detail of a step."""

    segments: int
    devices: int
    stragglers: int
    trajectories: int
    trajectory_segments: int
    activities: int


WHOLE: Final = Level(downsampling.SEGMENTS, 32, 50, 8, 80, downsampling.ACTIVITIES)
BRIEF: Final = Level(50, 0, 10, 2, 16, 0)
"""Used when little space is left: the waterfall, and the slowest trajectories without their calls."""


def of_step(step: Step, names: Names, labels: Mapping[int, str], level: Level = WHOLE) -> dict[str, Any]:
    """Return a step. ``labels``: trajectories by their trace id."""
    all_labels = {**labels, **{trajectory.trace_id: trajectory.label for trajectory in step.slowest}}
    marks = {"gen": step.gen_start_ns, "rollouts": step.rollouts_end_ns, "noticed": step.gen_end_ns}
    return {
        "whole": level is WHOLE,
        "path": of_path(step.path, step.start_ns, names, all_labels, level.segments),
        "parts": len(step.path),
        "marks": {key: _micros(at - step.start_ns) for key, at in marks.items() if at},
        "savings": [[names(saving.what), saving.trajectories, round(saving.seconds, 4)] for saving in step.savings],
        "stragglers": [
            [
                names(straggler.method),
                straggler.rank,
                names(straggler.instance),
                round(straggler.seconds, 4),
                names(straggler.evidence),
            ]
            for straggler in step.stragglers[: level.stragglers]
        ],
        "devices": of_devices(step.devices, names, level.devices) if level.devices else None,
        "slowest": [
            of_trajectory(trajectory, step.start_ns, names, level) for trajectory in step.slowest[: level.trajectories]
        ],
        "doubt": round(step.uncertainty, 4) if math.isfinite(step.uncertainty) else None,
    }


def of_path(
    path: Sequence[Segment], begin_ns: int, names: Names, labels: Mapping[int, str], limit: int
) -> list[list[Any]]:
    """Return a critical path: start, length, kind, name, phase, process, trajectory, turn, number of merged parts."""
    rows = []
    for part in downsampling.shorten(path, limit):
        segment = part.segment
        start = _micros(part.start_ns - begin_ns)
        trajectory = labels.get(segment.trace_id, f"{segment.trace_id:032x}"[:8]) if segment.trace_id else ""
        row = [
            start,
            _micros(part.end_ns - begin_ns) - start,
            *(names(text) for text in (segment.kind, segment.name, segment.phase, segment.instance, trajectory)),
            segment.turn,
            part.parts,
        ]
        rows.append(row if part.parts > 1 else row[:8] if segment.turn is not None else row[:7])
    return rows


def of_trajectory(trajectory: Trajectory, begin_ns: int, names: Names, level: Level = WHOLE) -> dict[str, Any]:
    """Return a trajectory with its turns and tools."""
    start = _micros(trajectory.start_ns - begin_ns)
    return {
        "label": names(trajectory.label),
        "step": trajectory.step,
        "at": [start, _micros(trajectory.end_ns - begin_ns) - start],
        "score": trajectory.score if trajectory.score is None else downsampling.finite(trajectory.score),
        "marks": [
            names(word)
            for word, on in (
                ("validation", trajectory.validate),
                ("failed", trajectory.failed),
                ("only its root was kept", not trajectory.whole),
                (trajectory.outcome, trajectory.outcome not in {"", "success"}),
            )
            if on
        ],
        "finish": names(trajectory.finish),
        "where": names(trajectory.instance),
        "turns": trajectory.turns,
        "tokens": [trajectory.prompt_tokens, trajectory.response_tokens],
        "parts": [
            [names(part.kind), names(part.name), round(part.seconds, 4), part.calls, part.turn]
            for part in trajectory.parts
        ],
        "path": of_path(trajectory.path, begin_ns, names, {}, level.trajectory_segments),
        "doing": [
            [
                _micros(activity.start_ns - begin_ns),
                _micros(activity.end_ns - activity.start_ns),
                names(activity.kind),
                names(activity.name),
                names(activity.instance),
                activity.turn,
                int(activity.failed),
            ]
            for activity in downsampling.longest(trajectory.activities, level.activities)
        ],
        "left": max(0, len(trajectory.activities) - level.activities),
    }


def of_devices(devices: Sequence[DeviceTime], names: Names, limit: int) -> dict[str, Any]:
    """Return GPU time by device, the least productive first if not all fit; the total includes all."""
    total = dict.fromkeys(_CAUSES, 0)
    for device in devices:
        for cause, value in device.nanoseconds.items():
            total[cause] = total.get(cause, 0) + value
    shown = devices if len(devices) <= limit else sorted(devices, key=_productive)[:limit]
    return {
        "count": len(devices),
        "total": [_micros(total[cause]) for cause in _CAUSES],
        "rows": [
            [names(device.device), *(_micros(device.nanoseconds.get(cause, 0)) for cause in _CAUSES)]
            for device in shown
        ],
    }


def _productive(device: DeviceTime) -> float:
    productive = sum(value for cause, value in device.nanoseconds.items() if CAUSES.get(cause) == "productive")
    return productive / max(1, sum(device.nanoseconds.values()))


def _micros(nanoseconds: int) -> int:
    return (nanoseconds + 500) // 1000
