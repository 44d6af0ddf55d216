# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Converts an explanation to the compact data of a page: columns for all steps, full detail for as many as fit."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from verl_otel._internal import printable
from verl_otel.analysis import scalars, step_lengths
from verl_otel.analysis.gpu import token_cost
from verl_otel.analysis.model import CAUSES, Explanation, Series, Step
from verl_otel.analysis.verdicts.engine import sum_savings
from verl_otel.cli.page import detail, downsampling, lists
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
    names = detail.Names()
    chosen = downsampling.rows(run.steps)
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
        "causes": [[cause, state] for cause, state in CAUSES.items()],
        "verdicts": lists.of_verdicts(steps, run.steps),
        "stragglers": lists.of_stragglers(run.steps),
        "blind": lists.of_blind_spots(run.steps),
        "cost": _cost(run),
        "validations": [
            [number, (start - run.start_ns) // 1_000_000, (end - start) // 1_000_000]
            for number, start, end in run.validations[:VALIDATIONS]
        ],
        "devices": detail.of_devices(run.devices, names, DEVICES),
        "slowest": [
            detail.of_trajectory(trajectory, trajectory.start_ns, names) for trajectory in run.slowest[:TRAJECTORIES]
        ],
        "events": lists.of_events(run),
        "unfinished": lists.of_unfinished(run),
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

    gpu_seconds = [_gpu_seconds(step) for step in steps]
    return {
        "unit": unit,
        "number": [step.number for step in steps],
        "start": [(step.start_ns - begin_ns) // 1_000_000 for step in steps],
        "seconds": [units(step.seconds) for step in steps],
        "failed": [index for index, step in enumerate(steps) if step.failed],
        "phases": _stack(
            [{**{phase.key: phase.seconds for phase in step.phases}, "no phase": step.no_phase} for step in steps],
            units,
        ),
        "groups": _stack([{(kind, name): nanos / 1e9 for kind, name, nanos in step.groups} for step in steps], units),
        "gpu": _stack(
            gpu_seconds,
            units,
            keys=[cause for cause in CAUSES if any(cause in device_seconds for device_seconds in gpu_seconds)],
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


def _gpu_seconds(step: Step) -> dict[str, float]:
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
    price = token_cost.sum_costs(run.steps, run.unused)
    if price is None:
        return None
    wasted = sorted(price.wasted_tokens.items(), key=lambda item: -item[1])
    return {
        "gpu_seconds": downsampling.finite(price.gpu_seconds),
        "trained": price.trained_tokens,
        "generated": price.generated_tokens,
        "wasted": [[printable.show(reason), count] for reason, count in wasted if count],
    }


def _scalars(series: Sequence[Series], begin_ns: int) -> dict[str, Any]:
    """Return the series; equal time axes are shared. A series is over steps where the steps of its times are known."""
    steps = scalars.find_steps(series)
    shown = [scalar for scalar in series if scalar.values and scalar.name != TRAINING_STEP][:1000]
    limit = max(40, min(250, downsampling.POINTS // max(1, len(shown))))
    axes: dict[tuple[Any, ...], int] = {}
    lines = []
    for scalar in shown:
        is_over_steps, xs = scalars.find_axis(scalar, steps, begin_ns)
        at, values = downsampling.thin(xs, scalar.values, limit)
        axis = axes.setdefault((is_over_steps, *(downsampling.finite(x) or 0 for x in at)), len(axes))
        labels = ", ".join(f"{key}={value}" for key, value in scalar.labels)
        odd = sum(not math.isfinite(value) for value in scalar.values)
        lines.append([printable.show(scalar.name), printable.show(labels), axis, odd, len(scalar.values), *values])
    return {"axes": [list(axis) for axis in axes], "lines": lines}


def _details(steps: Sequence[Step], names: detail.Names, labels: dict[int, str], room: int) -> dict[str, Any]:
    """Return as many steps as fit: the most relevant ones with full detail, as many again in brief."""
    details: dict[str, Any] = {}
    level, half = detail.WHOLE, room / 2
    for index in downsampling.most_wanted(steps):
        step_data = detail.of_step(steps[index], names, labels, level)
        size = len(encode(step_data)) + 12
        if level is detail.WHOLE and room - size < half and len(details) + 1 < len(steps):
            level = detail.BRIEF
        if room < size:
            break
        room -= size
        details[str(index)] = step_data
    return details
