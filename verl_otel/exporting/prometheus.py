# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus exporter: serves ``/metrics`` with the points of verl-otel, exemplars and the user's OpenTelemetry instruments."""

from __future__ import annotations

import errno
import inspect
import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import remaining
from verl_otel.exporting import http_server
from verl_otel.exporting.base import Exporter
from verl_otel.exporting.http_server import Reply, Request
from verl_otel.model import HistogramValue, Instrument, Point, Resource, cut, to_float
from verl_otel.prometheus_names import SUFFIXES, label_name, metric_name
from verl_otel.semconv.metric_names import MAX_LABEL_BYTES, MAX_LABEL_NAME_BYTES, MAX_LABELS

if TYPE_CHECKING:
    from verl_otel.exporting.base import MetricState
    from verl_otel.model import Scope

MAX_TARGET_LABELS: Final = 30
"""Resource attributes in ``target_info``, those of verl-otel first. Prometheus rejects a scrape beyond ``label_limit``, 40 as shipped."""
START_QUERY: Final = "created=1"
"""Query of a scrape that asks for the time at which each counter and histogram began, as Prometheus reads it with the feature
``created-timestamp-zero-ingestion``: a counter that appears with its first event then rises from 0. Without the feature each would be a series."""
_shows_start: ContextVar[bool] = ContextVar("verl_otel_shows_start", default=False)
_TYPES: Final = {"histogram": "histogram", "counter": "counter", "updown": "gauge", "gauge": "gauge"}


class PointCollector(Collector):
    """Exposes the metric state to ``prometheus_client``.

    Args:
        state: The latest points.
        resource: Becomes ``target_info``.
    """

    def __init__(self, state: MetricState, resource: Resource) -> None:
        self._state = state
        self._resource = resource

    def describe(self) -> Iterable[Metric]:
        """Return nothing: families come and go with what is recorded."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return one family per instrument, with the values of the last drain."""
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
                if _shows_start.get() and family.type != "gauge":
                    family.samples.append(Sample(f"{family.name}_created", _labels(point), point.start_ns / 1e9))
        yield from filter(None, families.values())

    def _target_info(self) -> Metric:
        family = Metric("target", "Resource attributes of this process", "info")
        labels = {
            cut(label_name(key), MAX_LABEL_NAME_BYTES): cut(_plain(_to_label(value)), MAX_LABEL_BYTES)
            for key, value in list(self._resource.attributes.items())[:MAX_TARGET_LABELS]
        }
        family.add_sample("target_info", labels, 1)
        return family


def _family(instrument: Instrument, taken: set[str]) -> Metric | None:
    """Return the family of an instrument, or None if one of its names is taken by another family: the first one stays."""
    kind = _TYPES[instrument.kind]
    name = metric_name(instrument)
    name = name.removesuffix("_total") if kind == "counter" else name
    names = {name + suffix for suffix in SUFFIXES[kind]}
    if names & taken:
        error_boundary.warn_once(
            f"name {name}", "verl-otel: /metrics leaves %r out: its name %s is taken", instrument.name, name
        )
        return None
    taken |= names
    return Metric(name, _plain(instrument.description), kind)


def _to_label(value: object) -> str:
    """Return an attribute as the Collector writes it into a label: sequences and booleans as JSON.

    Example:
        _to_label(("0", "1")) == '["0","1"]'
    """
    if isinstance(value, bool | list | tuple):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _plain(text: str) -> str:
    """Return text that UTF-8 can encode: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _labels(point: Point) -> dict[str, str]:
    return {label_name(key): _plain(value) for key, value in point.labels}


def _samples(name: str, point: Point) -> Iterator[Sample]:
    labels = _labels(point)
    value = point.value
    if not isinstance(value, HistogramValue):
        yield Sample(name, labels, to_float(value))
        return
    exemplars = {bisect_left(value.bounds, exemplar.value): exemplar for exemplar in point.exemplars}
    total = 0
    for index, count in enumerate(value.counts):
        total += count
        bound = str(floatToGoString(value.bounds[index])) if index < len(value.bounds) else "+Inf"  # type: ignore[no-untyped-call]  # prometheus_client's own
        recorded = exemplars.get(index)
        exemplar = None
        if recorded is not None:
            ids = {"trace_id": f"{recorded.trace_id:032x}", "span_id": f"{recorded.span_id:016x}"}
            exemplar = PrometheusExemplar(ids, recorded.value, recorded.time_ns / 1e9)
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, float(total), None, exemplar)
    yield Sample(f"{name}_count", labels, float(value.samples))
    yield Sample(f"{name}_sum", labels, value.total)


class PrometheusExporter(Exporter):
    """Serves ``/metrics``, in text and OpenMetrics form.

    Args:
        host: Address to bind to.
        port: Port; 0 takes a free one, as does a port that another process has.
        announce: Called with the bound port once it serves.
    """

    name = "prometheus"

    def __init__(self, host: str, port: int, announce: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._address = (host, port)
        self._announce = announce
        self.registry = CollectorRegistry(auto_describe=False)
        self._server: http_server.Server | None = None

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:  # noqa: ARG002 - the base's signature
        """Bind and serve.

        Raises:
            OSError: The address cannot be bound.
        """
        self.registry.register(PointCollector(state, resource))
        self._server = _bind(self._address, _make_answer(self.registry))
        self._server.start()
        try:
            if self._announce is not None:
                self._announce(self.port)
        except BaseException:
            self.close(0.0)
            raise

    def make_reader(self) -> Any:
        """Return a reader that exposes the user's own instruments, too."""
        return make_reader(self.registry)

    @property
    def port(self) -> int:
        """The bound port; 0 before `open`."""
        return self._server.port if self._server is not None else 0

    def close(self, deadline: float) -> None:
        """Stop serving. Waits for a response under way until ``deadline`` (`time.monotonic`), a second at most."""
        server, self._server = self._server, None
        if server is not None:
            server.close(min(remaining(deadline), http_server.CLOSE_SECONDS))

    def after_fork(self) -> None:
        """Close the inherited sockets, which the parent goes on serving, and free the registry, which a scrape of the parent may hold."""
        self.registry._lock = threading.Lock()
        if self._server is not None:
            self._server.close_sockets()


