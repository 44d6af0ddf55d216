# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings of real verl on the CPU bed of the tests: how long a step takes, and what telemetry says of its own CPU time.

A step's time is taken from the bed's own log, from the first trajectory of the second step to that of the last one. So it holds all that
happens in between, such as the trainer's logging, and not the start.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.case import Unavailable
from benchmarks.processes import TOP
from verl_otel.analysis.io import run_files
from verl_otel.semconv import attributes as attr

STEPS: Final = 40
"""Of a training: a minute in which telemetry tells several times what it has taken."""
EPOCHS: Final = 3
"""The data of the bed are enough for 16 steps each."""
OVERHEAD: Final = "verl.otel.overhead"
_TESTS: Final = TOP / "tests" / "end_to_end"


class Window(NamedTuple):
    """A part of a training, in Unix seconds."""

    begin: float
    end: float
    steps: int

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return (self.end - self.begin) / self.steps


class Bed:
    """The CPU bed of the tests.

    Raises:
        Unavailable: This is no checkout, or verl is not installed.
    """

    def __init__(self) -> None:
        if not _TESTS.is_dir() or importlib.util.find_spec("verl") is None:
            raise Unavailable("needs verl, and the tests of a checkout")
        if sys.path[0] != str(TOP):  # verl installs a package of the name ``tests``, too
            sys.path.insert(0, str(TOP))
        self._runner: Any = importlib.import_module("tests.end_to_end.bed_run")

    def train(self, out: Path, *, on: bool) -> Path:
        """Train and return the folder with what the training has left.

        Args:
            out: Where; is made.
            on: Whether telemetry is.

        Raises:
            RuntimeError: The training failed.
        """
        # Ours is killed when the benchmarks are interrupted, and a training in a session of its own would go on.
        leash = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
        training = self._runner.train(
            out,
            prefix=leash,
            steps=STEPS,
            overrides=["trainer.test_freq=-1", f"trainer.total_epochs={EPOCHS}"],
            VERL_OTEL_ENABLED=int(on),
            VERL_OTEL_RUN_DIR=out / "runs",
        )
        if training.returncode:
            raise RuntimeError(training.log[-3000:])
        if on != (out / "runs").exists():
            raise RuntimeError(f"telemetry is {'not ' if on else ''}on: the measurement is invalid")
        folder: Path = training.out
        return folder


def find_window(out: Path) -> Window:
    """Return the time between the first trajectories of the second and of the last step.

    Args:
        out: Folder of a training.

    Raises:
        ValueError: It has fewer than three steps.
    """
    begins: dict[int, float] = {}
    for line in (out / "log" / "trajectory.jsonl").read_text("utf-8").splitlines():
        trajectory = json.loads(line)
        if not trajectory["validate"] and trajectory["step"] is not None:
            step = int(trajectory["step"])
            begins[step] = min(trajectory["start"], begins.get(step, trajectory["start"]))
    steps = sorted(begins)[1:]
    if len(steps) < 2:  # noqa: PLR2004 - the ends of a window
        raise ValueError(f"a window needs three steps, there are {len(begins)}")
    return Window(begins[steps[0]], begins[steps[-1]], len(steps) - 1)


def account(out: Path, window: Window) -> Mapping[str, Mapping[str, float]]:
    """Return the CPU seconds of telemetry in a second of the training, by role of the process and kind of work.

    Its own counter, ``verl.otel.overhead``: the clocks of its threads, and recording by the number of its events. For each process it is the
    slope from its first point in the window to its last one, which leaves out what starting takes. One with a single point in the window counts
    with all that it ever took: too much, and never too little.

    Args:
        out: Folder of a training with telemetry.
        window: When.

    Raises:
        ValueError: The training has said nothing of it.
    """
    by_role: dict[str, dict[str, float]] = {}
    for path in sorted((out / "runs").glob("*/metrics-*.jsonl")):
        curves: dict[str, list[tuple[float, float]]] = {}
        extent = run_files.Extent(path, 0, path.stat().st_size)
        for _, points in run_files.read_points([extent], run_files.Writers(), []):
            for point in points:
                if point.name == OVERHEAD:
                    kind = dict(point.labels)[attr.REASON]
                    curves.setdefault(kind, []).append((point.time_ns / 1e9, point.value))
        sums = by_role.setdefault(path.name.split("-")[1], {})
        for kind, curve in curves.items():
            sums[kind] = sums.get(kind, 0.0) + _slope(curve, window)
    if not any(by_role.values()):
        raise ValueError(f"no {OVERHEAD} in the files of the training")
    return by_role


def _slope(curve: Sequence[tuple[float, float]], window: Window) -> float:
    """Return by how much a cumulative sum rises in a second."""
    inside = [point for point in curve if window.begin <= point[0] <= window.end]
    if len(inside) < 2:  # noqa: PLR2004 - the ends of a line
        return curve[-1][1] / (window.end - window.begin)
    (begin, before), (end, after) = inside[0], inside[-1]
    return (after - before) / (end - begin)
