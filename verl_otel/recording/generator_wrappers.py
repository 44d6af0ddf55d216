# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of generator functions: the span lasts as long as the generator, and is current only while its body runs.

OpenTelemetry's ``start_as_current_span`` around a ``yield`` leaks the context into the consumer
(open-telemetry/opentelemetry-python#2606). Here each resumption sets the context of the body, and each ``yield`` restores that of the
consumer, so that context values of the body persist between resumptions and are not visible outside.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from verl_otel.recording.callsite import Arguments, CallSite
from verl_otel.recording.context import context_access
from verl_otel.recording.otel_span import LEAKED
from verl_otel.recording.series_registry import record_failure, record_success
from verl_otel.recording.span import clock, make_span
from verl_otel.recording.state import RECORDER

if TYPE_CHECKING:
    from verl_otel.recording.sampled_timers import SampledTimer
    from verl_otel.recording.series import Histogram


class _Body:
    """The span of one generator, made current at every resumption and left at every ``yield``.

    Flags are set before the action that they describe, so that `abort` can undo it wherever an exception interrupts.
    """

    __slots__ = ("_arguments", "_ended", "_inner", "_inside", "_outer", "span")

    def __init__(self, site: CallSite, arguments: Arguments) -> None:
        self.span = make_span(site)
        self._arguments = arguments
        self._inner: Any = None
        self._outer: Any = None
        self._inside = False
        self._ended = False

    def enter(self) -> None:
        """Set the context of the body. The first call opens the span."""
        access = context_access()
        self._outer = access.get()
        self._inside = True
        if self._inner is None:
            self.span.__enter__()
        else:
            access.set(self._inner)

    def leave(self) -> None:
        """Restore the context of the consumer."""
        if self._inside:
            access = context_access()
            self._inner = access.get()
            access.set(self._outer)
            self._inside = False

    def succeed(self, result: object) -> None:
        """Read the return value of the generator and close the span."""
        self.span.site.read(self.span, self._arguments, result)
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Close the span, in whatever context the generator is resumed for the last time."""
        self.enter()
        self.span.close(error)
        self.leave()
        self._ended = True

    def abort(self, error: BaseException) -> None:
        """End the span after an exception in the wrapper itself. Does nothing if it has ended."""
        if self._ended:
            return
        self._ended = True
        if self._inside:
            context_access().set(self._outer)
        if self.span.start:
            self.span.token = LEAKED
            self.span.close(error)


class _Clock:
    """Counterpart of `_Body` for a histogram: measures the lifetime of the generator."""

    __slots__ = ("_series", "_start")

    def __init__(self, series: Histogram | SampledTimer) -> None:
        self._series = series
        self._start = clock()

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def succeed(self, _result: object) -> None:
        record_success(self._series, clock() - self._start)

    def end(self, error: BaseException) -> None:
        record_failure(self._series, clock() - self._start, error)

    def abort(self, _error: BaseException) -> None:
        pass


class _Nothing:
    """Counterpart of `_Body` while nothing is recorded."""

    def enter(self, *_: object) -> None:
        pass

    leave = succeed = end = abort = enter


def _make_body(to: CallSite | Histogram | SampledTimer, arguments: Arguments) -> _Body | _Clock | _Nothing:
    """Return the recorder of one generator."""
    if not RECORDER.on or (isinstance(to, CallSite) and to.superseded):
        return _NOTHING
    return _Body(to, arguments) if isinstance(to, CallSite) else _Clock(to)


class Driver:
    """Runs a generator step by step and records it. The wrapper yields the item of each step."""

    __slots__ = ("_arguments", "_begun", "_body", "_generator", "_item", "_to", "sent", "thrown")

    def __init__(self, to: CallSite | Histogram | SampledTimer, generator: Any, arguments: Arguments) -> None:
        self._to = to
        self._generator = generator
        self._arguments = arguments
        self._body: _Body | _Clock | _Nothing = _NOTHING
        self._begun = False
        self._item: Any = None
        self.sent: Any = None
        self.thrown: BaseException | None = None

    def take(self) -> Any:
        """Return the item of the last step, or the return value at the end, and release it: it may be large."""
        item, self._item = self._item, None
        return item

    def abort(self, error: BaseException) -> None:
        """End the recording after an exception in the wrapper; those of the generator have been recorded before."""
        self._body.abort(error)

    def resume(self) -> bool:
        """Run one step; return whether it yielded an item."""
        sent, thrown, self.sent, self.thrown = self.sent, self.thrown, None, None
        if not self._begun:
            self._begun = True
            self._body = _make_body(self._to, self._arguments)
        body = self._body
        try:
            body.enter()
            self._item = self._generator.send(sent) if thrown is None else self._generator.throw(thrown)
            body.leave()
        except StopIteration as stop:
            body.leave()
            self._item = stop.value
            body.succeed(stop.value)
            return False
        except BaseException as error:
            body.leave()
            body.end(error)
            raise
        finally:
            del (
                thrown
            )  # its traceback has this frame and those of the generator: a cycle that would keep their variables
        return True


class AsyncDriver(Driver):
    """Runs an async generator step by step and records it."""

    __slots__ = ()

    async def resume(self) -> bool:  # type: ignore[override]  # the same for async generators
        """Run one step; return whether it yielded an item."""
        sent, thrown, self.sent, self.thrown = self.sent, self.thrown, None, None
        if not self._begun:
            self._begun = True
            self._body = _make_body(self._to, self._arguments)
            # Without the hooks the event loop does not see the inner generator; else it would close both.
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(None, None)
            try:
                step = self._generator.asend(None)
            finally:
                sys.set_asyncgen_hooks(*hooks)
        else:
            step = self._generator.asend(sent) if thrown is None else self._generator.athrow(thrown)
        body = self._body
        try:
            body.enter()
            self._item = await step
            body.leave()
        except StopAsyncIteration:
            body.leave()
            body.succeed(None)
            return False
        except BaseException as error:
            body.leave()
            body.end(error)
            raise
        finally:
            del thrown, step  # as above; `step` holds the exception, too
        return True


_NOTHING: Final = _Nothing()
