# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Counters bound to their labels: adding checks the length of a list and appends to it.

``list.append`` alone would cost an eighth, but without the check a tight loop, or a process without a drain thread, would use unlimited
memory. As with every series, the caller that finds the buffer full folds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from verl_otel.recording.state import RECORDER

if TYPE_CHECKING:
    from verl_otel.recording.series import Counter

CHUNK: Final = 1000
"""Length of a buffer from which the caller folds it, if no other thread does."""


class Buffer(list[float]):
    """Values that were added to one counter and not folded yet. Ignores what is added; `BoundCounter` does not.

    Switching recording exchanges the class of a buffer: adding needs no check whether recording is on, which would add a third to its cost.
    """

    __slots__ = ("series",)

    series: Counter

    def add(self, value: float) -> None:
        """Ignore a number: recording is off, or the name is taken by another kind of instrument."""

    def __reduce__(self) -> tuple[Any, ...]:
        series = getattr(self, "series", None)
        return (bind, (series,)) if series is not None else (Buffer, ())


class BoundCounter(Buffer):
    """One series of a counter. Made by ``verl_otel.counter(...).bind(...)``.

    Example:
        PROMPT = verl_otel.counter("my.tokens", unit="{token}").bind(kind="prompt")
        PROMPT.add(128)
    """

    __slots__ = ()

    def add(self, value: float) -> None:
        """Add a plain number that is not negative. Never blocks, never raises.

        Call it as a method: a reference to ``add`` itself does not follow when recording is switched.
        """
        if len(self) < CHUNK:
            self.append(value)
        else:
            self.series.spill(value)


_bound: dict[Counter, Buffer] = {}


def bind(series: Counter) -> Buffer:
    """Return the buffer of a counter."""
    _bound[series] = series.buffer
    switch(on=RECORDER.on)
    return series.buffer


def switch(*, on: bool) -> None:
    """Switch every bound counter on or off."""
    for buffer in list(_bound.values()):
        buffer.__class__ = BoundCounter if on else Buffer
