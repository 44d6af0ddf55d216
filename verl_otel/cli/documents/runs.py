# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents of ``verl-otel runs --json`` and of ``verl-otel runs --prune --json``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from verl_otel.cli.run_overview import Overview
from verl_otel.semconv.run_state import CRASHED, ENDED, NO_END, WORDS

_STATES = ", ".join((*WORDS.values(), CRASHED, ENDED, NO_END))


class RunRow(msgspec.Struct, kw_only=True):
    """One run."""

    run: Annotated[str, msgspec.Meta(description="id of the run")]
    state: Annotated[str, msgspec.Meta(description=_STATES)]
    steps: Annotated[
        int | None, msgspec.Meta(description="steps of all attempts that have ended, failed ones included")
    ]
    last_step: Annotated[int | None, msgspec.Meta(description="number of the step that ended last")]
    last_step_seconds: Annotated[float | None, msgspec.Meta(description="its duration")]
    started: Annotated[float | None, msgspec.Meta(description="start of the first attempt, in seconds since 1970")]
    seconds: Annotated[
        float | None,
        msgspec.Meta(
            description="from the start of the first attempt to the end of the last one, or to its last step; "
            "while it is running, to its newest file"
        ),
    ]
    bytes: Annotated[int, msgspec.Meta(description="size of all files")]
    written: Annotated[float, msgspec.Meta(description="when a file was last written, in seconds since 1970")]
    folder: Annotated[str, msgspec.Meta(description="folder of the run")]


class PrunedRow(RunRow, kw_only=True):
    """One run that the limits select."""

    reason: Annotated[str, msgspec.Meta(description="why it is chosen")]
    deleted: Annotated[bool, msgspec.Meta(description="whether it was deleted")]
    kept: Annotated[str | None, msgspec.Meta(description="why it is not deleted; null: nothing keeps it")]


class Runs(msgspec.Struct):
    """What ``verl-otel runs --json`` prints."""

    runs: Annotated[list[RunRow], msgspec.Meta(description="the newest first")]
    next: Annotated[list[str], msgspec.Meta(description="the command that explains the newest run")]


class Pruned(msgspec.Struct):
    """What ``verl-otel runs --prune --json`` prints."""

    runs: Annotated[list[PrunedRow], msgspec.Meta(description="those that the limits select")]
    next: Annotated[list[str], msgspec.Meta(description="the command that lists what is left")]


def describe_run(run: Overview) -> RunRow:
    """Return a run as a row. Unknown values are None."""
    return RunRow(
        run=run.folder.name,
        state=run.state,
        steps=run.steps,
        last_step=run.last_step,
        last_step_seconds=run.last_step_seconds,
        started=run.started,
        seconds=run.seconds,
        bytes=run.size,
        written=run.written,
        folder=str(run.folder),
    )


def describe_choice(run: Overview, reason: str, *, deleted: bool, kept: str) -> PrunedRow:
    """Return a run that a limit selects as a row.

    Args:
        run: The run.
        reason: The limit that it exceeds.
        deleted: Whether it was deleted.
        kept: Why it is not; empty: nothing keeps it.
    """
    return PrunedRow(**msgspec.structs.asdict(describe_run(run)), reason=reason, deleted=deleted, kept=kept or None)
