# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The components of a session: collectors, watchdog, exporters, the user's own OpenTelemetry, and the overhead limiter.

`Session` calls them in the order of its list and knows none of them by type.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from verl_otel import early_imports, system, watchdog
from verl_otel._internal import error_boundary
from verl_otel._internal.deadline import remaining
from verl_otel._version import __version__
from verl_otel.config import Config
from verl_otel.exporting.base import Exporter, MetricState
from verl_otel.model import Batch, LogRecord, Resource, Scope, SpanRecord
from verl_otel.recording import id_generator
from verl_otel.semconv import SCHEMA_URL
from verl_otel.session import exporters
from verl_otel.session.overhead_limiter import OverheadLimiter
from verl_otel.session.user_metrics import UserMetricsThread
from verl_otel.system import collectors

if TYPE_CHECKING:
    from verl_otel.exporting.sdk_bridge import UserExporter

SCOPE: Final = Scope("verl_otel", __version__, SCHEMA_URL)


class Context(NamedTuple):
    """What a component needs of its session when it opens."""

    config: Config
    resource: Resource
    state: MetricState
    refresh: Callable[[], None]
    """Brings the metric state up to date, for a scrape."""
    announce: Callable[[int], None]
    """Publishes the port that serves ``/metrics``."""


class Component:
    """One part of a session. The methods do nothing unless a subclass overrides them.

    `on_batch` and `poll` are called one at a time, by whichever thread drains. An exception is counted, and the next component is called.
    """

    name: str

    def start(self, config: Config) -> None:
        """Prepare when the session starts. Nothing has been recorded yet, and perhaps nothing ever is."""

    def open(self, context: Context) -> None:
        """Open files, ports and threads at the first record."""

    def update_resource(self, resource: Resource) -> None:
        """Replace the resource that `open` was given."""

    def on_batch(self, batch: Batch) -> None:
        """Process one batch. Must not block."""

    def poll(self) -> None:
        """Do periodic work on the drain thread, after each drain."""

    def rest(self) -> None:
        """Do what cannot wait, instead of `on_batch` and `poll`: nothing has happened since the last drain."""

    def begin_flush(self, deadline: float) -> None:
        """Start to send without waiting, before any component is flushed or stopped."""

    def flush(self, deadline: float) -> None:
        """Send what is queued, until ``deadline`` (`time.monotonic`)."""

    def stop(self, deadline: float) -> None:
        """Send what is queued, until ``deadline``, and close."""

    def after_fork(self) -> None:
        """Release handles and locks in a forked child without sending anything: the parent sends."""

    def read_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of the component's own threads, by kind of work."""
        return {}


class NodeAndProcessCollectors(Component):
    """The hardware collectors."""

    name = "collectors"

    def start(self, config: Config) -> None:
        """Register the collectors."""
        system.install()
        collectors.start(config)

    def stop(self, deadline: float) -> None:  # noqa: ARG002 - as every component
        """Close the collectors and release the lock of the node."""
        collectors.stop()

    def after_fork(self) -> None:
        """Close the collectors: the lock of the node belongs to the parent."""
        collectors.after_fork()

    def read_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of the threads that read the collectors, which count as draining."""
        return {"drain": collectors.read_cpu_seconds()}


class ExporterGroup(Component):
    """Exporters that are called one after the other. A failure in one does not keep the batch from the next."""

    def __init__(self) -> None:
        self.exporters: list[Exporter] = []

    def update_resource(self, resource: Resource) -> None:
        """Pass the resource on."""
        for exporter in self.exporters:
            exporter.update_resource(resource)

    def _for_each(self, what: str, call: Callable[[Exporter], None]) -> None:
        """Call something with every exporter; an exception is counted."""
        for exporter in self.exporters:
            with error_boundary.suppress_errors(f"{what} {exporter.name}"):
                call(exporter)

    def on_batch(self, batch: Batch) -> None:
        """Pass the batch on."""
        self._for_each("put", lambda exporter: exporter.consume(batch))

    def poll(self) -> None:
        """Poll every exporter."""
        self._for_each("tick", lambda exporter: exporter.poll())

    def rest(self) -> None:
        """Let every exporter rest."""
        self._for_each("rest", lambda exporter: exporter.rest())

    def flush(self, deadline: float) -> None:
        """Flush every exporter."""
        self._for_each("flush", lambda exporter: exporter.flush(deadline))

    def stop(self, deadline: float) -> None:
        """Close every exporter."""
        self._for_each("close", lambda exporter: exporter.close(deadline))

    def after_fork(self) -> None:
        """Release what every exporter holds."""
        self._for_each("abandon", lambda exporter: exporter.after_fork())

    def read_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of the exporters' threads."""
        return {exporter.name: exporter.cpu_seconds for exporter in self.exporters if exporter.cpu_seconds}


class Watchdog(ExporterGroup):
    """The heartbeat and the stall detection. First in the session's list: the heartbeat must not wait for an exporter."""

    name = "watchdog"

    def start(self, config: Config) -> None:  # noqa: ARG002 - as every component
        """Note the time: the watchdog opens later, at the first record."""
        self._since = time.time()

    def open(self, context: Context) -> None:
        """Open the watchdog's files; without them the session goes on."""
        for exporter in watchdog.make_exporters(context.config, self._since):
            try:
                exporter.open(context.resource, SCOPE, context.state)
            except Exception as error:
                error_boundary.may_propagate(error)
                error_boundary.warn_once("open black box", "verl-otel: stalls and crashes will not be seen: %s", error)
                return
            self.exporters.append(exporter)

    def flush(self, deadline: float) -> None:
        """Do nothing: no batch is queued here."""


