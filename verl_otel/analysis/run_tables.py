# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of a run: columns of plain values, for data frames and Parquet. Times in seconds, ids in hexadecimal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from verl_otel.analysis.kinds import CAUSES
from verl_otel.analysis.model import Explanation, Trajectory

Row = tuple[Any, ...]

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "steps": (
        "step", "start", "seconds", "failed", "error", "no_phase", "trajectories", "verdicts",
        "trajectory_p50", "trajectory_p95", "trajectory_p99", "trajectory_max",
        "gpu_seconds", "trained_tokens", "wasted_tokens", "trace_id", "between",
    ),
    "phases": ("step", "phase", "seconds", "share"),
    "path": ("step", "kind", "name", "seconds", "part"),
    "trajectories": (
        "trace_id", "uid", "index", "step", "validate", "start", "seconds", "score", "failed", "outcome", "finish_reason",
        "turns", "prompt_tokens", "response_tokens", "process", "whole",
    ),
    "verdicts": (
        "step", "kind", "subject", "cause", "cause_name", "seconds", "saved", "process", "turn", "trace_id", "uncertainty",
    ),
    "gpu": ("step", "device", "cause", "state", "seconds"),
    "scalars": ("name", "labels", "time", "value"),
}  # fmt: skip
"""Columns of each table. New columns are added at the end."""


def build(name: str, run: Explanation, trajectories: Iterable[Trajectory] = ()) -> dict[str, list[Any]]:
    """Return one table.

    Args:
        name: A key of `COLUMNS`.
        run: The explained run.
        trajectories: All trajectories, for the table of that name.
    """
    rows = list(_trajectories(trajectories) if name == "trajectories" else _ROWS[name](run))
    return {column: [row[place] for row in rows] for place, column in enumerate(COLUMNS[name])}


def _steps(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        quantiles = step.quantiles[1:] if step.quantiles else (None,) * 4
        cost = step.cost
        costs = (None, None, None)
        if cost is not None:
            costs = (cost.gpu_seconds, cost.trained_tokens, sum(cost.wasted_tokens.values()))  # type: ignore[assignment]
        yield (
            step.number, step.start_ns / 1e9, step.seconds, step.failed, step.error, step.no_phase, step.members,
            len(step.verdicts), *quantiles, *costs, _hex(step.trace_id), step.between,
        )  # fmt: skip


def _phases(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        yield from ((step.number, phase.key, phase.seconds, phase.share) for phase in step.phases)


def _path(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        for part, groups in (("step", step.groups), ("between", step.between_groups)):
            yield from ((step.number, kind, name, length / 1e9, part) for kind, name, length in groups)


def _verdicts(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        for verdict in step.verdicts:
            yield (
                step.number, verdict.kind, verdict.subject, verdict.cause, verdict.cause_name, verdict.seconds, verdict.saved,
                verdict.instance, verdict.turn, _hex(verdict.trace_id), verdict.uncertainty,
            )  # fmt: skip


def _gpu(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        for device in step.devices:
            for cause, length in device.nanoseconds.items():
                yield step.number, device.device, cause, CAUSES[cause], length / 1e9


def _scalars(run: Explanation) -> Iterator[Row]:
    for series in run.series:
        labels = ",".join(f"{key}={value}" for key, value in series.labels)
        for time_ns, value in zip(series.times_ns, series.values, strict=True):
            yield series.name, labels, time_ns / 1e9, value


def _trajectories(trajectories: Iterable[Trajectory]) -> Iterator[Row]:
    for one in trajectories:
        yield (
            _hex(one.trace_id), one.uid, one.rollout_index, one.step, one.validate, one.start_ns / 1e9, one.seconds, one.score,
            one.failed, one.outcome, one.finish, one.turns, one.prompt_tokens, one.response_tokens, one.instance, one.whole,
        )  # fmt: skip


def _hex(trace_id: int) -> str | None:
    return f"{trace_id:032x}" if trace_id else None


_ROWS: Final[Mapping[str, Callable[[Explanation], Iterator[Row]]]] = {
    "steps": _steps,
    "phases": _phases,
    "path": _path,
    "verdicts": _verdicts,
    "gpu": _gpu,
    "scalars": _scalars,
}
