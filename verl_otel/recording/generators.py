# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of generator functions: the span lasts as long as the generator, and is current only while its body runs.

OpenTelemetry's ``start_as_current_span`` around a ``yield`` leaks the context into the consumer
(open-telemetry/opentelemetry-python#2606). Here each resumption enters a copy of the context in which the body runs, so
that what the body sets is kept from one resumption to the next and never seen outside.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

from verl_otel.recording.context import kernel
from verl_otel.recording.registry import record_failure, record_success
from verl_otel.recording.site import Arguments, Site
from verl_otel.recording.span import clock, make_span
from verl_otel.recording.store import Store

if TYPE_CHECKING:
    from verl_otel.recording.leaves import Leaf
    from verl_otel.recording.series import Histogram


class _Body:
    """The span of one generator, entered for every resumption and left at every ``yield``."""

    __slots__ = ("_arguments", "_inner", "_outer", "span")

    def __init__(self, site: Site, arguments: Arguments) -> None:
        self.span = make_span(site)
        self._arguments = arguments
        self._inner: Any = None
        self._outer: Any = None

    def begin(self) -> None:
        """Open the span; it is left at once and entered by each resumption."""
        now = kernel()
        self._outer = now.get()
        self.span.__enter__()
        self._inner = now.get()
        now.set(self._outer)

    def __enter__(self) -> None:
        if self._inner is not None:
            now = kernel()
            self._outer = now.get()
            now.set(self._inner)

    def __exit__(self, *_: object) -> None:
        if self._inner is not None:
            now = kernel()
            self._inner = now.get()
            now.set(self._outer)

    def succeed(self, result: object) -> None:
        """Read what the generator returned and close the span."""
        self.span.site.read(self.span, self._arguments, result)
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Close the span, whoever resumes the generator for the last time."""
        if self._inner is not None:
            with self:
                self.span.close(error)


class _Clock:
    """What `_Body` is for a span, for a histogram: how long the generator lived."""

    __slots__ = ("_series", "_start")

    def __init__(self, series: Histogram | Leaf) -> None:
        self._series = series
        self._start = clock()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def succeed(self, _result: object) -> None:
        record_success(self._series, clock() - self._start)

    def end(self, error: BaseException) -> None:
        record_failure(self._series, clock() - self._start, error)


def _begin(to: Site | Histogram | Leaf, arguments: Arguments) -> _Body | _Clock | None:
    """Return what records the life of one generator; None if nothing does."""
    if not Store.on:
        return None
    if not isinstance(to, Site):
        return _Clock(to)
    if to.superseded:
        return None
    body = _Body(to, arguments)
    body.begin()
    return body


class Driver:
    """Runs a generator step by step and records its life. The wrapper yields what each step gave."""

    __slots__ = ("_arguments", "_begun", "_body", "_generator", "_item", "_to", "sent", "thrown")

    def __init__(self, to: Site | Histogram | Leaf, generator: Any, arguments: Arguments) -> None:
        self._to = to
        self._generator = generator
        self._arguments = arguments
        self._body: _Body | _Clock | None = None
        self._begun = False
        self._item: Any = None
        self.sent: Any = None
        self.thrown: BaseException | None = None

    def take(self) -> Any:
        """Hand over what the last step gave, or in the end what the generator returned: it may be large, and is not held."""
        item, self._item = self._item, None
        return item

    def resume(self) -> bool:
        """Run one step; return whether it gave an item."""
        sent, thrown, self.sent, self.thrown = self.sent, self.thrown, None, None
        if not self._begun:
            self._begun = True
            self._body = _begin(self._to, self._arguments)
        body = self._body
        try:
            with body or _NOTHING:
                self._item = self._generator.send(sent) if thrown is None else self._generator.throw(thrown)
        except StopIteration as stop:
            self._item = stop.value
            if body is not None:
                body.succeed(stop.value)
            return False
        except BaseException as error:
            if body is not None:
                body.end(error)
            raise
        return True


class AsyncDriver(Driver):
    """Runs an async generator step by step and records its life."""

    __slots__ = ()

    async def resume(self) -> bool:  # type: ignore[override]  # the same for async generators
        """Run one step; return whether it gave an item."""
        sent, thrown, self.sent, self.thrown = self.sent, self.thrown, None, None
        if not self._begun:
            self._begun = True
            self._body = _begin(self._to, self._arguments)
            # The event loop must not know the inner generator: it would close it beside the outer one.
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
            with body or _NOTHING:
                self._item = await step
        except StopAsyncIteration:
            if body is not None:
                body.succeed(None)
            return False
        except BaseException as error:
            if body is not None:
                body.end(error)
            raise
        return True


_NOTHING: Final = contextlib.nullcontext()
