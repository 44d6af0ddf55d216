# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs: what is measured from beginning to end, with everything that other threads do for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from benchmarks.case import Operation
from benchmarks.processes import TOP

_TIMED: Final = "import time\nbegin = time.perf_counter()\n{what}\nprint(time.perf_counter() - begin)\n"


def job(
    work: Callable[[int], None],
    count: int,
    *,
    before: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.process_time,
    close: Callable[[], None] | None = None,
) -> Operation:
    """Return the operation of doing a job as a whole.

    Args:
        work: Does it for a number of operations, and returns when all of it is done: drained, sent.
        count: Operations of a round.
        before: Called before each round, off the clock.
        clock: Seconds; of all threads of the process unless said otherwise.
        close: Ends what was started for it.
    """

    def run(number: int) -> float:
        if before is not None:
            before()
        begin = clock()
        work(number)
        return clock() - begin

    return Operation(run, count, close) if close is not None else Operation(run, count)


def script(source: str) -> Operation:
    """Return the operation of running a script in a Python of its own, which prints the seconds that it has measured."""

    def run(number: int) -> float:
        command = [sys.executable, "-c", source]
        return sum(
            float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
            for _ in range(number)
        )

    return Operation(run, 1)


def timed_script(what: str) -> Operation:
    """Return the operation of doing something in a fresh Python, timed from its first line."""
    return script(_TIMED.format(what=what))


def module(
    arguments: Sequence[str],
    count: int,
    figures: Iterable[str],
    read: Callable[[Mapping[str, float]], tuple[float, Sequence[float]]],
) -> Operation:
    """Return the operation of running a module in a Python of its own, which prints what it has found as JSON.

    Args:
        arguments: The module, and its own arguments.
        count: Operations of a round.
        figures: Names of what it finds besides the seconds.
        read: Takes what it has printed, and returns the seconds of a round and the figures in their order.

    Returns:
        The operation. It raises `RuntimeError` when it runs and the module fails.
    """
    kept: dict[str, list[float]] = {name: [] for name in figures}

    def run(_: int) -> float:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        seconds, values = read(json.loads(done.stdout.splitlines()[-1]))
        for name, value in zip(kept, values, strict=True):
            kept[name].append(value)
        return seconds

    return Operation(run, count, figures=lambda: kept, warm=False)
