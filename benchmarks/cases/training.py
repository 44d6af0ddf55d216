# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A step of a minute of real verl, with telemetry, without it, and once more without it, which shows what can be seen.

The three trainings run side by side: they wait for most of a step, and what else the machine does affects all of them. One begins when the
first rollouts of the one before have ended, so their updates do not meet. Steps that run at the same time are compared.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import trainings
from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Variant

AGAIN: Final = "off, again"
ALL: Final = "telemetry's CPU, all processes"
TRAINER: Final = "telemetry's CPU, trainer"
RECORDING: Final = "of it recording"
FIGURES: Final = {ALL: "%", TRAINER: "%", RECORDING: "%"}
"""In percent of a core: the CPU of all processes is summed, whatever their number."""
_ready: Final[list[float]] = []
"""When the first rollouts of each training of this process had ended, in Unix seconds."""


def training(*, on: bool) -> Operation:
    """Return the operation of a training's next step; it begins with the training.

    Args:
        on: Whether telemetry is.
    """
    folder = Path(tempfile.mkdtemp(prefix="training-", dir=os.environ.get("VERL_OTEL_RUN_DIR")))
    begun = trainings.Training(folder / "out", on=on)
    _ready.append(begun.wait_for_rollouts())
    windows: list[trainings.Window] = []

    def run(_: int) -> float:
        windows.append(begun.wait_for_step(windows[-1].begin if windows else max(_ready)))
        return windows[-1].end - windows[-1].begin

    def find_figures() -> Mapping[str, Sequence[float]]:
        if not on:
            return {}
        whole = trainings.Window(windows[0].begin, windows[-1].end)
        return {name: [100 * share] for name, share in _shares(begun.out, whole).items()}

    return Operation(run, 1, begun.close, find_figures, warm=False)


def _shares(out: Path, window: trainings.Window) -> dict[str, float]:
    by_role = trainings.account(out, window)
    return {
        ALL: sum(sum(kinds.values()) for kinds in by_role.values()),
        TRAINER: sum(by_role.get("trainer", {}).values()),
        RECORDING: sum(kinds.get("recording", 0.0) for kinds in by_role.values()),
    }


CASES: Final = (
    Case(
        "training",
        "a step of a minute of real verl on the CPU bed, 32 trajectories with a tool",
        (
            Variant(BASELINE, "the plug-in installed, the switch off", lambda: training(on=False)),
            Variant(AGAIN, "the same once more", lambda: training(on=False)),
            Variant(OURS, "the switch on, everything else as it comes", lambda: training(on=True)),
        ),
        (Target("telemetry's CPU, by accounting, in % of a core, all processes of the CPU bed", 1.5, figure=ALL),),
        unit="s",
        steady=False,
        rounds=trainings.STEPS,
        suite="end_to_end",
        seconds=3900,
        figures=FIGURES,
        null=AGAIN,
    ),
)
