# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel levers --json``."""

from __future__ import annotations

from typing import Annotated

from verl_otel.analysis.document import Document, about
from verl_otel.analysis.levers import ranking
from verl_otel.analysis.model import Explanation
from verl_otel.cli import run_selection, wording
from verl_otel.cli.documents.base import Answer, RunId, State, fill


class Lever(Document):
    """The largest gain first; those of one step last."""

    kind: Annotated[str, about(", ".join(wording.LEVERS))]
    subject: Annotated[str, about("tool, data source, tracker or percentage")]
    seconds: Annotated[float, about("mean gain of a step, or the gain of only_step")]
    low: Annotated[float | None, about("lower end of its interval of 90%")]
    high: Annotated[float | None, about("upper end")]
    share: Annotated[float, about("gain as a share of the period, or of that of only_step")]
    only_step: Annotated[int | None, about("the step from which nearly all of the gain comes; null: from several")]
    text: Annotated[str, about("what is changed")]


class Limit(Document):
    """Limits that trajectories shared."""

    kind: Annotated[str, about("loop, server, reward")]
    process: str
    slots: int


class Levers(Answer):
    """What would make a step shorter, each alone."""

    run_id: RunId
    state: State
    steps: Annotated[tuple[int | None, ...], about("numbers of the steps that were replayed and compared")]
    left_out: Annotated[tuple[int | None, ...], about("numbers of the steps that took much longer, and do not count")]
    period: Annotated[float, about("mean time from one of them to the next, in seconds")]
    waited: Annotated[float, about("mean time of it in which the trainer waited for trajectories")]
    levers: tuple[Lever, ...]
    limits: tuple[Limit, ...]
    unknown: Annotated[tuple[str, ...], about("sentences about what is not known")]
    next: Annotated[tuple[str, ...], about("the command that shows more")]


def make_levers(run: Explanation, found: ranking.Levers) -> Levers:
    """Return the levers of a run."""
    return fill(
        Levers,
        found,
        run_id=run.run_id,
        state=run.state,
        levers=[fill(Lever, lever, text=wording.describe_lever(lever)) for lever in found.levers],
        limits=[Limit(kind=kind, process=instance, slots=slots) for kind, instance, slots in found.limits],
        next=[f"verl-otel explain {run_selection.name_run(run)}"],
    )
