# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Exporter ``sdk``: spans and metrics go through the OpenTelemetry SDK of the user, as those of other instrumentations do.

Its span processors get the end of each sampled span. Its readers find the metrics as instruments of the scope ``verl_otel``: counters and gauges are
observable and read when a reader collects, histograms are recorded value by value, so that views apply to all of them. It costs what the SDK costs.

A provider that sends by OpenTelemetry's own OTLP exporter gets nothing while verl-otel sends by OTLP, too: it would arrive twice.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.trace import NonRecordingSpan

from verl_otel._internal import error_boundary
from verl_otel.exporting.base import SCOPE, GivenProviders
from verl_otel.exporting.own_opentelemetry import find_readers, has_otlp_exporter, list_processors
from verl_otel.exporting.sdk_spans import FLUSH_SECONDS, SpanFeeder, make_context
from verl_otel.model import SAMPLED, HistogramValue, Instrument, Labels, Point, Values

if TYPE_CHECKING:
    from verl_otel.exporting.base import MetricState
    from verl_otel.model import Batch, Exemplar, Resource, Scope

MAX_VALUES: Final = 100_000
"""Values of histograms that may wait."""
_BOUNDS: Final = "explicit_bucket_boundaries_advisory"
"""Parameter of the API from 1.30 on. With an older one the bounds are those of the user's views or the SDK's default."""


class MeterFeeder:
    """The metrics of verl-otel as instruments of a meter provider. There is one for each provider: an instrument stays for its life.

    Args:
        provider: The user's meter provider.
    """

    def __init__(self, provider: Any) -> None:
        self._meter = provider.get_meter(SCOPE.name, SCOPE.version, SCOPE.schema_url)
        self._instruments: dict[str, Any] = {}
        """By name; None: the SDK refuses it."""
        self._state: MetricState | None = None
        self._lock = threading.Lock()
        self._read = 0
        self._points: dict[str, list[Point]] = {}
        """The points of the version `_read` of the state, by instrument."""
        self._earlier: dict[tuple[str, Labels], float] = {}
        """What the counters of earlier sessions had reached: an observable counter must not fall."""

    def serve(self, state: MetricState | None) -> None:
        """Let the instruments show a state; None: nothing. What a session leaves is shown until the next one begins."""
        with self._lock:
            if state is self._state:
                return
            for point in self._state.read()[1] if self._state is not None else ():
                if point.instrument.kind == "counter":
                    key = (point.instrument.name, point.labels)
                    self._earlier[key] = self._earlier.get(key, 0) + point.value  # type: ignore[operator]
            self._state, self._read, self._points = state, 0, {}
        if state is not None:
            self.add(state.read()[1])

    def forget(self) -> None:
        """Show nothing, and take over nothing: this is a forked child, and another thread may have held the lock."""
        self._lock = threading.Lock()
        self._state, self._read, self._points = None, 0, {}

    def add(self, points: Iterable[Point]) -> None:
        """Create an observable instrument for each metric that has none."""
        for point in points:
            instrument = point.instrument
            if instrument.name not in self._instruments and not isinstance(point.value, HistogramValue):
                kind = {"counter": "counter", "updown": "up_down_counter"}.get(instrument.kind, "gauge")
                self._create(instrument, f"create_observable_{kind}", callbacks=[self._make_callback(instrument.name)])

    def record(self, taken: Values, exemplars: Iterable[Exemplar]) -> None:
        """Record the values of a histogram. Those of exemplars are recorded below the span that they lead to."""
        instrument = taken.instrument
        if instrument.name not in self._instruments:
            parameters = inspect.signature(self._meter.create_histogram).parameters
            more = {_BOUNDS: list(taken.bounds)} if _BOUNDS in parameters and taken.bounds else {}
            self._create(instrument, "create_histogram", **more)
        histogram = self._instruments[instrument.name]
        if histogram is None:
            return
        labels = dict(taken.labels)
        spans = {each.value: each for each in exemplars}
        for value in taken.values:
            exemplar = spans.pop(value, None) if spans else None
            if exemplar is None:
                histogram.record(value, labels)
            else:
                context = make_context(exemplar.trace_id, exemplar.span_id, "", SAMPLED)
                with trace.use_span(NonRecordingSpan(context)):
                    histogram.record(value, labels)

    def _create(self, instrument: Instrument, method: str, **options: Any) -> None:
        try:
            create = getattr(self._meter, method)
            made = create(instrument.name, unit=instrument.unit, description=instrument.description, **options)
        except Exception as error:
            message = "verl-otel: your meter provider refuses the metric %s: %s"
            error_boundary.warn_once(f"sdk {instrument.name}", message, instrument.name, error)
            made = None
        self._instruments[instrument.name] = made

    def _make_callback(self, name: str) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(_: CallbackOptions) -> list[Observation]:
            with error_boundary.suppress_errors("sdk metrics"):
                return list(self._observe(name))
            return []

        return observe

    def _observe(self, name: str) -> Iterator[Observation]:
        """Return the values of a metric. The SDK logs each one that is not finite, and ignores it."""
        for point in self._find(name):
            value = point.value
            if not isinstance(value, HistogramValue) and math.isfinite(value):
                yield Observation(value + self._earlier.get((name, point.labels), 0), dict(point.labels))

    def _find(self, name: str) -> list[Point]:
        """Return the points of a metric, which all instruments of one collection read from the same table."""
        with self._lock:
            if self._state is None:
                return []
            if self._state.version != self._read:
                self._read, points = self._state.read()
                self._points = {}
                for point in points:
                    self._points.setdefault(point.instrument.name, []).append(point)
            return self._points.get(name, [])


