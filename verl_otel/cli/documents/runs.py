# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents of ``verl-otel runs --json`` and of ``verl-otel runs --prune --json``."""

from __future__ import annotations

from typing import Annotated

from verl_otel.analysis.document import Document, about
from verl_otel.cli.documents.base import STATES, Answer


class RunRow(Document):
    """The newest first."""

    run: Annotated[str, about("id of the run")]
    project: Annotated[str, about("empty: unknown")]
    experiment: Annotated[str, about("empty: unknown")]
    state: Annotated[str, about(STATES)]
    steps: Annotated[int | None, about("steps of all attempts that have ended, failed ones included")]
    planned: Annotated[int | None, about("steps that the newest training has planned")]
    last_step: Annotated[int | None, about("number of the step that ended last")]
    last_step_seconds: Annotated[float | None, about("its duration")]
    reward: Annotated[float | None, about("mean reward that was reported last")]
    verdict: Annotated[str, about("what held a step last, as the training has logged it; empty: nothing, or unknown")]
    started: Annotated[float | None, about("start of the first attempt, in seconds since 1970")]
    seconds: Annotated[
        float | None,
        about(
            "from the start of the first attempt to the end of the last one, or to its last step; "
            "while it is running, to its newest file"
        ),
    ]
    bytes: Annotated[int, about("size of all files")]
    written: Annotated[float, about("when a file was last written, in seconds since 1970")]
    folder: Annotated[str, about("folder of the run")]


class PrunedRow(RunRow):
    """Those that the limits select."""

    reason: Annotated[str, about("why it is chosen")]
    deleted: Annotated[bool, about("whether it was deleted")]
    kept: Annotated[str | None, about("why it is not deleted; null: nothing keeps it")]


class Runs(Answer):
    """The runs, the newest first."""

    runs: tuple[RunRow, ...]
    next: Annotated[tuple[str, ...], about("the command that explains the newest run")]


class Pruned(Answer):
    """The runs that limits select."""

    runs: tuple[PrunedRow, ...]
    next: Annotated[tuple[str, ...], about("the command that lists what is left")]
