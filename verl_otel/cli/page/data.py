# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents that the page shows: the live page asks for them below ``/api``, the file of a report holds them.

They are those that commands print with ``--json``, with what a page adds. Their keys are stable, and described in
``docs/reference/live-page.md``. All text in them is safe to show; unknown numbers are null.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, Final

from verl_otel._internal import printable
from verl_otel.analysis import comparison, indicators, scalars, step_lengths
from verl_otel.analysis.findings import Excess, find_excesses, sort_held
from verl_otel.analysis.model import Activity, Explanation, Segment, Trajectory, sum_causes
from verl_otel.cli import advice, compare, explain, formatting, rollouts, wording
from verl_otel.cli.documents.base import to_plain
from verl_otel.cli.documents.compare import make_compare
from verl_otel.cli.documents.explain import DeviceSum, make_explain, make_step
from verl_otel.cli.documents.report import make_trajectory
from verl_otel.cli.headlines import find_headlines
from verl_otel.semconv.metric_names import TRAINING_STEP
from verl_otel.semconv.run_state import NO_END

MAX_STEPS: Final = 20_000
"""Steps of one answer."""
MAX_KEYS: Final = 40
"""Phases, and causes of GPU time."""
MAX_SERIES: Final = 1_000
OWN: Final = ("folders", "name", "next")
"""Keys with the paths of the user, who may give the file of a report to others."""
NO_FACTS: Final = ("attempts", "status", rollouts.TRAINING, rollouts.VALIDATION)
"""Keys of the manifest that are no facts to show: what the page has in another form, and more of these paths."""
LISTED: Final = 200
UNSETTLED: Final = 3
"""The last steps may change, and all whose GPU time is not known yet: it becomes known with the next ones."""
SEGMENTS: Final = 400
"""Maximum parts of one critical path."""
ACTIVITIES: Final = 160
"""Maximum activities of one trajectory."""


# -- one run --


def describe_run(run: Explanation) -> dict[str, Any]:
    """Return what the page of a run shows besides its steps, scalars and log lines."""
    document = make_explain(run, ())
    explained = {key: value for key, value in to_plain(document).items() if key not in OWN}
    places = {id(step): index for index, step in enumerate(run.steps)}
    explained["events"] = explained["events"][-LISTED:]
    explained["unfinished"] = [{**process, "work": []} for process in explained["unfinished"][:LISTED]]
    described = {
        "state": run.state or NO_END,
        "explain": explained,
        "steps": len(run.steps),
        "findings": list(map(to_plain, find_headlines(run))),
        "blocks": _list_blocks(explain.list_run_blocks(document), document.run.devices),
        "unknown": list(explain.list_unknown(document)),
        "start_up": sorted(places[id(step)] for step in step_lengths.find_start_up(run.steps)),
        "unexplained": sorted(places[id(step)] for step in step_lengths.find_unexplained(run.steps)),
        "longer": {str(places[id(step)]): round(lost, 4) for step, lost in sort_held(run)},
        "indicators": [indicator._asdict() for indicator in indicators.find(run)[1]],
        "slowest": [describe_trajectory(trajectory, trajectory.start_ns) for trajectory in run.slowest],
        "facts": {key: value for key, value in run.manifest.items() if key not in NO_FACTS},
        "samples": rollouts.has_folder(run.manifest),
        "scalars": sorted({series.name for series in run.series if series.name != TRAINING_STEP})[:MAX_SERIES],
    }
    return dict(clean(described))


def _list_blocks(blocks: Iterable[explain.Block], devices: DeviceSum) -> list[dict[str, Any]]:
    """Return blocks that have lines, without that of the devices, which the page draws."""
    drawn = list(wording.describe_devices(devices))
    listed = ((title, list(lines)) for title, lines in blocks)
    return [{"title": title, "lines": lines} for title, lines in listed if lines and lines != drawn]


# -- its steps --


