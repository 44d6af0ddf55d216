# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Do the same with many things in several processes, in order, a few at a time."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

MAX_WORKERS: Final = 8
"""What one process can still take in from the others."""
AHEAD: Final = 1
"""How many results may wait for each worker: what bounds the memory."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def count() -> int:
    """Return how many workers are of use here; 0: all is done in this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return 0 if cores < 2 else min(cores, MAX_WORKERS)  # noqa: PLR2004 - one core has no use for a second process


def each(work: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Return the results in the order of the tasks, wherever they are done.

    Args:
        work: A function of a module, as other processes find it by its name; it depends on nothing but its task.
        tasks: What it is called with.
        workers: How many processes; 0: none but this. Where they cannot be started, or die, this one goes on alone.
    """
    upcoming = iter(tasks)
    if not workers:
        yield from map(work, upcoming)
        return
    running: deque[tuple[Task, Future[Result]]] = deque()
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), gc.disable)
    try:
        while True:
            _fill(pool, work, upcoming, running, workers * (1 + AHEAD))
            if not running:
                return
            task, future = running.popleft()
            try:
                result = future.result()
            except BrokenProcessPool:
                yield work(task)
                yield from map(work, [task for task, _ in running])
                yield from map(work, upcoming)
                return
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _fill(
    pool: ProcessPoolExecutor,
    work: Callable[[Any], Any],
    upcoming: Iterator[Any],
    running: deque[Any],
    room: int,
) -> None:
    while len(running) < room:
        try:
            task = next(upcoming)
        except StopIteration:
            return
        try:
            running.append((task, pool.submit(work, task)))
        except BrokenProcessPool as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            running.append((task, failed))
