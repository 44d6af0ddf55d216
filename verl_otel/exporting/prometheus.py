# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus ``/metrics``: our points with exemplars, and the user's ordinary instruments, in one registry of our own."""

from __future__ import annotations

import inspect
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from verl_otel import _guard
from verl_otel.exporting.exporter import Exporter
from verl_otel.exporting.names import label_name, metric_name
from verl_otel.model import HistogramValue, Instrument, Point, Resource, to_float

if TYPE_CHECKING:
    from verl_otel.exporting.fold import State
    from verl_otel.model import Scope

_SUFFIXES: Final = {
    "gauge": ("",),
    "counter": ("", "_total", "_created"),
    "histogram": ("", "_bucket", "_count", "_sum", "_created"),
}
"""What OpenMetrics reserves for a family beside its name."""
_TYPES: Final = {"histogram": "histogram", "counter": "counter", "updown": "gauge", "gauge": "gauge"}


class PointCollector(Collector):
    """Shows the folded state to ``prometheus_client``.

    Args:
        state: The latest points.
        resource: Becomes ``target_info``.
        refresh: Called before each scrape, so that it shows this moment.
    """

    def __init__(self, state: State, resource: Resource, refresh: Callable[[], None]) -> None:
        self._state = state
        self._resource = resource
        self._refresh = refresh

    def describe(self) -> Iterable[Metric]:
        """Return nothing: families come and go with what is recorded."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return one family per instrument."""
        try:
            self._refresh()
        except Exception as error:
            _guard.report("scrape", error)
        yield self._target_info()
        _, points = self._state.read()
        families: dict[tuple[str, str], Metric | None] = {}
        taken = {"target", "target_info"}
        for point in points:
            instrument = point.instrument
            key = (instrument.name, instrument.kind)
            if key not in families:
                families[key] = _family(instrument, taken)
            family = families[key]
            if family is not None:
                family.samples.extend(_samples(metric_name(instrument), point))
        yield from filter(None, families.values())

    def _target_info(self) -> Metric:
        family = Metric("target", "Resource attributes of this process", "info")
        labels = {label_name(key): _plain(_to_label(value)) for key, value in self._resource.attributes.items()}
        family.add_sample("target_info", labels, 1)
        return family


def _family(instrument: Instrument, taken: set[str]) -> Metric | None:
    """Return the family of an instrument, or None when a name of it belongs to another: the first one stays."""
    kind = _TYPES[instrument.kind]
    name = metric_name(instrument)
    name = name.removesuffix("_total") if kind == "counter" else name
    names = {name + suffix for suffix in _SUFFIXES[kind]}
    if names & taken:
        _guard.say(f"name {name}", "verl-otel: /metrics leaves %r out: its name %s is taken", instrument.name, name)
        return None
    taken |= names
    return Metric(name, _plain(instrument.description), kind)


