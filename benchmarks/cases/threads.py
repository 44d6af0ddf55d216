# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Eight threads that call a timed function at once: CPU time of a call. What it costs more than in one thread is contention."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from threading import Thread
from typing import Final

from benchmarks.backend import Backend
from benchmarks.case import Case, Operation
from benchmarks.cases.decorators import work
from benchmarks.contenders import NOTHING, OPENTELEMETRY, PROMETHEUS, VERL_OTEL, variants
from benchmarks.jobs import job

THREADS: Final = 8
CALLS: Final = 8000


def calls_in_threads(threads: int) -> Callable[[Backend], Operation]:
    """Return the work of calling a timed function from some threads."""

    def build(backend: Backend) -> Operation:
        function = backend.timed(work)

        def call(count: int) -> None:
            for _ in repeat(None, count):
                function()

        def run(count: int) -> None:
            workers = [Thread(target=call, args=(count // threads,)) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        return job(run, CALLS, before=backend.empty, close=backend.close)

    return build


def _case(threads: int) -> Case:
    return Case(
        f"threads-{threads}",
        f"CPU of a timed call, {threads} thread{'s' * (threads > 1)}",
        variants(calls_in_threads(threads), NOTHING, VERL_OTEL, OPENTELEMETRY, PROMETHEUS),
        clock="cpu",
        steady=False,
        rounds=7,
        quick=threads > 1,
    )


CASES: Final = (_case(1), _case(THREADS))
