# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl-otel, as a user has it: ``init()``, the verbs, the drain thread and the watcher of stalls at work."""

from __future__ import annotations

import os
import time
from functools import wraps
from typing import Any, Final

import verl_otel
from benchmarks.backend import ATTRIBUTES, LABELS, Backend, Function, Region
from verl_otel import session
from verl_otel.recording import collection

_attributes: Final = dict(ATTRIBUTES)
_clock: Final = time.perf_counter


class Ours(Backend):
    """verl-otel, on.

    Args:
        exporters: Where it goes; ``none`` keeps every thread but the exporters'.
        endpoint: Address of the OTLP server, for the exporter ``otlp``.
    """

    timed_block = "with r('bench.block'): pass"

    def __init__(self, exporters: str = "none", endpoint: str = "") -> None:
        if endpoint:
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        verl_otel.init(exporters=exporters)

    def timed(self, function: Function) -> Function:
        """Decorate with ``timed``."""
        return verl_otel.timed("bench.work")(function)

    def traced(self, function: Function) -> Function:
        """Decorate with a verb that makes a span and a histogram."""
        return verl_otel.turn(function)

    def timed_region(self) -> Any:
        """Return the verb, which is called for each block."""
        return verl_otel.timed

    def traced_region(self) -> Region:
        """Return a verb that makes a span and a histogram."""
        return verl_otel.turn

    def counter(self) -> Any:
        """Return a counter bound to its labels."""
        return verl_otel.counter("bench.things").bind(**LABELS)

    def empty(self) -> None:
        """Drain into nothing."""
        collection.collect()

    def deliver(self) -> None:
        """Drain and have every exporter send what there is; a scrape for ``prometheus``, which shows the last drain."""
        session.flush(60.0)
        current = session.current_session()
        assert current is not None  # noqa: S101 - made above
        for exporter in current.outputs.exporters:
            registry = getattr(exporter, "registry", None)
            if registry is not None:
                from prometheus_client import generate_latest

                generate_latest(registry)

    def close(self) -> None:
        """End the session."""
        verl_otel.shutdown()


class OursOneTimer(Ours):
    """The same with one timer for all blocks, as a module's constant is."""

    timed_block = "with r: pass"

    def timed_region(self) -> Any:
        """Return a timer."""
        return verl_otel.timed("bench.block")


class OursLabelled(Ours):
    """The same with the four attributes on every span and as labels of every value, given at each call, as the SDK's user does.

    Args:
        exporters: As `Ours`.
        endpoint: As `Ours`.
        kept: Whether spans are kept; otherwise they are only measured.
    """

    def __init__(self, exporters: str = "none", endpoint: str = "", *, kept: bool = True) -> None:
        if not kept:
            os.environ["OTEL_TRACES_SAMPLER"] = "always_off"
        super().__init__(exporters, endpoint)
        self._histogram = verl_otel.histogram("bench.work", unit="s")

    def timed(self, function: Function) -> Function:
        """Wrap around ``record``."""
        record = self._histogram.record

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = _clock()
            try:
                return function(*args, **kwargs)
            finally:
                record(_clock() - begin, **LABELS)

        return timed

    def traced(self, function: Function) -> Function:
        """Wrap around a root span, so that it is the sampler that decides, and, inside it, ``record``."""
        record = self._histogram.record

        @wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with verl_otel.span("bench.work", attributes=_attributes):
                begin = _clock()
                try:
                    return function(*args, **kwargs)
                finally:
                    record(_clock() - begin, **LABELS)

        return traced


class OursLeaf(Ours):
    """The same with spans that are never current and are kept only where they tell something."""

    def traced(self, function: Function) -> Function:
        """Decorate with ``timed`` and a span."""
        return verl_otel.timed("bench.leaf", span=True)(function)


class OursOff(Backend):
    """verl-otel with the switch off: decorated, never started."""

    def timed(self, function: Function) -> Function:
        """Decorate with ``timed``."""
        return verl_otel.timed("bench.off")(function)

    def traced(self, function: Function) -> Function:
        """Decorate with a span that has attributes."""
        return verl_otel.span("bench.off", attributes=dict(ATTRIBUTES))(function)
