# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs: what runs in a fresh Python, from its first line or as a module that measures itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from benchmarks.case import Operation
from benchmarks.processes import TOP

_TIMED: Final = "import time\nbegin = time.perf_counter()\n{what}\nprint(time.perf_counter() - begin)\n"


def timed_script(what: str) -> Operation:
    """Return the operation of doing something in a fresh Python, timed from its first line."""
    command = [sys.executable, "-c", _TIMED.format(what=what)]

    def run(number: int) -> float:
        return sum(
            float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
            for _ in range(number)
        )

    return Operation(run, 1)


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
