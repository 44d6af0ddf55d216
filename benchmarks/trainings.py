# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings of real verl on the CPU bed of the tests: how long a step takes, and what telemetry says of its own CPU time.

Each call of the tool waits a minute, as a test suite or a sandbox does, so a step takes about as long as a real one. Its time is taken from
the bed's own log, from its first trajectory to that of the next step: it holds all that happens in between, such as the trainer's logging.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.case import Unavailable
from benchmarks.processes import TOP
from verl_otel.analysis.io import run_files
from verl_otel.semconv import attributes as attr

WAIT: Final = 60
"""Seconds that a call of the tool waits."""
STEPS: Final = 8
"""Of a training that are measured: those that begin when all trainings have begun."""
PROMPTS: Final = 16
"""Of a step; two trajectories each."""
ENDLESS: Final = 1000
"""Steps, and passes through the data: it is ended when enough was measured."""
OVERHEAD: Final = "verl.otel.overhead"
_TESTS: Final = TOP / "tests" / "end_to_end"


class Window(NamedTuple):
    """A part of a training, in Unix seconds."""

    begin: float
    end: float


class Training:
    """A training of the CPU bed of the tests that runs in the background.

    Args:
        out: Where; is made.
        on: Whether telemetry is.

    Raises:
        Unavailable: This is no checkout, or verl is not installed.
    """

    def __init__(self, out: Path, *, on: bool) -> None:
        if not _TESTS.is_dir() or importlib.util.find_spec("verl") is None:
            raise Unavailable("needs verl, and the tests of a checkout")
        if sys.path[0] != str(TOP):  # verl installs a package of the name ``tests``, too
            sys.path.insert(0, str(TOP))
        runner: Any = importlib.import_module("tests.end_to_end.bed_run")
        # Ours is killed when the benchmarks are interrupted, and a training in a session of its own would go on.
        leash = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
        self.out, self._on, self._ends = out, on, ExitStack()
        started = runner.start(
            out,
            prefix=leash,
            steps=ENDLESS,
            tool=True,
            overrides=[
                "trainer.test_freq=-1",
                f"trainer.total_epochs={ENDLESS}",
                f"data.train_batch_size={PROMPTS}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
            ],
            VERL_OTEL_ENABLED=int(on),
            VERL_OTEL_RUN_DIR=out / "runs",
            CPU_BED_PLANT=f"tool:{WAIT}:*",
        )
        self._training, self._process = self._ends.enter_context(started)

    def close(self) -> None:
        """End it."""
        self._ends.close()

    def wait_for_rollouts(self) -> float:
        """Return the Unix time when its first trajectory has ended.

        Raises:
            RuntimeError: The training ended before.
        """
        while not self._read_begins():
            self._check()
        return time.time()

    def wait_for_step(self, after: float) -> Window:
        """Return the first step that began after a Unix time, once the first trajectory of the next one has ended.

        Raises:
            RuntimeError: The training ended before, or telemetry is on where it should be off.
        """
        while len(begins := [begin for begin in self._read_begins() if begin > after]) < 2:  # noqa: PLR2004 - its begin and its end
            self._check()
        if self._on != (self.out / "runs").exists():
            raise RuntimeError(f"telemetry is {'not ' if self._on else ''}on: the measurement is invalid")
        return Window(begins[0], begins[1])

    def _check(self) -> None:
        """Wait a second; the training still runs then."""
        time.sleep(1)
        if self._process.poll() is not None:
            raise RuntimeError(self._training.log[-3000:])

    def _read_begins(self) -> Sequence[float]:
        """Return when the first trajectory of each step began. The last line may be written right now."""
        path = self.out / "log" / "trajectory.jsonl"
        lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
        begins: dict[int, float] = {}
        for trajectory in map(json.loads, lines):
            step = int(trajectory["step"])
            begins[step] = min(trajectory["start"], begins.get(step, trajectory["start"]))
        return [begins[step] for step in sorted(begins)]


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
