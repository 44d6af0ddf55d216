# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A step of real verl, with telemetry and without, in interleaved pairs; and the same without against without, which shows what can be seen.

A step of the bed takes a second or two, one of a real training minutes: what telemetry costs by the second is the same share of both, and
what it costs by the step, the trajectory and the token is a far larger one here.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from benchmarks import trainings
from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Variant

AGAIN: Final = "off, again"
ALL: Final = "telemetry's CPU, all processes"
TRAINER: Final = "telemetry's CPU, trainer"
RECORDING: Final = "of it recording"
FIGURES: Final = {ALL: "%", TRAINER: "%", RECORDING: "%"}
"""In percent of the step's time on the clock: the CPU of all processes is summed, whatever their number."""


def training(*, on: bool) -> Operation:
    """Return the operation of training.

    Args:
        on: Whether telemetry is.
    """
    bed = trainings.Bed()
    figures: dict[str, list[float]] = {}

    def run(_: int) -> float:
        folder = Path(tempfile.mkdtemp(prefix="training-", dir=os.environ.get("VERL_OTEL_RUN_DIR")))
        out = bed.train(folder / "out", on=on)
        window = trainings.find_window(out)
        if on:
            for name, share in _shares(out, window).items():
                figures.setdefault(name, []).append(100 * share)
        return window.step

    return Operation(run, 1, figures=lambda: figures, warm=False)


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
        "a step of real verl on the CPU bed",
        (
            Variant(BASELINE, "the plug-in installed, the switch off", lambda: training(on=False)),
            Variant(AGAIN, "the same once more", lambda: training(on=False)),
            Variant(OURS, "the switch on, everything else as it comes", lambda: training(on=True)),
        ),
        (Target("telemetry's CPU, by accounting, in % of a step on the CPU bed", 0.1, figure=ALL),),
        unit="ms",
        steady=False,
        rounds=1,
        suite="end_to_end",
        seconds=3900,
        figures=FIGURES,
        null=AGAIN,
    ),
)
