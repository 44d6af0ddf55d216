# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Sampled timers: timed calls that are too many for a span each, of which a few become leaf spans.

Kept are the slowest calls, failed ones and one at random. A call only compares its duration with a threshold; the span of a kept call is
created when the call has ended. So a leaf span is never current: spans that open during the call are its siblings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from verl_otel._internal import error_boundary, process_state
from verl_otel.recording import series
from verl_otel.recording.attribute_values import is_cancellation
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import CONTEXT
from verl_otel.recording.series import CHUNK
from verl_otel.recording.span import Span, clock, without_leaked
from verl_otel.recording.state import RECORDER, take

if TYPE_CHECKING:
    from verl_otel.recording.series import Histogram

SLOWEST: Final = 4
"""Slowest calls of one name that are kept between two drains."""
MAX_FAILED: Final = 16
"""Failed calls of one name that are kept between two drains; the metrics have all of them."""
MAX_TIMERS: Final = 500
"""Sampled timers of one process."""
NEXT: Final = -1.0
"""Threshold with which the next call is kept, whatever its duration."""


class SampledTimer:
    """Histogram of a timer with a sample of its calls as spans. Has the interface of a histogram towards wrappers."""

    __slots__ = ("_cancelled", "_drawn", "_failed", "_slowest", "buffer", "series", "site", "threshold")

    def __init__(self, series: Histogram) -> None:
        self.series = series
        self.buffer = series.buffer
        self.site = CallSite("timed", series.instrument.name, series=series)
        self.threshold = NEXT
        """Seconds beyond which a call is kept. Written without a lock: a race keeps a call more or less and loses no measurement."""
        self._drawn: list[Span] = []
        self._slowest: list[Span] = []
        self._failed: list[Span] = []
        self._cancelled: list[Span] = []

    def spill(self, seconds: float) -> None:
        """Record a call that exceeds the threshold or finds the buffer full. Never raises."""
        if len(self.buffer) < CHUNK:
            self.buffer.append(seconds)
        else:
            self.series.spill(seconds)
        if seconds > self.threshold:
            self._keep(seconds)

    def record(self, seconds: float) -> None:
        """Record a call that ended now. Never blocks, never raises."""
        if seconds < self.threshold and len(self.buffer) < CHUNK:
            self.buffer.append(seconds)
        else:
            self.spill(seconds)

    def fail(self, seconds: float, error: BaseException) -> None:
        """Record a call that ended now with an exception. Failures are few: it is kept."""
        if not RECORDER.on:
            return
        if isinstance(error, GeneratorExit):  # the consumer closed the generator: no failure
            self.record(seconds)
            return
        series.record_failure(self.series, seconds, error)
        kept = self._cancelled if is_cancellation(error) else self._failed
        if len(kept) < MAX_FAILED:
            span = self._make(seconds)
            span.fail(error)
            kept.append(span)

    def take(self) -> list[Span]:
        """Remove and return the kept spans. Call under the drain lock."""
        self.threshold = NEXT
        slowest = sorted(take(self._slowest), key=_length, reverse=True)[:SLOWEST]
        failed = take(self._failed) + take(self._cancelled)  # failures first: cancellations get what room is left
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
            if len(slowest) > 4 * SLOWEST:  # each call is slower than the one before
                slowest[:] = best

    def _make(self, seconds: float) -> Span:
        """Return the span of a call that ended now, as a child of the current span."""
        span = Span(self.site)
        span.outer = without_leaked(CONTEXT.get())
        span.stop = clock()
        span.start = span.stop - seconds
        return span

    def __reduce__(self) -> tuple[Any, ...]:
        return find_sampled_timer, (self.series,)


_sampled_timers: dict[Histogram, SampledTimer] = {}


def find_sampled_timer(series: Histogram) -> SampledTimer | Histogram:
    """Return the sampled timer of a histogram; the first call creates it. Of too many, the histogram itself: it is measured and keeps no spans."""
    timer = _sampled_timers.get(series)
    if timer is not None:
        return timer
    if len(_sampled_timers) >= MAX_TIMERS:
        message = "verl-otel: more than %d timers with spans; %r and later ones are measured only"
        error_boundary.warn_once("leaves", message, MAX_TIMERS, series.instrument.name)
        return series
    return _sampled_timers.setdefault(series, SampledTimer(series))


def take_all() -> list[Span]:
    """Remove and return the kept spans of every sampled timer. Call under the drain lock."""
    return [span for timer in list(_sampled_timers.values()) for span in timer.take()]


def _clear() -> None:
    """Discard the kept spans; the parent of a forked child reports them."""
    take_all()


process_state.register(clear=_clear, after_fork=_clear)


def _length(span: Span) -> float:
    return span.stop - span.start