def _bind(address: tuple[str, int], answer: Callable[[Request], Reply]) -> http_server.Server:
    """Return a server on this port, or on a free one if another process uses it: every process of a run is scraped."""
    host, port = address
    try:
        return http_server.Server(address, answer)
    except OSError as error:
        if not port or error.errno != errno.EADDRINUSE:
            raise
    server = http_server.Server((host, 0), answer)
    error_boundary.warn_once(
        "prometheus port",
        "verl-otel: VERL_OTEL_PROMETHEUS_PORT=%d is in use on this machine, probably by another process of the run: "
        "this process serves /metrics on %s, which its targets file lists",
        port,
        http_server.show_address(host, server.port),
    )
    return server


def _make_answer(registry: CollectorRegistry) -> Callable[[Request], Reply]:
    """Return the handler of scrapes, with the formats and compression of ``prometheus_client``."""
    app: Any = make_wsgi_app(registry)

    def answer(request: Request) -> Reply:
        started: list[Any] = []
        environ = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
        }
        token = _shows_start.set(START_QUERY in request.query.split("&"))
        try:
            body = b"".join(app(environ, lambda *values: started.extend(values)))
        finally:
            _shows_start.reset(token)
        return Reply(int(started[0].partition(" ")[0]), tuple(started[1]), body)

    return answer


def make_reader(registry: CollectorRegistry) -> Any:
    """Return a reader that exposes the user's OpenTelemetry instruments in ``registry``.

    Based on `opentelemetry-exporter-prometheus`. Exponential histograms are removed, since they make a whole scrape fail, and gauges of
    unit ``1`` get the suffix ``_ratio``, as in the Collector. Instruments of one name in several scopes get a label with the scope's name.
    """
    from opentelemetry.exporter.prometheus import PrometheusMetricReader

    class Reader(PrometheusMetricReader):  # type: ignore[misc]  # the package has no type hints in older versions
        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002 - the base's signature
            registry.unregister(self._collector)

        def _receive_metrics(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> None:
            super()._receive_metrics(_prepare(metrics_data), timeout_millis, **kwargs)

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
    """Let one scrape at a time collect: of two at once, one would have every series twice and the other none."""
    lock, collect = threading.Lock(), collector.collect

    def collect_alone() -> list[Metric]:
        with lock:
            return [_bound_labels(family) for family in collect()]

    collector.collect = collect_alone


def _bound_labels(family: Metric) -> Metric:
    """Return a family with labels within Prometheus's limits: a label that is too long makes the whole scrape fail."""
    for index, sample in enumerate(family.samples):
        if (
            any(len(value) > MAX_LABEL_BYTES // 4 for value in sample.labels.values())
            or len(sample.labels) > MAX_LABELS
        ):
            labels = {
                key: cut(_plain(value), MAX_LABEL_BYTES) for key, value in list(sample.labels.items())[-MAX_LABELS:]
            }
            family.samples[index] = sample._replace(labels=labels)  # the last label is the bound of a bucket
    return family


def _user_name(metric: Any) -> str:
    """Return the Prometheus name by the Collector's rules; the reader adds ``_total`` itself."""
    monotonic = getattr(metric.data, "is_monotonic", None)
    kind = "counter" if monotonic else "updown" if monotonic is not None else type(metric.data).__name__.lower()
    name = metric_name(Instrument(metric.name, kind, metric.unit or "", ""))
    return name.removesuffix("_total") if kind == "counter" else name


def _shared_names(data: Any) -> set[str]:
    """Return the names of instruments that several scopes have: on ``/metrics`` their series would be the same."""
    scopes: dict[str, int] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for name in {_user_name(metric) for metric in scope.metrics}:
                scopes[name] = scopes.get(name, 0) + 1
    return {name for name, count in scopes.items() if count > 1}


def _with_scope(metric: Any, scope: Any) -> Any:
    """Return a metric whose points have the name and version of their scope, as the Collector writes them."""
    added = {"otel_scope_name": scope.name, "otel_scope_version": scope.version or ""}
    points = [replace(point, attributes={**(point.attributes or {}), **added}) for point in metric.data.data_points]
    return replace(metric, data=replace(metric.data, data_points=points))


def _prepare(data: Any) -> Any:
    """Return the user's metrics as the reader of the SDK can show them: see `make_reader`."""
    from opentelemetry.sdk.metrics.export import ExponentialHistogram

    from verl_otel.exporting.own_opentelemetry import without_ours

    data = without_ours(data)
    if data is None:
        return None
    shared = _shared_names(data)
    resources = []
    for resource in data.resource_metrics:
        scopes = []
        for scope in resource.scope_metrics:
            metrics = []
            for metric in scope.metrics:
                if isinstance(metric.data, ExponentialHistogram):
                    error_boundary.warn_once(
                        f"exponential {metric.name}",
                        "verl-otel: %s is an exponential histogram; /metrics leaves it out",
                        metric.name,
                    )
                else:
                    name = _user_name(metric)
                    named = _with_scope(metric, scope.scope) if name in shared else metric
                    metrics.append(replace(named, name=name, unit=""))
            scopes.append(replace(scope, metrics=metrics))
        resources.append(replace(resource, scope_metrics=scopes))
    return replace(data, resource_metrics=resources)
