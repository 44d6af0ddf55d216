# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run log: what it adds to a trajectory for the code that runs it, and to a process that is idle."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Variant
from benchmarks.jobs import module

_DEBUG: Final = f"{OURS}, debug"
_LEVELS: Final = (
    (BASELINE, "files, VERL_OTEL_LOG_LEVEL=off", "OFF"),
    (OURS, "files, VERL_OTEL_LOG_LEVEL=info, the default", "INFO"),
    (_DEBUG, "files, VERL_OTEL_LOG_LEVEL=debug: a record for each trajectory", "DEBUG"),
)
COUNT: Final = 500
REST: Final = 0.02
"""Seconds after a round in which the thread of telemetry writes, off the clock."""
SECONDS: Final = 4
PROCESSES: Final = 5
"""Of a case that waits for seconds: their interval holds the median with 94 %."""


def _trajectories(level: str) -> Operation:
    """Return the operation of recording a trajectory, as the CPU time of the thread that runs it."""
    import verl_otel
    from verl_otel import session
    from verl_otel.recording import run_log
    from verl_otel.semconv import logs

    if session.current_session() is None:  # one for all levels, in the folder of the process that measures
        verl_otel.init(exporters="file")

    def run(count: int) -> float:
        run_log.configure(getattr(logs, level), 0)
        begin = time.thread_time()
        for index in range(count):
            with verl_otel.trajectory("prompt", index):
                pass
        spent = time.thread_time() - begin
        time.sleep(REST)
        return spent

    return Operation(run, COUNT, verl_otel.shutdown)


def _idle(level: str) -> Operation:
    arguments = ["benchmarks.background", "file", "--log-level", level.lower(), "--seconds", str(SECONDS)]
    return module(arguments, 1, (), lambda output: (output["cpu"], ()))


CASES: Final = (
    Case(
        "run-log-trajectory",
        "what the run log adds to a trajectory, for the thread that runs it",
        tuple(Variant(name, text, partial(_trajectories, level)) for name, text, level in _LEVELS),
        (
            Target("run log, of a trajectory", 1),
            Target("run log at level DEBUG, of a trajectory", 1, ours=_DEBUG),
        ),
        unit="us",
        clock="cpu",
        rounds=11,
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
        processes=PROCESSES,
        quick=False,
    ),
)