def list_steps(run: Explanation, first: int = 0) -> dict[str, Any]:
    """Return the steps from one index on, in columns.

    Args:
        run: What is known of the run.
        first: Index of the first step that is wanted.
    """
    steps = run.steps[first : first + MAX_STEPS]
    unsettled = max(UNSETTLED, sum(1 for _ in takewhile(lambda step: not step.next_ns, reversed(run.steps))))
    held = [(first + index, verdict) for index, step in enumerate(steps) for verdict in step.verdicts]
    return {
        "first": first,
        "all": len(run.steps),
        "settled": max(0, min(first + len(steps), len(run.steps) - unsettled)),
        "number": [step.number for step in steps],
        "start": [round(step.start_ns / 1e9, 3) for step in steps],
        "seconds": [round(step.seconds, 4) for step in steps],
        "failed": [formatting.end_of(step) for step in steps],
        "phases": _make_columns(
            [{**{phase.key: phase.seconds for phase in step.phases}, "no phase": step.no_phase} for step in steps]
        ),
        "gpu": _make_columns(
            [{cause: length / 1e9 for cause, length in sum_causes(step.devices).items()} for step in steps]
        ),
        "held": [
            {
                "index": index,
                "saved": round(verdict.saved, 4),
                "text": printable.show(wording.describe_verdict(verdict), formatting.SENTENCE),
                "next": printable.show(advice.advise(run, verdict), formatting.SENTENCE),
            }
            for index, verdict in held[-MAX_SERIES:]
        ],
    }


def _make_columns(rows: Sequence[Mapping[str, float]]) -> dict[str, array[float]]:
    """Return one column for each of a bounded number of keys, by texts that are safe to show."""
    keys = list(dict.fromkeys(key for row in rows for key, value in row.items() if value))[:MAX_KEYS]
    return {printable.show(key): array("d", (round(row.get(key, 0.0), 4) for row in rows)) for key in keys}


def describe_step(run: Explanation, index: int, excess: Excess | None = None) -> dict[str, Any]:
    """Return a step as ``verl-otel explain --json`` does, with what the page of a step adds, such as its trajectories.

    Args:
        run: What is known of the run.
        index: Index of the step.
        excess: By how much it took longer than usual; None: it is computed.
    """
    step = run.steps[index]
    document = make_step(run, step, excess or find_excesses(run.steps, [step])[0], shorten(step.path))
    described = {
        **to_plain(document),
        "blocks": _list_blocks(
            explain.list_step_blocks(document, has_gpu=run.has_gpu, has_verl=not run.is_own), document.devices
        ),
        "members": step.members or len(step.trajectories),
        "quantiles": step.quantiles,
        "lifetimes": array("d", (round(at, 3) for at in array("f", step.lifetimes))),
        "trajectories": [
            describe_trajectory(trajectory, step.start_ns)
            for trajectory in sorted(step.slowest, key=lambda trajectory: -trajectory.end_ns)
        ],
    }
    return dict(clean(described))


def describe_trajectory(trajectory: Trajectory, begin_ns: int) -> dict[str, Any]:
    """Return a trajectory as ``verl-otel report --json`` does, with its critical path and its activities.

    Args:
        trajectory: The trajectory.
        begin_ns: What ``after`` of it and of its parts counts from.
    """

    def place(part: Segment | Activity) -> dict[str, Any]:
        return {
            "after": (part.start_ns - begin_ns) / 1e9,
            "seconds": (part.end_ns - part.start_ns) / 1e9,
            "kind": part.kind,
            "name": part.name,
            "process": part.instance,
            "turn": part.turn,
        }

    return {
        **to_plain(make_trajectory(trajectory)),
        "after": (trajectory.start_ns - begin_ns) / 1e9,
        "path": [place(segment) for segment in shorten(trajectory.path, ACTIVITIES)],
        "activities": [
            {**place(activity), "failed": activity.failed} for activity in choose_longest(trajectory.activities)
        ],
    }


