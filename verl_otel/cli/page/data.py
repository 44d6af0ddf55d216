# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An explanation as the compact data of a page: columns for all steps, everything for as many of them as fit."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from verl_otel.analysis import cost
from verl_otel.analysis.facts import CAUSES, Explanation, Series, Step
from verl_otel.cli import words
from verl_otel.cli.page import detail, levels, lists

BUDGET: Final = 4_700_000
"""Bytes of all data; the details of steps take what the rest leaves."""
DETAILS: Final = 2_400_000
"""Bytes of the details of steps at most."""
KEYS: Final = 12
"""Phases and groups of the critical path that have a column; the others share one."""
VALIDATIONS: Final = 1_000
TRAJECTORIES: Final = 50
DEVICES: Final = 128
_STEP: Final = "verl.training.step"


def build(run: Explanation) -> dict[str, Any]:
    """Return the data of a page, of a bounded size."""
    names = detail.Names()
    chosen = levels.rows(run.steps)
    steps = [run.steps[index] for index in chosen]
    labels = {each.trace_id: each.label for each in run.slowest}
    data = {
        "id": words.show(run.run_id),
        "start": run.start_ns // 1_000_000,
        "end": run.end_ns // 1_000_000,
        "all": len(run.steps),
        "kept": len(chosen),
        "steps": _columns(steps, run.start_ns),
        "causes": [[cause, state] for cause, state in CAUSES.items()],
        "verdicts": lists.of_verdicts(steps),
        "stragglers": lists.of_stragglers(run.steps),
        "blind": lists.of_blind_spots(run.steps),
        "cost": _cost(run),
        "validations": [
            [number, (start - run.start_ns) // 1_000_000, (end - start) // 1_000_000]
            for number, start, end in run.validations[:VALIDATIONS]
        ],
        "devices": detail.of_devices(run.devices, names, DEVICES),
        "slowest": [detail.of_trajectory(each, each.start_ns, names) for each in run.slowest[:TRAJECTORIES]],
        "events": lists.of_events(run),
        "unfinished": lists.of_unfinished(run),
        "scalars": _scalars(run.series, run.start_ns),
        "facts": [[words.show(key), words.show(value)] for key, value in run.manifest.items() if key != "attempts"],
    }
    room = min(DETAILS, BUDGET - len(encode(data)))
    data["details"] = _details(steps, names, labels, room)
    data["names"] = names.texts()
    return data


def encode(data: Any) -> str:
    """Return JSON that may stand in a script element: ASCII, and nothing in it can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _columns(steps: Sequence[Step], begin_ns: int) -> dict[str, Any]:
    """Return one list per fact. Times are whole units of ``1 / unit`` seconds: finer in runs of few steps."""
    unit = 1000 if len(steps) > 2000 else 1_000_000  # noqa: PLR2004 - above that, microseconds take too much room

    def units(seconds: float) -> int:
        return round(seconds * unit)

    ledgers = [_ledger(step) for step in steps]
    return {
        "unit": unit,
        "number": [step.number for step in steps],
        "start": [(step.start_ns - begin_ns) // 1_000_000 for step in steps],
        "seconds": [units(step.seconds) for step in steps],
        "failed": [index for index, step in enumerate(steps) if step.failed],
        "phases": _stack([_phases(step) for step in steps], units),
        "groups": _stack([{(kind, name): nanos / 1e9 for kind, name, nanos in step.groups} for step in steps], units),
        "gpu": _stack(ledgers, units, keys=[cause for cause in CAUSES if any(cause in each for each in ledgers)]),
        "members": [step.members or len(step.trajectories) for step in steps],
        "quantiles": [[units(value) for value in step.quantiles] for step in steps],
        "gpu_seconds": [round(step.cost.gpu_seconds, 2) if step.cost else None for step in steps],
        "trained": [step.cost.trained_tokens if step.cost else None for step in steps],
    }


def _phases(step: Step) -> dict[str, float]:
    return {**{phase.key: phase.seconds for phase in step.phases}, "no phase": step.no_phase}


def _ledger(step: Step) -> dict[str, float]:
    total: Counter[str] = Counter()
    for each in step.devices:
        total.update({cause: each.gpus * nanos for cause, nanos in each.nanoseconds.items()})
    return {cause: nanos / 1e9 for cause, nanos in total.items() if nanos}


def _stack(
    rows: Sequence[dict[Any, float]], units: Callable[[float], int], keys: Iterable[Any] | None = None
) -> dict[str, Any]:
    """Return the columns of what sums up; the smallest keys share the last column."""
    sums: Counter[Any] = Counter()
    for row in rows:
        sums.update(row)
    first = {key: place for place, key in reversed(list(enumerate(key for row in rows[:50] for key in row)))}
    largest = [key for key, _ in sums.most_common(KEYS)] if keys is None else list(keys)
    kept = largest if keys is not None else sorted(largest, key=lambda key: (key == "no phase", first.get(key, 1e9)))
    own = set(kept)
    rest = [sum(value for key, value in row.items() if key not in own) for row in rows]
    shown = [words.show(key) if isinstance(key, str) else [words.show(part) for part in key] for key in kept]
    columns = [[units(row.get(key, 0.0)) for row in rows] for key in kept]
    if any(rest):
        shown.append("other" if not kept or isinstance(kept[0], str) else ["other", ""])
        columns.append([units(value) for value in rest])
    return {"keys": shown, "columns": columns}


def _cost(run: Explanation) -> dict[str, Any] | None:
    """Return what the tokens of the whole run cost; none where no step knows."""
    price = cost.sum_up(run.steps, run.unused)
    if price is None:
        return None
    joules = [each.cost.joules for each in run.steps if each.cost is not None and each.cost.joules is not None]
    wasted = sorted(price.wasted_tokens.items(), key=lambda item: -item[1])
    return {
        "gpu_seconds": levels.finite(price.gpu_seconds),
        "trained": price.trained_tokens,
        "joules": levels.finite(math.fsum(joules)) if joules else None,
        "wasted": [[words.show(reason), count] for reason, count in wasted if count],
    }


def _scalars(series: Sequence[Series], begin_ns: int) -> dict[str, Any]:
    """Return the lines; those with the same times share them. A line is over steps where the times of steps are known."""
    steps = {
        time: value
        for each in series
        if each.name == _STEP
        for time, value in zip(each.times_ns, each.values, strict=True)
    }
    shown = [each for each in series if each.values and each.name != _STEP][:1000]
    limit = max(40, min(250, levels.POINTS // max(1, len(shown))))
    axes: dict[tuple[Any, ...], int] = {}
    lines = []
    for each in shown:
        known = all(time in steps for time in each.times_ns)
        xs = [steps[time] if known else (time - begin_ns) / 1e9 for time in each.times_ns]
        at, values = levels.thin(xs, each.values, limit)
        axis = axes.setdefault((known, *(levels.finite(x) or 0 for x in at)), len(axes))
        labels = ", ".join(f"{key}={value}" for key, value in each.labels)
        odd = sum(not math.isfinite(value) for value in each.values)
        lines.append([words.show(each.name), words.show(labels), axis, odd, len(each.values), *values])
    return {"axes": [list(axis) for axis in axes], "lines": lines}


def _details(steps: Sequence[Step], names: detail.Names, labels: dict[int, str], room: int) -> dict[str, Any]:
    """Return as many steps as fit: those that are wanted most with everything, as many again in brief, the rest not."""
    found: dict[str, Any] = {}
    level, half = detail.WHOLE, room / 2
    for index in levels.most_wanted(steps):
        made = detail.of_step(steps[index], names, labels, level)
        size = len(encode(made)) + 12
        if level is detail.WHOLE and room - size < half and len(found) + 1 < len(steps):
            level = detail.BRIEF
        if room < size:
            break
        room -= size
        found[str(index)] = made
    return found