def _to_label(value: object) -> str:
    """Return an attribute as a Collector writes it into a label: several values as JSON, as is true and false.

    Example:
        _to_label(("0", "1")) == '["0","1"]'
    """
    if isinstance(value, bool | list | tuple):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _plain(text: str) -> str:
    """Return text that UTF-8 can hold: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _samples(name: str, point: Point) -> Iterator[Sample]:
    labels = {label_name(key): _plain(value) for key, value in point.labels}
    value = point.value
    if not isinstance(value, HistogramValue):
        yield Sample(name, labels, to_float(value))
        return
    exemplars = {bisect_left(value.bounds, each.value): each for each in point.exemplars}
    total = 0
    for index, count in enumerate(value.counts):
        total += count
        bound = str(floatToGoString(value.bounds[index])) if index < len(value.bounds) else "+Inf"  # type: ignore[no-untyped-call]  # prometheus_client's own
        found = exemplars.get(index)
        exemplar = None
        if found is not None:
            ids = {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
            exemplar = PrometheusExemplar(ids, found.value, found.time_ns / 1e9)
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, float(total), None, exemplar)
    yield Sample(f"{name}_count", labels, float(value.samples))
    yield Sample(f"{name}_sum", labels, value.total)


class PrometheusExporter(Exporter):
    """Serves ``/metrics``, in text and OpenMetrics form.

    Args:
        host: Address to bind to.
        port: Port; 0 takes a free one.
        refresh: Called before each scrape.
        announce: Told the bound port once it serves.
    """

    name = "prometheus"

    def __init__(
        self, host: str, port: int, refresh: Callable[[], None], announce: Callable[[int], None] | None = None
    ) -> None:
        super().__init__()
        self._address = (host, port)
        self._refresh = refresh
        self._announce = announce
        self.registry = CollectorRegistry(auto_describe=False)
        self._server: Any = None

    def open(self, resource: Resource, scope: Scope, state: State) -> None:  # noqa: ARG002 - names carry the scope
        """Bind and serve. Raises `OSError` when the port is taken."""
        self.registry.register(PointCollector(state, resource, self._refresh))
        host, port = self._address
        self._server, _ = start_http_server(port, addr=host, registry=self.registry)
        if self._announce is not None:
            try:
                self._announce(self.port)
            except BaseException:
                self._stop()
                raise

    @property
    def port(self) -> int:
        """The bound port; 0 before `open`."""
        return int(self._server.server_port) if self._server is not None else 0

    def close(self, deadline: float) -> None:  # noqa: ARG002 - closing a listening socket does not wait
        """Stop serving."""
        if self._server is not None:
            self._stop()

    def _stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._server = None

    def abandon(self) -> None:
        """Close the inherited socket: the parent goes on serving it."""
        if self._server is not None:
            self._server.socket.close()


def make_reader(registry: CollectorRegistry) -> Any:
    """Return a reader that shows a user's ordinary OpenTelemetry instruments in ``registry``.

    `opentelemetry-exporter-prometheus` does the work. Kept from it are exponential histograms, which make a whole scrape
    fail, and added is the suffix ``_ratio`` that the Collector gives to gauges of unit ``1``.
    """
    from opentelemetry.exporter.prometheus import PrometheusMetricReader

    class Reader(PrometheusMetricReader):  # type: ignore[misc]  # the package has no type hints in older versions
        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002 - the base's signature
            registry.unregister(self._collector)

        def _receive_metrics(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> None:
            super()._receive_metrics(_presentable(metrics_data), timeout_millis, **kwargs)

    parameters = inspect.signature(PrometheusMetricReader.__init__).parameters
    options: dict[str, Any] = {"disable_target_info": True}
    if "scope_info_enabled" in parameters:
        options["scope_info_enabled"] = False
    if "registry" in parameters:
        reader = Reader(registry=registry, **options)
    else:
        from prometheus_client.core import REGISTRY

        reader = Reader(**options)
        REGISTRY.unregister(reader._collector)
        registry.register(reader._collector)
    _serialise(reader._collector)
    return reader


def _serialise(collector: Any) -> None:
    """Have one scrape at a time collect: of two, one would show every series twice and the other none."""
    lock, collect = Lock(), collector.collect

    def collect_alone() -> list[Metric]:
        with lock:
            return list(collect())

    collector.collect = collect_alone


def _user_name(metric: Any) -> str:
    """Return the name by our rules, which are the Collector's; the reader adds ``_total`` itself."""
    monotonic = getattr(metric.data, "is_monotonic", None)
    kind = "counter" if monotonic else "updown" if monotonic is not None else type(metric.data).__name__.lower()
    name = metric_name(Instrument(metric.name, kind, metric.unit or "", ""))
    return name.removesuffix("_total") if kind == "counter" else name


def _presentable(data: Any) -> Any:
    from opentelemetry.sdk.metrics.export import ExponentialHistogram

    if data is None:
        return None
    resources = []
    for resource in data.resource_metrics:
        scopes = []
        for scope in resource.scope_metrics:
            metrics = []
            for metric in scope.metrics:
                if isinstance(metric.data, ExponentialHistogram):
                    _guard.say(
                        f"exponential {metric.name}",
                        "verl-otel: %s is an exponential histogram; /metrics leaves it out",
                        metric.name,
                    )
                else:
                    metrics.append(replace(metric, name=_user_name(metric), unit=""))
            scopes.append(replace(scope, metrics=metrics))
        resources.append(replace(resource, scope_metrics=scopes))
    return replace(data, resource_metrics=resources)
