# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Interleaved rounds in one process: each round measures every variant once, in rotating order, so that a slow second hits all of them.

A statement is compiled into a loop of its own, ten times in a row: the loop costs about a nanosecond a statement, and nothing is called in
between. CPython removes no call and no attribute, so nothing that is measured is optimised away.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from benchmarks.case import Operation

_clock: Final = time.perf_counter
UNROLLED: Final = 10
"""Statements in one pass of a loop."""
BATCH: Final = 1000
"""Statements between two calls of ``before``: as many as our buffers hold until the caller folds them."""
ROUND_SECONDS: Final = 0.001
"""How long a round of one variant takes, about: shorter than a time slice, so that some rounds are undisturbed on a busy machine."""
MOST: Final = 200_000
"""Operations of a round at most."""


def compile_loop(statement: str, names: Mapping[str, Any]) -> Callable[[Iterable[None], Callable[[], float]], float]:
    """Return a function that runs a statement ten times for each item and returns the seconds of all of them.

    Args:
        statement: Python, one or more lines.
        names: What it may use; they become local names, which are the fastest that Python has.
    """
    body = "\n".join(f"            {line}" for line in statement.strip().splitlines() * UNROLLED)
    source = (
        f"def make({', '.join(names)}):\n"
        "    def loop(items, clock):\n"
        "        begin = clock()\n"
        "        for _ in items:\n"
        f"{body}\n"
        "        return clock() - begin\n"
        "    return loop\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<benchmark>", "exec"), namespace)  # noqa: S102 - statements of the cases
    loop: Callable[[Iterable[None], Callable[[], float]], float] = namespace["make"](**names)
    return loop


def loop(
    statement: str,
    *,
    before: Callable[[], None] | None = None,
    close: Callable[[], None] | None = None,
    **names: Any,
) -> Operation:
    """Return the operation of running a statement.

    Args:
        statement: What is measured.
        before: Called before each `BATCH`, off the clock: takes away what waits to be drained.
        close: Ends what was started for it.
        **names: What the statement may use.
    """
    passes = compile_loop(statement, names)

    def run(count: int) -> float:
        seconds = 0.0
        for begin in range(0, count, BATCH):
            if before is not None:
                before()
            seconds += passes(repeat(None, max(1, min(BATCH, count - begin) // UNROLLED)), _clock)
        return seconds

    return Operation(run, close=close) if close is not None else Operation(run)


def calibrate(operation: Operation, seconds: float = ROUND_SECONDS) -> int:
    """Return how many operations take about ``seconds``, a multiple of `UNROLLED`."""
    if operation.count:
        if operation.warm:
            operation.run(operation.count)  # imports, caches and pools are there when the first round begins
        return operation.count
    count = 2 * UNROLLED
    while True:
        took = operation.run(count)
        if took > seconds / 4 or count >= MOST:
            break
        count *= 2
    wanted = min(MOST, count * seconds / max(took, 1e-9))
    if wanted > BATCH:
        return int(wanted / BATCH) * BATCH
    return max(UNROLLED, int(wanted / UNROLLED) * UNROLLED)


def measure(operations: Mapping[str, Operation], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of one operation, round by round, for every variant.

    Args:
        operations: The variants by name; the first round begins with the first one.
        rounds: How many rounds.
    """
    counts = {name: calibrate(operation) for name, operation in operations.items()}
    seconds: dict[str, list[float]] = {name: [] for name in operations}
    gc.collect()
    gc.freeze()  # what the contenders have loaded is not walked through again and again
    for order in _orders(list(operations), rounds):
        for name in order:
            seconds[name].append(operations[name].run(counts[name]) / counts[name])
    gc.unfreeze()
    return seconds


def _orders(names: Sequence[str], rounds: int) -> Iterator[Sequence[str]]:
    for number in range(rounds):
        begin = number % len(names)
        yield [*names[begin:], *names[:begin]]