class ConfiguredExporters(ExporterGroup):
    """The exporters that ``VERL_OTEL_EXPORTERS`` names."""

    name = "exporters"

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[tuple[Exporter, Any]] = []
        """Each exporter with its reader of the user's own instruments, or None."""

    def open(self, context: Context) -> None:
        """Open the exporters; one that cannot be opened is left out and logged."""
        self.readers = self._open_all(context.config, context)

    def export_logs(self, records: Sequence[LogRecord]) -> None:
        """Pass on records of the run log."""
        self._for_each("put", lambda exporter: exporter.consume_logs(records))

    def open_more(self, context: Context, names: tuple[str, ...]) -> None:
        """Open exporters that became known after the others. The user's own instruments with delta temporality are not among what they export."""
        exporters.close_unused(self._open_all(replace(context.config, exporters=names), context), ())

    def _open_all(self, config: Config, context: Context) -> list[tuple[Exporter, Any]]:
        opened = exporters.open_all(
            config,
            lambda exporter: exporter.open(context.resource, SCOPE, context.state),
            context.refresh,
            context.announce,
        )
        self.exporters.extend(exporter for exporter, _ in opened)
        return opened

    def export_user_metrics(self, message: bytes) -> None:
        """Pass on an encoded ``ExportMetricsServiceRequest`` of the user's own instruments."""
        self._for_each("put", lambda exporter: exporter.consume_metrics(message))


class UserTelemetry(ExporterGroup):
    """The user's own OpenTelemetry: global providers, instruments that are collected for our exporters, and the user's span processors.

    Args:
        configured: The exporters that receive the metrics of the user's instruments.
        on_span: Receives each ended span of the user's own.
    """

    name = "user telemetry"

    def __init__(self, configured: ConfiguredExporters, on_span: Callable[[SpanRecord], None]) -> None:
        super().__init__()
        self.metrics = UserMetricsThread()
        self._configured = configured
        self._on_span = on_span
        self._providers: Any = None
        self._user_exporter: UserExporter | None = None
        self._context: Context

    def open(self, context: Context) -> None:
        """Install the global providers where the user has none, and attach to those of the user."""
        self._context = context
        readers = self._configured.readers
        # A forked child must not have half of them.
        with error_boundary.suppress_errors("providers"), early_imports.hold_off_forks():
            from verl_otel.exporting import providers

            self._providers = providers.install(
                context.resource,
                id_generator,
                self._on_span,
                self.metrics.put,
                tuple(reader for _, reader in readers if reader),
                sends_otlp="otlp" in context.config.exporters,
            )
        exporters.close_unused(readers, self._providers.readers if self._providers is not None else ())

    def begin_collection(self) -> None:
        """Have the user's instruments collected, on a thread of their own."""
        self.metrics.begin(self._providers.pull_readers if self._providers is not None else ())

    def export_metrics(self) -> None:
        """Pass on what was collected since the last call."""
        for message in self.metrics.take():
            self._configured.export_user_metrics(message)

    def on_batch(self, batch: Batch) -> None:
        """Pass the batch to the user's span processors."""
        self._open_user_exporter()
        super().on_batch(batch)

    def begin_flush(self, deadline: float) -> None:
        """Start to flush the user's span processors, which takes place while ours are flushed."""
        self._open_user_exporter()
        if self._user_exporter is not None:
            self._user_exporter.begin_flush(deadline)

    def _open_user_exporter(self) -> None:
        """Serve the span processors of the user from the first one on that is added to our provider."""
        if self._user_exporter is None and self._providers is not None and self._providers.user_processors:
            from verl_otel.exporting.sdk_bridge import UserExporter

            exporter = UserExporter(self._providers)
            try:
                exporter.open(self._context.resource, SCOPE, self._context.state)
            except RuntimeError as error:  # no more threads
                error_boundary.warn_once("user", "verl-otel: your span processors get no spans of verl-otel: %s", error)
                return
            self._user_exporter = exporter
            self.exporters.append(exporter)

    def read_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of the thread that collects, which counts as draining, and of the exporter."""
        return {"drain": self.metrics.cpu_seconds, **super().read_cpu_seconds()}

    def stop(self, deadline: float) -> None:
        """Close the user's exporter and detach from the user's providers, until ``deadline``."""
        super().stop(deadline)
        if self._providers is not None:
            self._providers.detach(remaining(deadline))

    def after_fork(self) -> None:
        """Release the user's exporter and the providers."""
        super().after_fork()
        if self._providers is not None:
            from verl_otel.exporting import providers

            with error_boundary.suppress_errors("abandon providers"):
                providers.after_fork()


class Overhead(Component):
    """Compares the CPU time of telemetry with its budget. Last in the session's list, after the work that it measures.

    Args:
        budget: Share of one CPU core that telemetry may take; 0: any.
        measure: Returns the CPU seconds of telemetry by kind of work.
    """

    name = "overhead limiter"

    def __init__(self, budget: float, measure: Callable[[], dict[str, float]]) -> None:
        self.limiter = OverheadLimiter(budget)
        self._measure = measure
        self._drain_seconds = 0.0
        self._just_opened = False

    def open(self, context: Context) -> None:  # noqa: ARG002 - as every component
        """Leave the cost of opening, which imports modules once, out of the measurement."""
        self._just_opened = True

    def poll(self) -> None:
        """Update the limiter. Called on the drain thread, whose CPU time is read here."""
        self._drain_seconds = time.thread_time()
        just_opened, self._just_opened = self._just_opened, False
        update = self.limiter.restart if just_opened else self.limiter.update
        update(time.monotonic(), sum(self._measure().values()))

    def read_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of the drain thread."""
        return {"drain": self._drain_seconds}
