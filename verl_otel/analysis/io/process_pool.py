# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Maps a function over tasks in several processes, in order, with a bounded number of results in flight."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

MAX_WORKERS: Final = 8
"""Maximum number of workers whose results one process can consume."""
AHEAD: Final = 1
"""Number of results that may wait per worker: the limit of the memory used."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def count() -> int:
    """Return the useful number of workers; 0: all work is done in this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return 0 if cores < 2 else min(cores, MAX_WORKERS)  # noqa: PLR2004 - one core has no use for a second process


def map_ordered(work: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Return the results in the order of the tasks.

    Args:
        work: A module-level function (workers import it by name); it depends only on its task.
        tasks: Its arguments.
        workers: Number of processes; 0: only this one. If they cannot be started, or die, this process continues alone.
    """
    upcoming = iter(tasks)
    if not workers:
        yield from map(work, upcoming)
        return
    import multiprocessing  # here: a process that uses no other ones saves 2 MB
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

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
    pool: ProcessPoolExecutor, work: Callable[[Any], Any], upcoming: Iterator[Any], running: deque[Any], room: int
) -> None:
    from concurrent.futures import Future
    from concurrent.futures.process import BrokenProcessPool

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
