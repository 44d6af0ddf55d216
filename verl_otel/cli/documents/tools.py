# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``--json`` of ``verl-otel check``, ``discover`` and ``guards``."""

from __future__ import annotations

from typing import Annotated

from verl_otel.analysis.document import Document, about
from verl_otel.cli.documents.base import Answer, RunId


class Finding(Document):
    """What was checked."""

    state: Annotated[str, about("ok, note, fail")]
    subject: str
    text: str
    advice: str = ""


class Check(Answer):
    """Whether training will be recorded."""

    checks: tuple[Finding, ...]
    next: Annotated[tuple[str, ...], about("what to call when the advice was followed")]


class Target(Document):
    """What Prometheus can scrape."""

    targets: Annotated[tuple[str, ...], about("addresses")]
    labels: dict[str, str]
    state: str
    detail: str


class Discover(Answer):
    """The targets of the runs."""

    targets: tuple[Target, ...]
    next: Annotated[tuple[str, ...], about("the command that collects from the targets, or says why there is none")]


class GuardStop(Document):
    """Where it would have stopped the run."""

    step: int
    text: str


class Guards(Answer):
    """What guards would have done in a run."""

    run_id: RunId
    steps: Annotated[int, about("steps with scalars")]
    guards: Annotated[
        dict[str, GuardStop | None],
        about(
            "what would have stopped the run; null: nothing, or it is not known: steps are too few, or have none of its scalars"
        ),
    ]
    best_step: Annotated[int | None, about("of those that verl saved, if that is known")]
    save_frequency: Annotated[int | None, about("trainer.save_freq")]
    next: Annotated[tuple[str, ...], about("the command that shows more")]
