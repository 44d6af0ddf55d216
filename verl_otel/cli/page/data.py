# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents that the page shows: the live page asks for them below ``/api``, the file of a report holds them.

Their keys are stable, and described in ``docs/reference/live-page.md``. All text in them is safe to show; unknown numbers are null.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from verl_otel._internal import printable
from verl_otel.analysis import comparison, indicators, scalars, step_lengths
from verl_otel.analysis.findings import Excess, find_excesses, find_of_step
from verl_otel.analysis.levers.ranking import find_levers
from verl_otel.analysis.model import (
    Activity,
    Explanation,
    OpenSpan,
    Segment,
    Series,
    Step,
    Trajectory,
    Verdict,
    sum_causes,
    sum_states,
)
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.cli import advice, compare, formatting, headlines, rollouts, wording
from verl_otel.cli.documents.base import fill, to_plain
from verl_otel.cli.documents.compare import make_compare
from verl_otel.cli.documents.explain import Part, StartUp, make_explain, make_step
from verl_otel.cli.documents.levers import make_levers
from verl_otel.cli.levers import REPLAYED_ITEMS, choose, describe_interval
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.kinds import GPU_CAUSES
from verl_otel.semconv.metric_names import SCALAR_PREFIX, TRAINING_STEP

MAX_STEPS: Final = 20_000
"""Steps of one answer."""
MAX_OPEN: Final = 50
MAX_KEYS: Final = 40
"""Phases, and causes of GPU time."""
MAX_SERIES: Final = 1_000
LISTED: Final = 200
UNSETTLED: Final = 3
"""The last steps may change, and all whose GPU time is not known yet: it becomes known with the next ones."""
SEGMENTS: Final = 400
"""Maximum parts of one critical path."""
ACTIVITIES: Final = 160
"""Maximum activities of one trajectory."""
SPARK: Final = 60
"""Points of a small line."""
_SCALARS: Final = {
    "mean reward": ("critic.rewards.mean", "critic.score.mean"),
    "policy KL": ("actor.ppo_kl",),
    "policy loss": ("actor.pg_loss",),
    "response length, share of its limit": ("response_length.mean",),
}
"""Scalars of verl that the core indicators are about."""


# -- one run --


def describe_run(run: Explanation) -> dict[str, Any]:
    """Return what the page of a run shows besides its steps, scalars and log lines."""
    explained = make_explain(run, ())
    plain = to_plain(explained)
    levers = make_levers(run, find_levers(run.recent_steps, most_items=REPLAYED_ITEMS)).levers
    described: dict[str, Any] = {
        "id": run.run_id,
        "state": run.state or "no end seen",
        "headline": list(filter(None, explained.headline)),
        "start": run.start_ns / 1e9,
        "end": run.end_ns / 1e9,
        "counts": explained.counts,
        "steps": len(run.steps),
        "planned": find_planned(run.manifest),
        "has_gpu": run.has_gpu,
        "findings": list_findings(run),
        "held": explained.held.text if explained.counts["held"] else "",
        "start_up": _find_places(run, step_lengths.find_start_up(run.steps)),
        "unexplained": _find_places(run, step_lengths.find_unexplained(run.steps)),
        "progress": explained.progress,
        "learning": plain["findings"],
        **_list_indicators(run),
        "open": _list_open(run),
        "unfinished": [
            {
                "process": entry.process.label,
                "dead": entry.dead,
                "silent": entry.silent,
                "work": [{"name": work.span.name, "age": work.age} for work in entry.work[:30]],
            }
            for entry in run.completeness.unfinished[:LISTED]
        ],
        "slowest": [describe_trajectory(trajectory, trajectory.start_ns) for trajectory in run.slowest],
        "events": [
            {**event, "time": source.time_ns / 1e9, "resolved": "resolved" in source.detail}
            for event, source in zip(plain["events"][-LISTED:], run.events[-LISTED:], strict=True)
        ],
        "whole": plain["run"],
        "gpu": _by_cause(run),
        "cost": list(wording.describe_cost(explained.run.cost, has_gpu=run.has_gpu, has_verl=not run.is_own)),
        "start_ups": list(map(_word_start_up, filter(lambda each: each.seconds, explained.run.start_up))),
        "levers": [{**to_plain(lever), "interval": describe_interval(lever)} for lever in choose(levers)],
        "missing": _list_missing(run),
        "facts": {key: value for key, value in run.manifest.items() if key not in ("attempts", "status")},
        "samples": rollouts.has_folder(run.manifest),
        "scalars": sorted({series.name for series in run.series if series.name != TRAINING_STEP})[:MAX_SERIES],
    }
    return dict(clean(described))


def _word_start_up(start_up: StartUp) -> str:
    """Return how long a start-up took, and its longest part."""
    text, length = max(wording.describe_start_up(start_up), key=lambda part: part[1], default=("", 0.0))
    most = f", of which {printable.seconds(length)} {text}" if text else ""
    return f"Start-up of attempt {start_up.attempt}: {printable.seconds(start_up.seconds)}{most}."


