# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Where the batches of a session go: its exporters, the watchdog, the user's own OpenTelemetry, and the run log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from verl_otel import early_imports, resource, watchdog
from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import remaining
from verl_otel.config import Config
from verl_otel.exporting.base import SCOPE, Exporter, GivenProviders, MetricState
from verl_otel.model import AttributeValue, Batch, Resource, SpanRecord
from verl_otel.recording import collection, context
from verl_otel.semconv import metric_names
from verl_otel.session.run_log import RunLog
from verl_otel.session.run_record import RunRecord
from verl_otel.system import collectors

if TYPE_CHECKING:
    from verl_otel.exporting.own_opentelemetry import OwnOpenTelemetry

LOSSES: Final = frozenset(
    {
        metric_names.OTEL_ERRORS,
        metric_names.OTEL_SPANS_DROPPED,
        metric_names.OTEL_POINTS_DROPPED,
        metric_names.OTEL_LOGS_DROPPED,
    }
)
"""Metrics that count what was lost."""


class Outputs:
    """Opens what takes batches, passes batches to each, and closes them. What one raises does not keep others from it.

    Args:
        run: The run.
        given: The providers of the exporter ``sdk`` that were given in code.
        announce: Publishes the port of ``/metrics``.
        on_user_span: Takes an ended span of the user's own OpenTelemetry.
    """

    def __init__(
        self,
        run: RunRecord,
        given: GivenProviders,
        announce: Callable[[int], None],
        on_user_span: Callable[[SpanRecord], None],
    ) -> None:
        self._run, self._given, self._announce, self._on_user_span = run, given, announce, on_user_span
        self.on_provider: Callable[[], object] = bool
        """Called when the exporter ``sdk`` has found a provider."""
        self.resource = Resource({})
        self.state = MetricState()
        self.exporters: list[Exporter] = []
        """The exporters that ``VERL_OTEL_EXPORTERS`` names, once they are open."""
        self.user: OwnOpenTelemetry | None = None
        self._watchdog: list[Exporter] = []
        self._run_log: RunLog | None = None

    def open(self) -> None:
        """Build the resource of this process and open the exporters. The watchdog is first: its heartbeat must not wait for another."""
        config = self._run.config
        self.resource = resource.build_resource(config)
        self._open_watchdog()
        readers = self._open_exporters(config.exporters)
        # A forked child must not have half of the user's providers.
        with error_boundary.suppress_errors("providers"), early_imports.hold_off_forks():
            from verl_otel.exporting import own_opentelemetry

            user = own_opentelemetry.attach(
                self.resource,
                context,
                self._on_user_span,
                tuple(reader for _, reader in readers if reader),
                sends_otlp="otlp" in config.exporters,
                list_open=collection.list_open_above,
                given=self._given if "sdk" in config.exporters else None,
            )
            user.open(self.resource, SCOPE, self.state)
            self.user = user
        with error_boundary.suppress_errors("readers"):
            _shut_unused(readers, self.user.readers if self.user is not None else ())
        self._run_log = RunLog(config)
        self._run_log.open(self.resource, SCOPE, self.state)

    def open_more(self, names: Sequence[str]) -> None:
        """Open exporters that were named after the others were opened."""
        _shut_unused(self._open_exporters(names), ())

    def _open_watchdog(self) -> None:
        """Open the watchdog's files; without them the session goes on."""
        try:
            for exporter in watchdog.make_exporters(self._run.config, self._run.started):
                exporter.open(self.resource, SCOPE, self.state)
                self._watchdog.append(exporter)
        except Exception as error:
            error_boundary.may_propagate(error)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            message = (
                "verl-otel: stalls, crashes and the hardware of this node will not be seen: %s: %s. See verl-otel check"
            )
            error_boundary.warn_once("run folder", message, self._run.config.run_path, reason)

    def _open_exporters(self, names: Sequence[str]) -> list[tuple[Exporter, Any]]:
        """Open exporters; one that cannot be opened is left out and logged.

        Returns:
            Each exporter with its reader of the user's own instruments, or None.
        """
        opened = []
        for name in names:
            try:
                exporter = self._make_exporter(name, self._run.config)
                exporter.open(self.resource, SCOPE, self.state)
            except Exception as error:
                error_boundary.may_propagate(error)
                message = "verl-otel: exporter %s cannot start and is left out: %s. See verl-otel check"
                error_boundary.warn_once(f"open {name}", message, name, error)
                continue
            self.exporters.append(exporter)
            reader = None
            with error_boundary.suppress_errors(f"{name} reader"):
                reader = exporter.make_reader()
            opened.append((exporter, reader))
        return opened

    def _make_exporter(self, name: str, config: Config) -> Exporter:
        """Return an exporter. Its module is imported only if it is used."""
        if name == "file":
            from verl_otel.exporting.files import FileExporter

            return FileExporter(config.run_path, config.file_mib << 20, config.file_count)
        if name == "otlp":
            from verl_otel.exporting.otlp.exporter import OtlpExporter

            asked = collection.observed() | collectors.list_metrics()
            return OtlpExporter(config.memory_mib << 19, config.metric_interval, config.token_file, asked)
        if name == "prometheus":
            from verl_otel.exporting.prometheus import PrometheusExporter

            return PrometheusExporter(config.prometheus_host, config.prometheus_port, self._announce)
        if name == "tensorboard":
            from verl_otel.exporting.tensorboard.exporter import TensorBoardExporter

            return TensorBoardExporter(config.run_path)
        if name == "sdk":
            from verl_otel.exporting.sdk import SdkExporter

            return SdkExporter(self._given, lambda: "otlp" in self._run.config.exporters, self.on_provider)
        from verl_otel.exporting.console import ConsoleExporter

        return ConsoleExporter()

    def put(self, batch: Batch) -> None:
        """Pass a batch on, and the records of the run log that belong to it."""
        self.state.update(batch.points, batch.asked)
        self.for_each("put", lambda exporter: exporter.consume(batch))
        records = self._run_log.take(batch) if self._run_log is not None else []
        if records:
            self.for_each("put", lambda exporter: exporter.consume_logs(records))

    def put_user_metrics(self) -> None:
        """Pass on what the user's instruments have reported since the last call."""
        for message in self.user.metrics.take() if self.user is not None else ():
            self.for_each("put", methodcaller("consume_metrics", message))

    def add_attributes(self, attributes: dict[str, AttributeValue]) -> None:
        """Add attributes to the resource, or replace them."""
        self.resource = Resource({**self.resource.attributes, **attributes})
        self.for_each("resource", lambda exporter: exporter.update_resource(self.resource))

    def flush(self, deadline: float) -> None:
        """Have the exporters send what they have."""
        self.for_each("flush", lambda exporter: exporter.begin_flush(deadline))
        self.for_each("flush", lambda exporter: exporter.flush(deadline))

    def close(self, deadline: float, *, is_open: bool) -> None:
        """Close the exporters, those of files last: what the others could not send is counted in the files.

        The files are written first as well: an endpoint may take the whole time, and a scheduler kills what takes too long.

        Args:
            deadline: Until when, on the monotonic clock.
            is_open: Whether they were opened.
        """
        self.for_each("flush", lambda exporter: exporter.begin_flush(deadline))
        self.for_each("flush", lambda exporter: exporter.flush(deadline) if exporter.name == "file" else None)
        self.for_each("close", lambda exporter: exporter.close(deadline) if exporter.name != "file" else None)
        if is_open:
            with error_boundary.suppress_errors("losses"):
                observed = collection.collect_observed(Batch(time.time_ns()))
                self.state.update(point for point in observed.points if point.instrument.name in LOSSES)
        self.for_each("close", lambda exporter: exporter.close(deadline) if exporter.name == "file" else None)

    def wait_for_user_metrics(self, deadline: float) -> None:
        """Wait for what the user's instruments report now, for at most half of the time that is left."""
        if self.user is not None:
            self.user.metrics.wait(time.monotonic() + remaining(deadline) / 2)

    def list_sending(self) -> list[Exporter]:
        """Return the exporters that send something somewhere."""
        return [*self.exporters, *([self.user] if self.user is not None and self.user.is_serving else ())]

    def measure(self) -> Iterator[tuple[str, float]]:
        """Yield the names of exporters and the CPU seconds that they have taken; those of the user's instruments count as a drain."""
        if self.user is not None:
            yield "drain", self.user.metrics.cpu_seconds
        for exporter in (*self._watchdog, *self.list_sending()):
            if exporter.cpu_seconds:
                yield exporter.name, exporter.cpu_seconds

    def for_each(self, what: str, call: Callable[[Exporter], None]) -> None:
        """Call something with every exporter; an exception is counted, and does not keep the next one from its call."""
        others = [exporter for exporter in (self.user, self._run_log) if exporter is not None]
        for exporter in (*self._watchdog, *self.exporters, *others):
            try:
                call(exporter)
            except Exception as error:
                error_boundary.record_internal_error(f"{what} {exporter.name}", error)


def _shut_unused(opened: list[tuple[Exporter, Any]], used: Sequence[Any]) -> None:
    """Close the readers that no provider uses: the user has providers of their own, and at a scrape the readers would only warn."""
    for exporter, reader in opened:
        if reader is not None and reader not in used:
            reader.shutdown()
            exporter.detach_reader()
