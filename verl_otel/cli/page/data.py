# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Converts an explanation to the compact data of a page: columns for all steps, full detail for as many as fit."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from verl_otel._internal import printable
from verl_otel.analysis import scalars, step_lengths
from verl_otel.analysis.gpu import accounting
from verl_otel.analysis.model import Activity, DeviceTime, Explanation, Segment, Series, Step, Trajectory
from verl_otel.analysis.verdicts.judge import sum_savings
from verl_otel.cli import formatting, headlines
from verl_otel.semconv.kinds import GPU_CAUSES
from verl_otel.semconv.metric_names import TRAINING_STEP

BUDGET: Final = 4_700_000
"""Maximum bytes of all data; step details take what remains."""
DETAILS: Final = 2_400_000
"""Maximum bytes of step details."""
KEYS: Final = 12
"""Number of phases and of path groups with their own column; the others share one."""
VALIDATIONS: Final = 1_000
TRAJECTORIES: Final = 50
DEVICES: Final = 128


def build(run: Explanation) -> dict[str, Any]:
    """Return the data of a page, of a bounded size."""
    names = Names()
    chosen = choose_rows(run.steps)
    steps = [run.steps[index] for index in chosen]
    labels = {trajectory.trace_id: trajectory.label for trajectory in run.slowest}
    data = {
        "id": printable.show(run.run_id),
        "start": run.start_ns // 1_000_000,
        "end": run.end_ns // 1_000_000,
        "all": len(run.steps),
        "kept": len(chosen),
        "gpu": run.has_gpu,
        "steps": {**_columns(steps, run.start_ns), **_marks(run.steps, steps)},
        "causes": [[name, cause.state] for name, cause in GPU_CAUSES.items()],
        "verdicts": of_verdicts(steps, run.steps),
        "stragglers": of_stragglers(run.steps),
        "blind": of_blind_spots(run.steps),
        "cost": _cost(run),
        "validations": [
            [number, (start - run.start_ns) // 1_000_000, (end - start) // 1_000_000]
            for number, start, end in run.validations[:VALIDATIONS]
        ],
        "devices": of_devices(run.devices, names, DEVICES),
        "slowest": [of_trajectory(trajectory, trajectory.start_ns, names) for trajectory in run.slowest[:TRAJECTORIES]],
        "events": of_events(run),
        "unfinished": of_unfinished(run),
        "scalars": _scalars(run.series, run.start_ns),
        "facts": [
            [printable.show(key), printable.show(value)] for key, value in run.manifest.items() if key != "attempts"
        ],
    }
    room = min(DETAILS, BUDGET - len(encode(data)))
    data["details"] = _details(steps, names, labels, room)
    data["names"] = names.texts()
    return data


def encode(data: Any) -> str:
    """Return JSON that is safe in a script element: ASCII, without characters that could end the element or start a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _columns(steps: Sequence[Step], begin_ns: int) -> dict[str, Any]:
    """Return one list per column. Times are integers in units of ``1 / unit`` seconds: finer in runs of few steps."""
    unit = 1000 if len(steps) > 2000 else 1_000_000  # noqa: PLR2004 - above that, microseconds take too much room

    def units(seconds: float) -> int:
        return round(seconds * unit)

    gpu_columns = [gpu_seconds(step) for step in steps]
    return {
        "unit": unit,
        "number": [step.number for step in steps],
        "start": [(step.start_ns - begin_ns) // 1_000_000 for step in steps],
        "seconds": [units(step.seconds) for step in steps],
        "failed": [[index, end] for index, step in enumerate(steps) if (end := formatting.end_of(step))],
        "phases": _stack([phase_seconds(step) for step in steps], units),
        "groups": _stack([{(kind, name): nanos / 1e9 for kind, name, nanos in step.groups} for step in steps], units),
        "gpu": _stack(
            gpu_columns,
            units,
            keys=[cause for cause in GPU_CAUSES if any(cause in column for column in gpu_columns)],
        ),
        "saved": [units(sum_savings(step)) for step in steps],
        "members": [step.members or len(step.trajectories) for step in steps],
        "quantiles": [[units(value) for value in step.quantiles] for step in steps],
        "gpu_seconds": [round(step.cost.gpu_seconds, 2) if step.cost else None for step in steps],
        "trained": [step.cost.trained_tokens if step.cost else None for step in steps],
    }


def _marks(steps: Sequence[Step], rows: Sequence[Step]) -> dict[str, list[int]]:
    """Return the rows of steps that contain start-up, and of slow steps without a verdict."""
    starting = {step.trace_id for step in step_lengths.find_start_up(steps)}
    unexplained = {step.trace_id for step in step_lengths.find_unexplained(steps)}
    return {
        "start_up": [index for index, step in enumerate(rows) if step.trace_id in starting],
        "unexplained": [index for index, step in enumerate(rows) if step.trace_id in unexplained],
    }


def phase_seconds(step: Step) -> dict[str, float]:
    """Return the seconds of a step in each phase, and in none."""
    phases = {phase.key: phase.seconds for phase in step.phases}
    return {**phases, "no phase": step.no_phase} if step.no_phase else phases


def gpu_seconds(step: Step) -> dict[str, float]:
    """Return the GPU seconds of a step by cause."""
    total: Counter[str] = Counter()
    for device in step.devices:
        total.update({cause: device.gpus * nanos for cause, nanos in device.nanoseconds.items()})
    return {cause: nanos / 1e9 for cause, nanos in total.items() if nanos}


def _stack(
    rows: Sequence[dict[Any, float]], units: Callable[[float], int], keys: Iterable[Any] | None = None
) -> dict[str, Any]:
    """Return stacked columns; the smallest keys share the last column."""
    sums: Counter[Any] = Counter()
    for row in rows:
        sums.update(row)
    first = {key: place for place, key in reversed(list(enumerate(key for row in rows[:50] for key in row)))}
    largest = [key for key, _ in sums.most_common(KEYS)] if keys is None else list(keys)
    kept = largest if keys is not None else sorted(largest, key=lambda key: (key == "no phase", first.get(key, 1e9)))
    own = set(kept)
    rest = [sum(value for key, value in row.items() if key not in own) for row in rows]
    shown = [printable.show(key) if isinstance(key, str) else [printable.show(part) for part in key] for key in kept]
    columns = [[units(row.get(key, 0.0)) for row in rows] for key in kept]
    if any(rest):
        shown.append("other" if not kept or isinstance(kept[0], str) else ["other", ""])
        columns.append([units(value) for value in rest])
    return {"keys": shown, "columns": columns}


def _cost(run: Explanation) -> dict[str, Any] | None:
    """Return the token cost of the whole run; None if unknown."""
    price = accounting.sum_costs(run.steps, run.unused)
    if price is None:
        return None
    wasted = sorted(price.wasted_tokens.items(), key=lambda item: -item[1])
    return {
        "gpu_seconds": finite(price.gpu_seconds),
        "trained": price.trained_tokens,
        "generated": price.generated_tokens,
        "wasted": [[printable.show(reason), count] for reason, count in wasted if count],
    }


def _scalars(series: Sequence[Series], begin_ns: int) -> dict[str, Any]:
    """Return the series; equal time axes are shared. A series is over steps where the steps of its times are known."""
    steps = scalars.find_steps(series)
    shown = [scalar for scalar in series if scalar.values and scalar.name != TRAINING_STEP][:1000]
    limit = max(40, min(250, POINTS // max(1, len(shown))))
    axes: dict[tuple[Any, ...], int] = {}
    lines = []
    for scalar in shown:
        is_over_steps, xs = scalars.find_axis(scalar, steps, begin_ns)
        at, values = thin(xs, scalar.values, limit)
        axis = axes.setdefault((is_over_steps, *(finite(x) or 0 for x in at)), len(axes))
        labels = ", ".join(f"{key}={value}" for key, value in scalar.labels)
        odd = sum(not math.isfinite(value) for value in scalar.values)
        lines.append([printable.show(scalar.name), printable.show(labels), axis, odd, len(scalar.values), *values])
    return {"axes": [list(axis) for axis in axes], "lines": lines}


def _details(steps: Sequence[Step], names: Names, labels: dict[int, str], room: int) -> dict[str, Any]:
    """Return as many steps as fit: the most relevant ones with full detail, as many again in brief."""
    details: dict[str, Any] = {}
    level, half = WHOLE, room / 2
    for index in most_wanted(steps):
        step_data = of_step(steps[index], names, labels, level)
        size = len(encode(step_data)) + 12
        if level is WHOLE and room - size < half and len(details) + 1 < len(steps):
            level = BRIEF
        if room < size:
            break
        room -= size
        details[str(index)] = step_data
    return details


# -- A long run is reduced to what fits into a page. Sums are preserved: short parts are merged --

SEGMENTS: Final = 300
"""Maximum parts of one critical path."""
ACTIVITIES: Final = 120
"""Maximum activities of one trajectory."""
ROWS: Final = 12_000
"""Maximum steps in the overview."""
POINTS: Final = 30_000
"""Maximum points of all scalars together."""


class PathPart(NamedTuple):
    """A part of a shortened path: its longest segment, its start and end, and the number of merged segments."""

    segment: Segment
    start_ns: int
    end_ns: int
    parts: int


def shorten(path: Sequence[Segment], limit: int = SEGMENTS) -> list[PathPart]:
    """Return a path of at most ``limit`` parts with the same ends and no gap: short neighbours become one part.

    The longest segments stay unchanged; adjacent others are merged under the name of the longest of them.
    """
    if len(path) <= limit:
        return [PathPart(segment, segment.start_ns, segment.end_ns, 1) for segment in path]
    by_length = sorted(range(len(path)), key=lambda index: path[index].start_ns - path[index].end_ns)
    whole = set(by_length[: (limit - 1) // 2])  # between n of them are at most n + 1 groups of others
    kept: list[PathPart] = []
    neighbours: list[Segment] = []
    for index, segment in enumerate(path):
        if index in whole:
            kept += _together(neighbours)
            kept.append(PathPart(segment, segment.start_ns, segment.end_ns, 1))
            neighbours = []
        else:
            neighbours.append(segment)
    return kept + _together(neighbours)


def _together(neighbours: Sequence[Segment]) -> list[PathPart]:
    if not neighbours:
        return []
    choose_longest = max(neighbours, key=lambda segment: segment.end_ns - segment.start_ns)
    return [PathPart(choose_longest, neighbours[0].start_ns, neighbours[-1].end_ns, len(neighbours))]


def choose_longest(activities: Sequence[Activity], limit: int) -> list[Activity]:
    """Return the longest activities in their order; they overlap, so they cannot be merged."""
    if len(activities) <= limit:
        return list(activities)
    chosen = sorted(range(len(activities)), key=lambda index: activities[index].start_ns - activities[index].end_ns)
    return [activities[index] for index in sorted(chosen[:limit])]


def choose_rows(steps: Sequence[Step], limit: int = ROWS) -> list[int]:
    """Return the indexes of the steps with their own row: all, or the slowest of adjacent ones."""
    width = max(1, math.ceil(len(steps) / limit))
    starts = range(0, len(steps), width)
    return [max(range(at, min(at + width, len(steps))), key=lambda index: steps[index].seconds) for at in starts]


def most_wanted(steps: Sequence[Step]) -> Iterable[int]:
    """Yield the steps in the order of relevance: failed, delayed and slow ones, interleaved with evenly spread ones."""
    order = sorted(
        range(len(steps)),
        key=lambda index: (
            not steps[index].path,  # without a path there is little detail
            not steps[index].failed,
            -max((verdict.saved for verdict in steps[index].verdicts), default=0.0),
            -steps[index].seconds,
        ),
    )
    spread = sorted(range(len(steps)), key=lambda index: (not steps[index].path, _bits(index)))
    seen: set[int] = set()
    # two of the worst, then one evenly spread step: slow steps are compared with healthy ones
    for place in range(len(steps)):
        for index in (*order[2 * place : 2 * place + 2], spread[place]):
            if index not in seen:
                seen.add(index)
                yield index


def _bits(index: int) -> int:
    """Return a key that separates neighbours (van der Corput sequence: the bits in reverse)."""
    return int(f"{index:024b}"[::-1], 2)


def thin(xs: Sequence[float], ys: Sequence[float], limit: int) -> tuple[list[float], list[list[float | None]]]:
    """Return at most ``limit`` points of a series: the start of each, and mean, minimum and maximum of the merged values.

    A short series has only one row of values. Non-finite values are None.
    """
    if len(ys) <= limit:
        return list(xs), [[finite(value) for value in ys]]
    width = math.ceil(len(ys) / limit)
    means: list[float | None] = []
    least: list[float | None] = []
    most: list[float | None] = []
    starts = range(0, len(ys), width)
    for at in starts:
        values = [value for value in ys[at : at + width] if math.isfinite(value)]
        means.append(finite(math.fsum(values) / len(values)) if values else None)
        least.append(finite(min(values)) if values else None)
        most.append(finite(max(values)) if values else None)
    return [xs[at] for at in starts], [means, least, most]


def finite(value: float) -> float | None:
    """Return a number with five significant digits; None for a non-finite one."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short  # noqa: PLR2004 - exact as a float


# -- Lists of bounded length: verdicts, stragglers, events, unfinished work --

VERDICTS: Final = 1_000
MAX_CAUSES: Final = 12
LISTED: Final = 200
EXACT: Final = 2**53
"""Above this, JavaScript's numbers are not exact; ids are written as text."""


def of_verdicts(steps: Sequence[Step], every: Sequence[Step]) -> dict[str, Any]:
    """Return the verdicts with the largest savings, and the sum of savings by cause.

    Args:
        steps: The steps that are shown, whose verdicts are listed.
        every: All steps of the run, whose verdicts are counted.
    """
    indexed = [(index, verdict) for index, step in enumerate(steps) for verdict in step.verdicts]
    indexed.sort(key=lambda pair: (-pair[1].saved, -pair[1].step_seconds))
    causes: dict[tuple[str, str], list[float]] = {}
    for verdict in (verdict for step in every for verdict in step.verdicts):
        total = causes.setdefault((verdict.cause, verdict.cause_name), [0, 0.0])
        total[0] += 1
        total[1] += verdict.saved
    ranked = sorted(causes.items(), key=lambda pair: -pair[1][1])[:MAX_CAUSES]
    return {
        "count": sum(len(step.verdicts) for step in every),
        "rows": [
            [
                index,
                printable.show(headlines.verdict_line(verdict), formatting.SENTENCE),
                round(verdict.saved, 4),
                round(verdict.seconds, 4),
                printable.show(verdict.cause),
                printable.show(verdict.cause_name),
            ]
            for index, verdict in indexed[:VERDICTS]
        ],
        "causes": [
            [printable.show(cause), printable.show(name), int(count), round(saved, 3)]
            for (cause, name), (count, saved) in ranked
        ],
    }


def of_stragglers(steps: Iterable[Step]) -> list[list[Any]]:
    """Return late ranks over all steps: number of delays, their sum and maximum, and the evidence."""
    rows: dict[tuple[str, int, str], list[Any]] = {}
    for straggler in (straggler for step in steps for straggler in step.stragglers):
        row = rows.setdefault((straggler.method, straggler.rank, straggler.instance), [0, 0.0, 0.0, Counter()])
        row[0] += 1
        row[1] += straggler.seconds
        row[2] = max(row[2], straggler.seconds)
        row[3][straggler.evidence] += 1
    ranked = sorted(rows.items(), key=lambda pair: -pair[1][1])[:LISTED]
    return [
        [
            printable.show(method),
            rank,
            printable.show(instance),
            count,
            round(total, 3),
            round(most, 3),
            ", ".join(sorted(seen)),
        ]
        for (method, rank, instance), (count, total, most, seen) in ranked
    ]


def of_blind_spots(steps: Iterable[Step]) -> list[str]:
    """Return the kinds of evidence for stragglers that no step contains."""
    blind_spots = [set(step.blind_spots) for step in steps]
    return sorted(set.intersection(*blind_spots)) if blind_spots else []


def of_unfinished(run: Explanation) -> list[list[Any]]:
    """Return the processes with open spans, and some of these."""
    return [
        [
            printable.show(unfinished.process.label),
            unfinished.dead,
            round(unfinished.silent, 1),
            [
                [printable.show(work.span.name), round(work.age, 1), printable.show(work.last_child)]
                for work in unfinished.work[:30]
            ],
            len(unfinished.work),
        ]
        for unfinished in run.completeness.unfinished[:LISTED]
    ]


def plain(value: Any, depth: int = 4) -> Any:
    """Return a bounded copy of a value in types that JSON supports."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, int) and abs(value) < EXACT:
        return value
    if depth and isinstance(value, dict):
        return {printable.show(key): plain(item, depth - 1) for key, item in list(value.items())[:40]}
    if depth and isinstance(value, (list, tuple)):
        return [plain(item, depth - 1) for item in value[:60]]
    return printable.show_lines(value)


def of_events(run: Explanation) -> list[list[Any]]:
    """Return stalls and crashes with their recorded details."""
    return [
        [
            printable.show(event.kind),
            event.time_ns // 1_000_000,
            printable.show(event.text, formatting.SENTENCE),
            plain(event.detail),
        ]
        for event in run.events[:LISTED]
    ]


# -- The detail of steps --

_CAUSES: Final = tuple(GPU_CAUSES)


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


WHOLE: Final = Level(SEGMENTS, 32, 50, 8, 80, ACTIVITIES)
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
    for part in shorten(path, limit):
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
        "score": trajectory.score if trajectory.score is None else finite(trajectory.score),
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
            for activity in choose_longest(trajectory.activities, level.activities)
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
    productive = sum(
        value
        for cause, value in device.nanoseconds.items()
        if cause in GPU_CAUSES and GPU_CAUSES[cause].state == "productive"
    )
    return productive / max(1, sum(device.nanoseconds.values()))


def _micros(nanoseconds: int) -> int:
    return (nanoseconds + 500) // 1000
