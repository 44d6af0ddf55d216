# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh processes: a single one can be slow at one operation for its whole life, so no figure comes from one alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.case import Case

TOP: Final = Path(__file__).resolve().parent.parent
_HIDDEN: Final = ("VERL_OTEL_", "OTEL_", "PROMETHEUS_")


class Failed(Exception):  # noqa: N818 - the process has failed
    """A process ended without a result; the message is the end of its output."""


@dataclass(frozen=True)
class Measured:
    """What one process found: seconds of one operation by variant and round."""

    seconds: Mapping[str, Sequence[float]]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Variant -> why it was not measured."""
    figures: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """Variant -> what else its rounds found."""


def measure(
    case: Case,
    *,
    rounds: int,
    first: int = 0,
    variants: Sequence[str] = (),
    prefix: Sequence[str] = ("-m", "benchmarks.child"),
) -> Measured:
    """Measure a case in a new process.

    Args:
        case: What is measured.
        rounds: Rounds in that process.
        first: Number of the variant that begins.
        variants: Which of its variants; all if empty.
        prefix: What Python runs.

    Raises:
        Failed: The process broke or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "found.json"
        chosen = [argument for variant in variants for argument in ("--variant", variant)]
        numbers = ["--rounds", str(rounds), "--first", str(first)]
        command = [sys.executable, *prefix, case.name, *numbers, "--out", str(out), *chosen]
        code, output = _run(command, folder, case.seconds)
        if code is None:
            raise Failed(f"{case.name}: no result within {case.seconds:.0f} s")
        if code or not out.exists():
            raise Failed(f"{case.name}: exit code {code}\n{output[-2000:]}")
        result = json.loads(out.read_text("utf-8"))
    return Measured(result["seconds"], result["missing"], result["figures"])


def measure_all(
    cases: Sequence[Case],
    *,
    processes: int,
    rounds: int,
    progress: Callable[[str], None],
    deadline: float = float("inf"),
) -> list[tuple[Case, list[Measured], list[str]]]:
    """Measure cases in turns, one process of each after the other: a busy quarter of an hour hits all of them alike.

    Args:
        cases: What is measured.
        processes: Turns.
        rounds: Rounds of each process.
        progress: Told what is being done.
        deadline: Monotonic time after which no further process begins.

    Returns:
        Each case, the results of its processes, and the output of failed ones. An interruption ends it like the deadline.
    """
    measured: dict[str, list[Measured]] = {case.name: [] for case in cases}
    failures: dict[str, list[str]] = {case.name: [] for case in cases}
    found = [(case, measured[case.name], failures[case.name]) for case in cases]
    for turn in range(processes):
        for number, case in enumerate(cases):
            if len(failures[case.name]) > 1 or turn >= (case.processes or processes):
                continue  # it will not work the next time, or there were enough
            if time.monotonic() > deadline:
                progress("out of time: what is missing is not measured")
                return found
            progress(f"process {turn + 1} of {processes}, case {number + 1} of {len(cases)}: {case.name}")
            try:
                measured[case.name].append(measure(case, rounds=rounds, first=turn))
            except Failed as failure:
                failures[case.name].append(str(failure))
                progress(f"failed: {failure}")
            except KeyboardInterrupt:
                progress("interrupted: what is missing is not measured")
                return found
    return found


def _run(command: Sequence[str], folder: str, seconds: float) -> tuple[int | None, str]:
    """Run a command and return its exit code, None if it took too long, and its output.

    The output goes to a file: processes that it leaves behind, such as Ray's, would hold a pipe open. They are killed with its session.
    """
    path = Path(folder) / "said.txt"
    with path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=TOP, env=_environment(folder), stdout=log, stderr=log, start_new_session=True
        )
        try:
            ended = _wait(process.pid, time.monotonic() + seconds)
        finally:
            os.killpg(
                process.pid, signal.SIGKILL
            )  # not waited for yet, so the number still is of this process and its own
            code = process.wait()
    return code if ended else None, path.read_text("utf-8", "replace")


def _wait(process: int, deadline: float) -> bool:
    """Return whether a process ends before a monotonic time; it stays to be waited for."""
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of a process that measures: without settings of any telemetry, and with a home for what it writes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    return {
        **kept,
        "VERL_OTEL_RUN_DIR": folder,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TOP), kept.get("PYTHONPATH")))),
    }
