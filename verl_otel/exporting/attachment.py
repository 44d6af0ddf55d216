# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Metric readers of verl-otel on a meter provider that the user has set, so that the user's instruments reach the exporters of verl-otel, too.

Nothing else of that provider changes: its readers, views, and resource stay. A meter provider of an older OpenTelemetry has fixed readers and
is left alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from verl_otel._internal import error_boundary

ATTACH_SECONDS: Final = 1.0
"""Seconds to wait for the lock of the user's provider, which a collection holds while it calls the user's callbacks."""
_OTLP: Final = "opentelemetry.exporter.otlp."
_EXPORTER_ATTRIBUTES: Final = ("_exporter", "span_exporter")
"""Where readers and span processors of the SDK keep their exporter."""


def can_attach(meter: Any) -> bool:
    """Return whether readers can be added to a meter provider that exists, and removed from it."""
    return all(callable(getattr(meter, name, None)) for name in ("add_metric_reader", "remove_metric_reader"))


def sends_otlp(parts: Iterable[Any]) -> bool:
    """Return whether a reader or a span processor among some sends by one of OpenTelemetry's own OTLP exporters."""
    exporters = [getattr(part, name, None) for part in parts for name in _EXPORTER_ATTRIBUTES]
    return any(base.__module__.startswith(_OTLP) for exporter in exporters for base in type(exporter).__mro__)


def find_readers(meter: Any) -> tuple[Any, ...]:
    """Return the readers of a meter provider of the SDK."""
    return tuple(getattr(getattr(meter, "_measurement_consumer", None), "_reader_storages", ()))


def attach_readers(meter: Any, readers: Iterable[Any]) -> None:
    """Add readers to the user's meter provider. After `ATTACH_SECONDS` it goes on in the background."""
    _call_for(ATTACH_SECONDS, meter.add_metric_reader, tuple(readers))


def detach_readers(meter: Any, readers: Iterable[Any], seconds: float) -> None:
    """Remove readers from the user's meter provider, waiting for at most ``seconds``."""
    _call_for(seconds, meter.remove_metric_reader, tuple(readers))


def is_attached(reader: Any) -> bool:
    """Return whether a provider serves a reader. The SDK warns when another one is asked to collect."""
    return getattr(reader, "_collect", True) is not None


def _call_for(seconds: float, call: Callable[[Any], None], readers: tuple[Any, ...]) -> None:
    """Call something with each reader on a thread of its own, which may outlive this call; an exception is counted."""
    if not readers:
        return

    def run() -> None:
        for reader in readers:
            with error_boundary.suppress_errors("attach readers"):
                call(reader)

    thread = threading.Thread(target=run, name="verl-otel-attach", daemon=True)
    with contextlib.suppress(RuntimeError):  # CPython 3.12 starts no threads during interpreter shutdown
        thread.start()
        thread.join(max(0.0, seconds))