_FEEDERS: Final[WeakKeyDictionary[Any, MeterFeeder]] = WeakKeyDictionary()
"""By meter provider."""


class SdkExporter(SpanFeeder):
    """Gives spans and metrics to providers of the user's.

    Args:
        given: The providers. Where one is None the global one is used as soon as it is set; until then spans and values wait.
        sends_otlp: Whether verl-otel sends by OTLP itself.
        on_provider: Called when a provider is there for the first time.
    """

    name = "sdk"

    def __init__(
        self,
        given: GivenProviders,
        sends_otlp: Callable[[], bool] = bool,
        on_provider: Callable[[], object] = bool,
    ) -> None:
        super().__init__()
        self._on_provider = on_provider
        self._known: tuple[Any, Any] = (None, None)
        self._given = given
        self._sends_otlp = sends_otlp
        self._values: deque[tuple[Values, tuple[Exemplar, ...]]] = deque()
        self._merged: tuple[Any, SdkResource] | None = None
        """The tracer provider, and the resource of its spans."""

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:
        """Start the thread."""
        super().open(resource, scope, state)
        self._state = state
        self.update_resource(resource)
        self._start()

    def update_resource(self, resource: Resource) -> None:
        """Use another resource for the spans from now on. Metrics have that of their provider."""
        self._resource, self._merged = resource, None

    @property
    def tracer_provider(self) -> Any:
        """The tracer provider; None while none is set."""
        provider = trace.get_tracer_provider() if self._given.tracer is None else self._given.tracer
        return None if isinstance(provider, trace.ProxyTracerProvider) else provider

    @property
    def meter_provider(self) -> Any:
        """The meter provider; None while none is set."""
        provider = metrics.get_meter_provider() if self._given.meter is None else self._given.meter
        return None if type(provider).__name__ == "_ProxyMeterProvider" else provider

    def consume(self, batch: Batch) -> None:
        """Queue the spans and values of verl-otel; the user's own spans in the batch come from a provider of the user's."""
        found = meter, tracer = self.meter_provider, self.tracer_provider
        if found != self._known:
            self._known = found
            self._on_provider()
        if not self._arrives_twice(find_readers(meter)):
            if meter is not None:
                feeder = _find_feeder(meter)
                feeder.serve(self._state)
                feeder.add(batch.points)
            self._keep(batch)
        if not self._arrives_twice(list_processors(tracer)):
            self._put([span for span in batch.spans if span.scope is None and span.flags & SAMPLED])

    def close(self, deadline: float) -> None:
        """Send the queue and flush the processors until ``deadline``, and stop. The readers go on to show the last values."""
        super().close(deadline)
        self.drop("points", sum(len(taken.values) for taken, _ in tuple(self._values)), "not sent before exit")
        self._values.clear()

    def after_fork(self) -> None:
        """Show nothing in a forked child until a session of its own has recorded something."""
        for feeder in _FEEDERS.values():
            feeder.forget()

    def _arrives_twice(self, parts: Iterable[Any]) -> bool:
        """Return whether readers or processors of a provider send by OTLP what verl-otel sends, too."""
        if not self._sends_otlp() or not has_otlp_exporter(parts):
            return False
        message = (
            "verl-otel: your OpenTelemetry provider sends by OTLP, as verl-otel does: the exporter sdk gives it nothing"
        )
        error_boundary.warn_once("sdk twice", message)
        return True

    def _keep(self, batch: Batch) -> None:
        """Queue the values of histograms; the oldest are dropped."""
        exemplars = {
            (point.instrument.name, point.labels): point.exemplars for point in batch.points if point.exemplars
        }
        for taken in batch.values:
            self._values.append((taken, exemplars.get((taken.instrument.name, taken.labels), ())))
        excess = sum(len(taken.values) for taken, _ in tuple(self._values)) - MAX_VALUES
        dropped = 0
        while dropped < excess:
            try:
                dropped += len(self._values.popleft()[0].values)
            except IndexError:  # the thread has taken the rest
                break
        self.drop("points", dropped, "queue full")
        if batch.values:
            self._wake.set()

    def _send(self, *, is_flush: bool) -> bool:
        meter = self.meter_provider
        feeder = _find_feeder(meter) if meter is not None else None
        while self._values and feeder is not None:
            try:
                taken, exemplars = self._values.popleft()
            except IndexError:  # it was dropped to make room
                break
            with error_boundary.suppress_errors("sdk metrics"):
                feeder.record(taken, exemplars)
        has_spans = bool(self._waiting)
        sent = super()._send(is_flush=is_flush)
        if has_spans and not is_flush:  # Ray kills its workers at the end of a job: a batch that waits would be lost
            with error_boundary.suppress_errors("user exporter"):
                self._flush_receivers(FLUSH_SECONDS)
        return sent

    def _receivers(self) -> tuple[Any, ...]:
        provider = self.tracer_provider
        self._ends_begun = provider is trace.get_tracer_provider()
        return list_processors(provider)

    def _sdk_resource(self) -> SdkResource:
        """Return the resource of the tracer provider, with attributes of verl-otel that it has not."""
        provider = self.tracer_provider
        if self._merged is None or self._merged[0] is not provider:
            self._merged = provider, SdkResource(dict(self._resource.attributes)).merge(provider.resource)
        return self._merged[1]

    def _flush_receivers(self, seconds: float) -> None:
        if self.tracer_provider is not None:
            self.tracer_provider.force_flush(int(1000 * seconds))


def _find_feeder(provider: Any) -> MeterFeeder:
    return _FEEDERS.get(provider) or _FEEDERS.setdefault(provider, MeterFeeder(provider))