def _find_places(run: Explanation, chosen: Iterable[Step]) -> list[int]:
    """Return the indexes of some steps of a run."""
    wanted = set(map(id, chosen))
    return [index for index, step in enumerate(run.steps) if id(step) in wanted]


def find_planned(manifest: Mapping[str, Any]) -> int | None:
    """Return the number of steps that the newest training of a run has planned; None if it is unknown."""
    status = manifest.get("status")
    trainings = status.get("trainings") if isinstance(status, Mapping) else None
    newest = trainings[-1] if isinstance(trainings, list) and trainings else None
    planned = newest.get("total_steps") if isinstance(newest, Mapping) else None
    return planned if isinstance(planned, int) and planned > 0 else None


def list_findings(run: Explanation) -> list[dict[str, Any]]:
    """Return the first lines of a run: the first one shows whether it needs attention."""
    return [
        {
            "step": line.step.number if line.step else None,
            "index": next((index for index, step in enumerate(run.steps) if step is line.step), None),
            "text": line.text,
            "next": line.advice,
            "saved": line.saved,
            "is_finding": line.is_finding,
        }
        for line in headlines.find_headlines(run)
    ]


def _list_indicators(run: Explanation) -> dict[str, Any]:
    profile, found = indicators.find(run)
    known = {series.name for series in run.series if not series.labels}
    rows = []
    for one in found:
        keys = (SCALAR_PREFIX + key for key in _SCALARS.get(one.name, ()))
        rows.append({**one._asdict(), "scalar": next((key for key in keys if key in known), None)})
    return {"profile": profile, "indicators": rows}


def _by_cause(run: Explanation) -> dict[str, float]:
    """Return the device seconds of the whole run by cause, in the order of the causes."""
    spent = sum_causes(run.devices)
    return {cause: spent[cause] / 1e9 for cause in GPU_CAUSES if cause in spent}


def find_productive(run: Explanation) -> float | None:
    """Return the share of the device time of a run in which devices trained or generated; None if it is unknown."""
    states = sum_states(sum_causes(run.devices))
    return states["productive"] / states.total() if states else None


def _list_missing(run: Explanation) -> list[str]:
    return [
        *run.missing,
        *filter(None, [formatting.orphans(run)]),
        *(
            f"The clock of {host} was found to be {ahead:+.3f} s ahead of the trainer's, "
            f"give or take {printable.seconds(doubt)}; times are corrected by it"
            for host, ahead, doubt in run.offsets
        ),
    ]


def _list_open(run: Explanation) -> list[dict[str, Any]]:
    """Return the open spans without a parent, the oldest first: the current step, and trajectories under way."""
    spans = [work for entry in run.completeness.unfinished for work in entry.work if not work.span.parent_id]
    spans.sort(key=lambda work: (work.span.name == TRAJECTORY, -work.age))
    return [_describe_open(work) for work in spans[:MAX_OPEN]]


def _describe_open(work: OpenSpan) -> dict[str, Any]:
    number = work.span.attributes.get(attr.STEP_NUMBER)
    return {
        "name": work.span.name,
        "age": round(work.age, 1),
        "last_child": work.last_child,
        "step": number if isinstance(number, int) else None,
        "uid": work.span.attributes.get(attr.SAMPLE_UID, ""),
    }


# -- its steps --


def list_steps(run: Explanation, first: int = 0) -> dict[str, Any]:
    """Return the steps from one index on, in columns.

    Args:
        run: What is known of the run.
        first: Index of the first step that is wanted.
    """
    steps = run.steps[first : first + MAX_STEPS]
    unsettled = max(UNSETTLED, sum(1 for _ in takewhile(lambda step: not step.next_ns, reversed(run.steps))))
    phases, gpu = _Columns(len(steps)), _Columns(len(steps))
    for index, step in enumerate(steps):
        phases.add(index, phase_seconds(step))
        gpu.add(index, gpu_seconds(step))
    return {
        "first": first,
        "all": len(run.steps),
        "settled": max(0, min(first + len(steps), len(run.steps) - unsettled)),
        "number": [step.number for step in steps],
        "start": [round(step.start_ns / 1e9, 3) for step in steps],
        "seconds": [round(step.seconds, 4) for step in steps],
        "failed": [formatting.end_of(step) for step in steps],
        "saved": [round(excess.longer + excess.late, 4) for excess in find_excesses(run.steps, steps)],
        "phases": phases.rounded(),
        "gpu": gpu.rounded(),
        "held": [
            {
                "index": first + index,
                "saved": round(verdict.saved, 4),
                "text": printable.show(headlines.verdict_line(verdict, step), formatting.SENTENCE),
                "next": printable.show(advice.advise(run, verdict), formatting.SENTENCE),
            }
            for index, step in enumerate(steps)
            for verdict in step.verdicts
        ][-MAX_SERIES:],
    }


