# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One step, trajectory or GPU with everything that is known of it, as compact plain data: times in microseconds from the step's start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from verl_otel.analysis.facts import CAUSES, DeviceTime, Segment, Step, Trajectory
from verl_otel.cli import words
from verl_otel.cli.page import levels

_CAUSES: Final = tuple(CAUSES)


class Names:
    """Texts by number: each is written once, however often it is used."""

    def __init__(self) -> None:
        """Begin with the empty text, which is number 0."""
        self._known: dict[str, int] = {"": 0}

    def __call__(self, text: object) -> int:
        """Return the number of a text, fit to be shown."""
        return self._known.setdefault(words.show(text), len(self._known))

    def texts(self) -> list[str]:
        """Return the texts in the order of their numbers."""
        return list(self._known)


class Level(NamedTuple):
    """How much of a step is told."""

    segments: int
    devices: int
    stragglers: int
    trajectories: int
    trajectory_segments: int
    activities: int


WHOLE: Final = Level(levels.SEGMENTS, 32, 50, 8, 80, levels.ACTIVITIES)
BRIEF: Final = Level(50, 0, 10, 2, 16, 0)
"""Where no more room is left: the waterfall, and the slowest trajectories without their calls."""


def of_step(step: Step, names: Names, labels: Mapping[int, str], level: Level = WHOLE) -> dict[str, Any]:
    """Return a step. ``labels``: trajectories by their trace id."""
    known = {**labels, **{each.trace_id: each.label for each in step.slowest}}
    marks = {"gen": step.gen_start_ns, "rollouts": step.rollouts_end_ns, "noticed": step.gen_end_ns}
    return {
        "whole": level is WHOLE,
        "path": of_path(step.path, step.start_ns, names, known, level.segments),
        "parts": len(step.path),
        "marks": {key: _micros(at - step.start_ns) for key, at in marks.items() if at},
        "savings": [[names(each.what), each.trajectories, round(each.seconds, 4)] for each in step.savings],
        "stragglers": [
            [names(each.method), each.rank, names(each.instance), round(each.seconds, 4), names(each.evidence)]
            for each in step.stragglers[: level.stragglers]
        ],
        "devices": of_devices(step.devices, names, level.devices) if level.devices else None,
        "slowest": [of_trajectory(each, step.start_ns, names, level) for each in step.slowest[: level.trajectories]],
        "doubt": round(step.uncertainty, 4) if math.isfinite(step.uncertainty) else None,
    }


def of_path(
    path: Sequence[Segment], begin_ns: int, names: Names, labels: Mapping[int, str], limit: int
) -> list[list[Any]]:
    """Return a critical path: start, length, kind, name, phase, process, trajectory, turn, how many parts it stands for."""
    found = []
    for each in levels.shorten(path, limit):
        part = each.segment
        start = _micros(each.start_ns - begin_ns)
        trajectory = labels.get(part.trace_id, f"{part.trace_id:032x}"[:8]) if part.trace_id else ""
        row = [
            start,
            _micros(each.end_ns - begin_ns) - start,
            *(names(text) for text in (part.kind, part.name, part.phase, part.instance, trajectory)),
            part.turn,
            each.parts,
        ]
        found.append(row if each.parts > 1 else row[:8] if part.turn is not None else row[:7])
    return found


def of_trajectory(each: Trajectory, begin_ns: int, names: Names, level: Level = WHOLE) -> dict[str, Any]:
    """Return a trajectory with its turns and tools."""
    start = _micros(each.start_ns - begin_ns)
    return {
        "label": names(each.label),
        "step": each.step,
        "at": [start, _micros(each.end_ns - begin_ns) - start],
        "score": each.score if each.score is None else levels.finite(each.score),
        "marks": [
            names(word)
            for word, on in (
                ("validation", each.validate),
                ("failed", each.failed),
                ("only its root was kept", not each.whole),
                (each.outcome, each.outcome not in {"", "success"}),
            )
            if on
        ],
        "finish": names(each.finish),
        "where": names(each.instance),
        "turns": each.turns,
        "tokens": [each.prompt_tokens, each.response_tokens],
        "parts": [
            [names(part.kind), names(part.name), round(part.seconds, 4), part.calls, part.turn] for part in each.parts
        ],
        "path": of_path(each.path, begin_ns, names, {}, level.trajectory_segments),
        "doing": [
            [
                _micros(one.start_ns - begin_ns),
                _micros(one.end_ns - one.start_ns),
                names(one.kind),
                names(one.name),
                names(one.instance),
                one.turn,
                int(one.failed),
            ]
            for one in levels.longest(each.activities, level.activities)
        ],
        "left": max(0, len(each.activities) - level.activities),
    }


def of_devices(devices: Sequence[DeviceTime], names: Names, limit: int) -> dict[str, Any]:
    """Return what GPUs did, the idlest first where there are more than fit; the sum is that of all."""
    total = dict.fromkeys(_CAUSES, 0)
    for each in devices:
        for cause, value in each.nanoseconds.items():
            total[cause] = total.get(cause, 0) + value
    shown = devices if len(devices) <= limit else sorted(devices, key=_productive)[:limit]
    return {
        "count": len(devices),
        "total": [_micros(total[cause]) for cause in _CAUSES],
        "rows": [
            [names(each.device), *(_micros(each.nanoseconds.get(cause, 0)) for cause in _CAUSES)] for each in shown
        ],
    }


def _productive(each: DeviceTime) -> float:
    mine = sum(value for cause, value in each.nanoseconds.items() if CAUSES.get(cause) == "productive")
    return mine / max(1, sum(each.nanoseconds.values()))


def _micros(nanoseconds: int) -> int:
    return (nanoseconds + 500) // 1000
