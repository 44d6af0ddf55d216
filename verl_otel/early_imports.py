# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Imports the modules that the threads of a session need, in the caller's thread, before the first of them starts.

``os.fork`` copies the import locks of CPython in their current state. A child that is forked while another thread imports has partially
initialized modules, and waits forever for the lock of a thread that does not exist in it. So no thread of a session imports anything; see
``docs/explanation/decisions/0018-import-exporters-before-any-fork.md``.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - registered while a fork waits, its hooks would release a lock that none has acquired
import contextlib
import importlib
import os
import threading
from typing import TYPE_CHECKING, Final

from verl_otel._internal import process_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from verl_otel.config import Config

FORK_WAIT: Final = 10.0
"""Longest time in seconds that a fork waits for another thread inside `hold_off_forks`. Usually that takes some tenths of a second, once
per process; on a very busy machine seconds. Without waiting the child may hang."""
_EVERY_SESSION: Final = (
    "verl_otel.recording.api",
    "encodings.ascii",
    "encodings.idna",
    "encodings.latin_1",
    "verl_otel.exporting.own_opentelemetry",
    "opentelemetry.exporter.otlp.proto.common.metrics_encoder",
)
"""Codecs that the socket and HTTP modules of the standard library look up at first use, the global providers, and the encoder of the
user's own metrics."""
_WATCHDOG: Final = ("verl_otel.watchdog.heartbeat", "verl_otel.exporting.files")
_PROTOBUF: Final = (
    "google.protobuf.json_format",
    "google.protobuf.message",
    "opentelemetry.proto.collector.logs.v1.logs_service_pb2",
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
)
_OF_EXPORTERS: Final = {
    "file": ("verl_otel.exporting.files", *_PROTOBUF),
    "otlp": ("verl_otel.exporting.otlp.exporter", *_PROTOBUF),
    "prometheus": ("verl_otel.exporting.prometheus", "opentelemetry.exporter.prometheus"),
    "console": ("verl_otel.exporting.console",),
    "sdk": ("verl_otel.exporting.sdk",),
    "tensorboard": ("verl_otel.exporting.tensorboard.exporter",),
}
_PROTOCOL_VARIABLES: Final = tuple(
    f"OTEL_EXPORTER_OTLP_{kind}PROTOCOL" for kind in ("", "TRACES_", "METRICS_", "LOGS_")
)


class _Section:
    """The lock of `hold_off_forks`. Re-entrant: the context manager nests, and an imported module may fork."""

    lock = threading.RLock()
    held_for_fork = threading.local()


@contextlib.contextmanager
def hold_off_forks() -> Iterator[None]:
    """Delay forks in other threads until the block ends, for at most `FORK_WAIT` seconds."""
    section = _Section.lock
    with section:
        yield


def load(config: Config) -> None:
    """Import what the threads of a session use. The exporter that needs a module reports that it cannot be imported.

    Args:
        config: The settings, which name the exporters.
    """
    with hold_off_forks():
        for name in _names(config):
            try:
                importlib.import_module(name)
            except Exception:  # noqa: S112 - reported when the exporter opens
                continue


def _names(config: Config) -> Iterable[str]:
    yield from _EVERY_SESSION
    if config.stalls and config.exporters:
        yield from _WATCHDOG
    for exporter in config.exporters:
        yield from _OF_EXPORTERS.get(exporter, ())
    if "otlp" in config.exporters:
        protocols = {os.environ.get(name, "").strip() for name in _PROTOCOL_VARIABLES}
        if "grpc" in protocols:
            yield "grpc"
        yield "requests"


def _before_fork() -> None:
    """Wait until no other thread is inside `hold_off_forks`, for at most `FORK_WAIT` seconds."""
    _Section.held_for_fork.value = _Section.lock.acquire(timeout=FORK_WAIT)


def _after_fork_in_parent() -> None:
    if getattr(_Section.held_for_fork, "value", False):
        _Section.held_for_fork.value = False
        _Section.lock.release()


def _after_fork_in_child() -> None:
    _Section.lock = threading.RLock()  # the thread that holds it may not exist here


process_state.register(
    before_fork=_before_fork, after_fork_in_parent=_after_fork_in_parent, after_fork=_after_fork_in_child
)
