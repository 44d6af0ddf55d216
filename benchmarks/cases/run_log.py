# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run log: what it adds to a trajectory for the code that runs it, and to a process that is idle."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Variant
from benchmarks.jobs import module

_LEVELS: Final = (
    (BASELINE, "files, VERL_OTEL_LOG_LEVEL=off", "off"),
    (OURS, "files, VERL_OTEL_LOG_LEVEL=info, the default", "info"),
    (f"{OURS}, debug", "files, VERL_OTEL_LOG_LEVEL=debug: a record for each trajectory", "debug"),
)
_LEVEL: Final = "VERL_OTEL_LOG_LEVEL"
COUNT: Final = 500
REST: Final = 0.02
"""Seconds after a round in which the thread of telemetry writes, off the clock."""


def _trajectories(level: str) -> Operation:
    """Return the operation of recording a trajectory, as the CPU time of the thread that runs it."""
    os.environ[_LEVEL] = level
    import verl_otel

    folder = tempfile.TemporaryDirectory()
    verl_otel.init(exporters="file", run_dir=folder.name)

    def run(count: int) -> float:
        begin = time.thread_time()
        for index in range(count):
            with verl_otel.trajectory("prompt", index):
                pass
        spent = time.thread_time() - begin
        time.sleep(REST)
        return spent

    def close() -> None:
        verl_otel.shutdown()
        folder.cleanup()

    return Operation(run, COUNT, close)


def _idle(level: str) -> Operation:
    os.environ[_LEVEL] = level
    arguments = ["benchmarks.background", "file", "--trajectories", "0"]
    return module(arguments, 1, (), lambda output: (output["cpu"], ()))


CASES: Final = (
    Case(
        "run-log-trajectory",
        "what the run log adds to a trajectory, for the thread that runs it",
        tuple(Variant(name, text, partial(_trajectories, level)) for name, text, level in _LEVELS),
        (Target("run log, of a trajectory", 1),),
        unit="us",
        suite="total",
        rounds=41,
    ),
    Case(
        "run-log-idle",
        "what the run log adds to an idle process: CPU of all threads of telemetry, a second",
        tuple(Variant(name, text, partial(_idle, level)) for name, text, level in _LEVELS[:2]),
        (Target("run log, of an idle second", 0.5),),
        unit="ms",
        clock="cpu",
        steady=False,
        rounds=1,
        suite="total",
    ),
)
