# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of the live page. Their keys are stable and described in docs/reference/live-page.md."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from verl_otel._internal import printable
from verl_otel.analysis import indicators, retention, scalars
from verl_otel.analysis.model import Explanation, OpenSpan, Series, Step, Trajectory
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.cli import formatting, rollouts
from verl_otel.cli.page import downsampling, lists
from verl_otel.cli.report import headlines
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import TRAINING_STEP

MAX_STEPS: Final = 20_000
"""Steps of one answer."""
MAX_EXPLAINED: Final = 100
"""Steps of one answer in the form of `explain`."""
MAX_OPEN: Final = 50
MAX_KEYS: Final = 40
"""Phases, and causes of GPU time."""
UNSETTLED: Final = 3
"""The last steps may change: their GPU time becomes known with the next ones."""


def describe_run(run: Explanation) -> dict[str, Any]:
    """Return what the page of a run shows besides its steps, scalars and log lines."""
    return {
        "id": printable.show(run.run_id),
        "headline": [line for line in formatting.headline(run) if line],
        "start": run.start_ns / 1e9,
        "end": run.end_ns / 1e9,
        "counts": run.counts._asdict(),
        "steps": len(run.steps),
        "has_gpu": run.has_gpu,
        "findings": [
            {"step": line.step.number if line.step else None, "text": printable.show(line.text, formatting.SENTENCE)}
            for line in headlines.find_headlines(run)
        ],
        **_indicators(run),
        "last_step": describe_step(run.steps[-1]) if run.steps else None,
        "open": _open(run),
        "unfinished": [
            {"process": printable.show(entry.process.label), "dead": entry.dead, "silent": entry.silent}
            for entry in run.completeness.unfinished[: lists.LISTED]
        ],
        "slowest": [_trajectory(trajectory) for trajectory in run.slowest],
        "events": [
            {
                "kind": printable.show(event.kind),
                "time": event.time_ns / 1e9,
                "text": printable.show(event.text, formatting.SENTENCE),
                "resolved": "resolved" in event.detail,
            }
            for event in run.events[-lists.LISTED :]
        ],
        "missing": [printable.show(text, formatting.SENTENCE) for text in (*run.completeness.missing, *run.problems)],
        "samples": rollouts.has_folder(run.manifest),
        "scalars": sorted({series.name for series in run.series if series.name != TRAINING_STEP})[:1000],
    }


def _indicators(run: Explanation) -> dict[str, Any]:
    profile, found = indicators.find(run)
    rows = [{**one._asdict(), "value": None if one.value is None else downsampling.finite(one.value)} for one in found]
    return {"profile": printable.show(profile), "indicators": rows}


def describe_step(step: Step) -> dict[str, Any]:
    """Return the number and the verdicts of a step."""
    return {
        "number": step.number,
        "seconds": step.seconds,
        "failed": step.failed,
        "verdicts": [
            printable.show(headlines.verdict_line(verdict), formatting.SENTENCE) for verdict in step.verdicts[:5]
        ],
    }


def list_steps(run: Explanation, first: int) -> dict[str, Any]:
    """Return the steps from one index on, in columns.

    Args:
        run: What is known of the run.
        first: Index of the first step that is wanted.
    """
    steps = run.steps[first : first + MAX_STEPS]
    phases, gpu = _Columns(len(steps)), _Columns(len(steps))
    for index, step in enumerate(map(retention.unpack_step, steps)):  # one at a time: together they take much memory
        phases.add(index, _phase_seconds(step))
        gpu.add(index, _gpu_seconds(step))
    return {
        "first": first,
        "all": len(run.steps),
        "settled": max(0, min(first + len(steps), len(run.steps) - UNSETTLED)),
        "number": [step.number for step in steps],
        "start": [round(step.start_ns / 1e9, 3) for step in steps],
        "seconds": [round(step.seconds, 4) for step in steps],
        "failed": [step.failed for step in steps],
        "verdicts": [len(step.verdicts) for step in steps],
        "phases": phases.rounded(),
        "gpu": gpu.rounded(),
    }


def list_scalars(run: Explanation, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the points of scalars, over steps where their steps are known."""
    steps = scalars.find_steps(run.series)
    wanted = set(names)
    return [_scalar(series, steps, run.start_ns) for series in run.series if series.name in wanted][:50]


def _scalar(series: Series, steps: Mapping[int, float], begin_ns: int) -> dict[str, Any]:
    by_steps, xs = scalars.find_axis(series, steps, begin_ns)
    return {
        "name": printable.show(series.name),
        "labels": {printable.show(key): printable.show(value) for key, value in series.labels},
        "by_steps": by_steps,
        "x": [round(x, 3) for x in xs],
        "y": [downsampling.finite(value) for value in series.values],
    }


def _phase_seconds(step: Step) -> Iterator[tuple[str, float]]:
    yield from ((phase.key, phase.seconds) for phase in step.phases)
    if step.no_phase:
        yield "no phase", step.no_phase


def _gpu_seconds(step: Step) -> Iterator[tuple[str, float]]:
    for device in step.devices:
        for cause, length in device.nanoseconds.items():
            yield cause, device.gpus * length / 1e9


class _Columns:
    """One column of sums for each of a bounded number of keys.

    Args:
        count: Number of rows.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: dict[str, array[float]] = {}

    def add(self, index: int, row: Iterable[tuple[str, float]]) -> None:
        """Add the values of a row."""
        for key, value in row:
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


def _open(run: Explanation) -> list[dict[str, Any]]:
    """Return the open spans without a parent, the oldest first: the current step, and trajectories under way."""
    spans = [work for entry in run.completeness.unfinished for work in entry.work if not work.span.parent_id]
    spans.sort(key=lambda work: -work.age)
    steps = [work for work in spans if work.span.name != TRAJECTORY]
    return [
        _open_span(work) for work in [*steps[:MAX_OPEN], *(w for w in spans if w.span.name == TRAJECTORY)][:MAX_OPEN]
    ]


def _open_span(work: OpenSpan) -> dict[str, Any]:
    values = work.span.attributes
    return {
        "name": printable.show(work.span.name),
        "age": round(work.age, 1),
        "last_child": printable.show(work.last_child),
        "step": values.get(attr.STEP_NUMBER) if isinstance(values.get(attr.STEP_NUMBER), int) else None,
        "uid": printable.show(values.get(attr.SAMPLE_UID, "")),
    }


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trace_id": f"{trajectory.trace_id:032x}",
        "label": printable.show(trajectory.label),
        "uid": printable.show(trajectory.uid),
        "rollout_index": trajectory.rollout_index,
        "step": trajectory.step,
        "seconds": trajectory.seconds,
        "turns": trajectory.turns,
        "tokens": [trajectory.prompt_tokens, trajectory.response_tokens],
        "score": None if trajectory.score is None else downsampling.finite(trajectory.score),
        "failed": trajectory.failed,
        "parts": [
            {"kind": printable.show(part.kind), "name": printable.show(part.name), "seconds": part.seconds}
            for part in trajectory.parts
        ],
    }
