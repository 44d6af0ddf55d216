# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""256 tasks of one event loop that await a function which waits once: CPU time of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import repeat
from typing import Final

from benchmarks.backend import Backend, Function
from benchmarks.case import Case, Operation
from benchmarks.contenders import NOTHING, OPENTELEMETRY, PROMETHEUS, VERL_OTEL, variants
from benchmarks.jobs import job

TASKS: Final = 256
CALLS: Final = 16 * TASKS


async def wait() -> None:
    """Give the event loop a turn, as everything does that waits."""
    await asyncio.sleep(0)


def awaits(decorate: Callable[[Backend], Callable[[Function], Function]]) -> Callable[[Backend], Operation]:
    """Return the work of awaiting the decorated function in many tasks."""

    def build(backend: Backend) -> Operation:
        function = decorate(backend)(wait)

        async def call(count: int) -> None:
            for _ in repeat(None, count):
                await function()

        async def call_all(count: int) -> None:
            await asyncio.gather(*[call(count // TASKS) for _ in range(TASKS)])

        def run(count: int) -> None:
            asyncio.run(call_all(count))

        return job(run, CALLS, before=backend.empty, close=backend.close)

    return build


CASES: Final = (
    Case(
        "tasks-metrics",
        "CPU of an awaited call, metrics only, 256 tasks",
        variants(awaits(lambda backend: backend.timed), NOTHING, VERL_OTEL, OPENTELEMETRY, PROMETHEUS),
        clock="cpu",
        steady=False,
        rounds=7,
    ),
    Case(
        "tasks-span",
        "CPU of an awaited call, span and histogram, 256 tasks",
        variants(awaits(lambda backend: backend.traced), NOTHING, VERL_OTEL, OPENTELEMETRY),
        clock="cpu",
        steady=False,
        rounds=7,
        quick=False,
    ),
)