def shorten(path: Sequence[Segment], limit: int = SEGMENTS) -> tuple[Segment, ...]:
    """Return a path of at most ``limit`` segments with the same ends and no gap: short neighbours become one.

    The longest segments stay unchanged; adjacent others are merged under the name of the longest of them.
    """
    if len(path) <= limit:
        return tuple(path)
    by_length = sorted(range(len(path)), key=lambda index: path[index].start_ns - path[index].end_ns)
    whole = set(by_length[: (limit - 1) // 2])  # between n of them are at most n + 1 groups of others
    kept: list[Segment] = []
    for is_whole, group in groupby(range(len(path)), whole.__contains__):
        segments = [path[index] for index in group]
        if not is_whole:
            longest = max(segments, key=lambda segment: segment.end_ns - segment.start_ns)
            segments = [longest._replace(start_ns=segments[0].start_ns, end_ns=segments[-1].end_ns)]
        kept += segments
    return tuple(kept)


def choose_longest(activities: Sequence[Activity], limit: int = ACTIVITIES) -> list[Activity]:
    """Return the longest activities in their order; they overlap, so they cannot be merged."""
    order = sorted(range(len(activities)), key=lambda index: activities[index].start_ns - activities[index].end_ns)
    return [activities[index] for index in sorted(order[:limit])]


# -- its scalars --


def list_scalars(run: Explanation, names: Iterable[str] | None = None, limit: int = 2_000) -> list[dict[str, Any]]:
    """Return the points of scalars, over steps where their steps are known.

    Args:
        run: What is known of the run.
        names: Names of the scalars; None: all.
        limit: Points of each; of more, neighbours are merged.
    """
    steps = scalars.find_steps(run.series)
    wanted = None if names is None else set(names)
    chosen = [one for one in run.series if one.name != TRAINING_STEP and (wanted is None or one.name in wanted)]
    listed = []
    for series in chosen[: 50 if wanted else MAX_SERIES]:
        by_steps, xs = scalars.find_axis(series, steps, run.start_ns)
        at, values = thin(xs, series.values, limit)
        labels = {printable.show(key): printable.show(value) for key, value in series.labels}
        x = [round(each, 3) for each in at]
        listed.append(
            {"name": printable.show(series.name), "labels": labels, "by_steps": by_steps, "x": x, "y": values}
        )
    return listed


def thin(xs: Sequence[float], ys: Sequence[float], limit: int) -> tuple[list[float], list[float | None]]:
    """Return at most ``limit`` points: the start and the mean of neighbours. A mean of no finite value is None."""
    width = max(1, math.ceil(len(ys) / limit))
    means: list[float | None] = []
    for at in range(0, len(ys), width):
        values = [value for value in ys[at : at + width] if math.isfinite(value)]
        means.append(finite(math.fsum(values) / len(values)) if values else None)
    return list(xs[::width]), means


def finite(value: float) -> float | None:
    """Return a number with five significant digits; None for a non-finite one."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short  # noqa: PLR2004 - exact as a float


# -- two runs --


def compare_runs(first: Explanation, second: Explanation, a: str, b: str) -> dict[str, Any]:
    """Return what ``verl-otel compare --json`` prints, with the sentences that the command prints.

    Args:
        first: A.
        second: B.
        a: What a command takes to read A.
        b: The same for B.
    """
    document = make_compare(comparison.compare(first, second), (), a, b)
    texts = {
        "sentences": compare.list_sentences(document),
        "held": compare.list_held(document),
        "notes": document.notes,
    }
    return {**to_plain(document), "texts": clean({key: list(lines) for key, lines in texts.items()})}


# -- all documents --

EXACT: Final = 2**53
"""Above this, JavaScript's numbers are not exact; ids are written as text."""
MOST_ITEMS: Final = 2_000
DEPTH: Final = 10


def clean(value: Any, depth: int = DEPTH) -> Any:
    """Return a bounded copy of a document whose texts are safe to show and whose numbers are those of JSON."""
    if value is None or isinstance(value, (bool, array)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and abs(value) < EXACT:
        return value
    if depth and isinstance(value, Mapping):
        return {printable.show(key): clean(item, depth - 1) for key, item in list(value.items())[:MOST_ITEMS]}
    if depth and isinstance(value, (list, tuple)):
        return [clean(item, depth - 1) for item in value[:MOST_ITEMS]]
    return printable.show_lines(value, longest=formatting.SENTENCE)
