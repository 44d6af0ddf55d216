# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Leaves: timed calls that are too many to be spans, of which a few are: the slowest, the failed and one that is drawn.

A call compares its duration with a threshold and makes nothing; the span of a call that is kept is made when it is over. So a leaf
is never current: what opens inside it lies beside it, below the span around both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from verl_otel.recording import registry
from verl_otel.recording.context import KERNEL
from verl_otel.recording.identity import without_leaked
from verl_otel.recording.series import CHUNK
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span, clock, make_span
from verl_otel.recording.store import Store, take
from verl_otel.recording.values import is_cancellation

if TYPE_CHECKING:
    from verl_otel.recording.series import Histogram

SLOWEST: Final = 4
"""Calls of one name that are kept between two drains because they are the slowest."""
MAX_FAILED: Final = 16
"""Failed calls of one name that are kept between two drains; all of them are in the metrics."""
NEVER: Final = math.inf
NEXT: Final = -1.0
"""Thresholds: no call is kept, and the next one is, whatever it takes."""


class Leaf:
    """Where the calls of one timer are measured, and which of them are kept. Stands for its histogram in a wrapper."""

    __slots__ = ("_cancelled", "_drawn", "_failed", "_slowest", "buffer", "series", "site", "threshold")

    def __init__(self, series: Histogram) -> None:
        self.series = series
        self.buffer = series.buffer
        self.site = Site("timed", series.instrument.name, series=series)
        self.threshold = NEXT
        """Seconds beyond which a call is kept. Written without a lock: a call more or less is kept, and none is lost."""
        self._drawn: list[Span] = []
        self._slowest: list[Span] = []
        self._failed: list[Span] = []
        self._cancelled: list[Span] = []

    def spill(self, seconds: float) -> None:
        """Take a call that is to be kept, or that found the buffer full. Never raises."""
        if len(self.buffer) < CHUNK:
            self.buffer.append(seconds)
        else:
            self.series.spill(seconds)
        if seconds > self.threshold:
            self._keep(seconds)

    def record(self, seconds: float) -> None:
        """Take a call that ended now. Never blocks, never raises."""
        if seconds < self.threshold and len(self.buffer) < CHUNK:
            self.buffer.append(seconds)
        else:
            self.spill(seconds)

    def fail(self, seconds: float, error: BaseException) -> None:
        """Take a call that ended now with an exception. It is kept even where leaves are too dear: failures are few."""
        if not Store.on:
            return
        if isinstance(error, GeneratorExit):  # its consumer has had enough: nothing failed
            self.record(seconds)
            return
        registry.record_failure(self.series, seconds, error)
        kept = self._cancelled if is_cancellation(error) else self._failed
        if len(kept) < MAX_FAILED:
            span = self._make(seconds)
            span.fail(error)
            kept.append(span)

    def take(self, *, kept: bool = True) -> list[Span]:
        """Take the spans that are kept, and begin anew. Call under the drain lock.

        Args:
            kept: Whether calls are kept from now on.
        """
        self.threshold = NEXT if kept else NEVER
        slowest = sorted(take(self._slowest), key=_length, reverse=True)[:SLOWEST]
        failed = take(self._failed) + take(self._cancelled)  # a cancellation takes the room that failures leave
        return take(self._drawn) + slowest + failed[:MAX_FAILED]

    def _keep(self, seconds: float) -> None:
        if self.threshold == NEXT:
            self.threshold = 0.0
            self._drawn.append(self._make(seconds))
            return
        slowest = self._slowest
        slowest.append(self._make(seconds))
        if len(slowest) >= SLOWEST:
            best = sorted(slowest, key=_length, reverse=True)[:SLOWEST]
            self.threshold = max(self.threshold, _length(best[-1]))
            if len(slowest) > 4 * SLOWEST:  # ever slower calls
                slowest[:] = best

    def _make(self, seconds: float) -> Span:
        """Return the span of a call that ended now, where it was made."""
        span = make_span(self.site)
        span.outer = without_leaked(KERNEL.get())
        span.stop = clock()
        span.start = span.stop - seconds
        return span

    def __reduce__(self) -> tuple[Any, ...]:
        return find_leaf, (self.series,)


_leaves: dict[Histogram, Leaf] = {}


def find_leaf(series: Histogram) -> Leaf:
    """Return the leaf of a timer's histogram, made at the first call."""
    found = _leaves.get(series)
    return found if found is not None else _leaves.setdefault(series, Leaf(series))


def take_all(*, kept: bool = True) -> list[Span]:
    """Take the kept spans of every leaf. Call under the drain lock.

    Args:
        kept: Whether calls are kept from now on; False where telemetry has become too dear.
    """
    return [span for leaf in list(_leaves.values()) for span in leaf.take(kept=kept)]


def clear() -> None:
    """Forget what was kept. For a forked child, whose parent will report it, and for tests."""
    take_all()


def _length(span: Span) -> float:
    return span.stop - span.start
