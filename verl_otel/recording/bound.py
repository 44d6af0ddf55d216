# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Counters bound to their labels: adding is one append to a list, after a look at its length.

``list.append`` itself would cost an eighth, but then nobody looks: what is added in a tight loop, or while no drain thread lives, would
take memory without end. As with every series the caller who finds a full buffer folds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from verl_otel.recording.store import Store

if TYPE_CHECKING:
    from verl_otel.recording.series import Counter

CHUNK: Final = 1000
"""Numbers in a buffer at which the caller folds them himself, if nobody folds just then."""


class Buffer(list[float]):
    """What was added to one counter and not folded yet. It ignores what is added; `BoundCounter` does not.

    The two exchange their class while recording is switched: nothing else has to be looked at when a number is added.
    """

    __slots__ = ("series",)

    series: Counter

    def add(self, value: float) -> None:
        """Ignore a number: recording is off, or the name belongs to another kind of instrument."""

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

        Call it as a method: what was read before recording was switched is not switched.
        """
        if len(self) < CHUNK:
            self.append(value)
        else:
            self.series.spill(value)


_bound: dict[Counter, Buffer] = {}


def bind(series: Counter) -> Buffer:
    """Return the buffer of a counter, to add to."""
    _bound[series] = series.buffer
    switch(on=Store.on)
    return series.buffer


def switch(*, on: bool) -> None:
    """Have every bound counter record, or ignore what is added."""
    for buffer in list(_bound.values()):
        buffer.__class__ = BoundCounter if on else Buffer