def phase_seconds(step: Step) -> dict[str, float]:
    """Return the seconds of a step in each phase, and in none."""
    phases = {phase.key: phase.seconds for phase in step.phases}
    return {**phases, "no phase": step.no_phase} if step.no_phase else phases


def gpu_seconds(step: Step) -> dict[str, float]:
    """Return the GPU seconds of a step by cause."""
    return {cause: nanoseconds / 1e9 for cause, nanoseconds in sum_causes(step.devices).items()}


class _Columns:
    """One column of sums for each of a bounded number of keys.

    Args:
        count: Number of rows.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: dict[str, array[float]] = {}

    def add(self, index: int, row: Mapping[str, float]) -> None:
        """Add the values of a row."""
        for key, value in row.items():
            column = self._columns.get(key)
            if column is None:
                if len(self._columns) >= MAX_KEYS:
                    continue
                column = self._columns[key] = array("d", bytes(8 * self._count))
            column[index] += value

    def rounded(self) -> dict[str, array[float]]:
        """Return the columns, by keys that are safe to show."""
        return {
            printable.show(key): array("d", (round(value, 4) for value in column))
            for key, column in self._columns.items()
        }


def describe_step(run: Explanation, index: int, excess: Excess | None = None) -> dict[str, Any]:
    """Return a step as ``verl-otel explain --json`` does, with what the page of a step adds: its trajectories, and sentences.

    Args:
        run: What is known of the run.
        index: Index of the step.
        excess: By how much it took longer than usual; None: it is computed.
    """
    step = run.steps[index]
    excess = excess or find_excesses(run.steps, [step])[0]
    document = make_step(run, step, excess, shorten(step.path))
    described = {
        **to_plain(document),
        "index": index,
        "sentences": [
            {
                "text": wording.describe_cause(finding.cause),
                "saved": finding.seconds,
                "next": advice.advise(run, finding.cause),
                "is_finding": isinstance(finding.cause, Verdict),
            }
            for finding in find_of_step(step)
        ],
        "no_cause": wording.describe_no_cause(step, excess),
        "shorter": list(wording.describe_savings(step.savings, step.seconds)),
        "late": list(map(wording.describe_straggler, step.stragglers[:50])),
        "parts": len(step.path),
        "members": step.members or len(step.trajectories),
        "quantiles": step.quantiles,
        "lifetimes": array("d", (round(at, 3) for at in array("f", step.lifetimes))),
        "gpu_seconds": gpu_seconds(step),
        "trajectories": [
            describe_trajectory(trajectory, step.start_ns)
            for trajectory in sorted(step.slowest, key=lambda trajectory: -trajectory.end_ns)
        ],
    }
    return dict(clean(described))


def describe_trajectory(trajectory: Trajectory, begin_ns: int) -> dict[str, Any]:
    """Return a trajectory with its turns and tools.

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
        "trace_id": f"{trajectory.trace_id:032x}",
        "label": trajectory.label,
        "uid": trajectory.uid,
        "rollout_index": trajectory.rollout_index,
        "step": trajectory.step,
        "after": (trajectory.start_ns - begin_ns) / 1e9,
        "seconds": trajectory.seconds,
        "turns": trajectory.turns,
        "tokens": [trajectory.prompt_tokens, trajectory.response_tokens],
        "score": trajectory.score,
        "failed": trajectory.failed,
        "validate": trajectory.validate,
        "whole": trajectory.whole,
        "outcome": trajectory.outcome,
        "finish": trajectory.finish,
        "process": trajectory.instance,
        "parts": [to_plain(fill(Part, part)) for part in trajectory.parts],
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
    neighbours: list[Segment] = []
    for index, segment in enumerate(path):
        if index in whole:
            kept += [*_join(neighbours), segment]
            neighbours = []
        else:
            neighbours.append(segment)
    return (*kept, *_join(neighbours))


def _join(neighbours: Sequence[Segment]) -> list[Segment]:
    if not neighbours:
        return []
    longest = max(neighbours, key=lambda segment: segment.end_ns - segment.start_ns)
    return [longest._replace(start_ns=neighbours[0].start_ns, end_ns=neighbours[-1].end_ns)]


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
    return [_describe_scalar(one, steps, run.start_ns, limit) for one in chosen[: 50 if wanted else MAX_SERIES]]


def _describe_scalar(series: Series, steps: Mapping[int, float], begin_ns: int, limit: int) -> dict[str, Any]:
    by_steps, xs = scalars.find_axis(series, steps, begin_ns)
    at, values = thin(xs, series.values, limit)
    return {
        "name": printable.show(series.name),
        "labels": {printable.show(key): printable.show(value) for key, value in series.labels},
        "by_steps": by_steps,
        "x": [round(x, 3) for x in at],
        "y": values,
    }


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
    return {
        **to_plain(document),
        "sentences": [printable.show(line, formatting.SENTENCE) for line in compare.list_sentences(document)],
    }


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
