# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The floor: what no wrapper in Python can be below. One frame, two readings of the clock, one append; no errors, no bound on memory."""

from __future__ import annotations

import inspect
import time
from typing import Any, Final

from benchmarks.backend import Backend, Function

_clock: Final = time.perf_counter


class Floor(Backend):
    """The least that timing a call takes on this machine, to judge the other figures by."""

    def __init__(self) -> None:
        self._buffer: list[float] = []

    def timed(self, function: Function) -> Function:
        """Wrap without anything that a backend needs besides."""
        append = self._buffer.append
        if inspect.iscoroutinefunction(function):

            async def timed_async() -> Any:
                begin = _clock()
                result = await function()
                append(_clock() - begin)
                return result

            return timed_async

        def timed() -> Any:
            begin = _clock()
            result = function()
            append(_clock() - begin)
            return result

        return timed

    def empty(self) -> None:
        """Forget what was measured."""
        self._buffer.clear()
