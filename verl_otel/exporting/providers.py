# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's ordinary OpenTelemetry: a global provider where there is none, sharing our exporters.

A provider that is there already stays: then the user's spans and metrics go where he sends them, and ours where we do.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its fork hooks must be first: a TracerProvider uses a pool in every child
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import metrics, trace
from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from verl_otel.model import NONE_DROPPED, REMOTE, EventRecord, LinkRecord, Scope, SpanRecord

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from verl_otel.model import Attributes, Resource


_VENDOR: Final = "verl"
_SCRAPE: Final = "scrape"
"""Our entry in the trace state of a scrape; those of traces are in `verl_otel.semconv.spans`."""


class Providers:
    """What was installed, so that it can be flushed. Every part is None where the user's own stands."""

    def __init__(self) -> None:
        self.tracer: TracerProvider | None = None
        self.meter: MeterProvider | None = None
        self.reader: PullReader | None = None
        self.resource: SdkResource | None = None
        """Who sends now; a provider keeps the one that it was made with."""
        self.readers: tuple[Any, ...] = ()
        """The further readers that see the user's instruments."""

    @property
    def brought(self) -> tuple[Any, ...]:
        """The span processors that the user has added to our provider."""
        return tuple(each for each in _processors(self.tracer) if type(each) is not _Forward)

    def flush(self, timeout: float) -> None:
        """Flush what the user has added to our provider, for at most ``timeout`` seconds, if his processors keep to it."""
        if self.tracer is not None:
            self.tracer.force_flush(int(1000 * timeout))

    @property
    def pulled(self) -> tuple[PullReader, ...]:
        """The readers that collect when asked."""
        mine = (self.reader,) if self.reader is not None else ()
        return (*mine, *(each for each in self.readers if isinstance(each, DifferenceReader)))


_ours = Providers()
"""What was installed first in this process: a global provider can be set once."""


def foreign_provider() -> str:
    """Return the class of the tracer provider that somebody else has set, or an empty text."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return ""
    kind = type(provider)
    return (
        ""
        if any(type(each) is _Forward for each in _processors(provider))
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def install(
    resource: Resource,
    id_generator: Any,
    on_span: Callable[[SpanRecord], None],
    on_metrics: Callable[[bytes], None],
    readers: tuple[Any, ...] = (),
) -> Providers:
    """Install global providers where none is set.

    Args:
        resource: Who sends.
        id_generator: Makes the ids of the user's spans, out of reach of his seeds.
        on_span: Takes each ended span of the user.
        on_metrics: Takes his metrics, encoded, whenever `PullReader.collect` is called.
        readers: More metric readers.
    """
    made = Providers()
    sdk_resource = made.resource = SdkResource(dict(resource.attributes))
    for reader in readers:
        if isinstance(reader, DifferenceReader):
            reader.serve(reader.take, sdk_resource)
    if _ours.reader is not None and metrics.get_meter_provider() is _ours.meter:
        # A second start in this process, or a forked child: the user's instruments go on, to the new callbacks.
        _ours.reader.serve(on_metrics, sdk_resource)
        made.reader, made.meter = _ours.reader, _ours.meter
        made.readers = _exchange_readers(_ours, readers)
    tracer = trace.get_tracer_provider()
    if tracer is _ours.tracer:
        made.tracer = _ours.tracer
    elif isinstance(tracer, trace.ProxyTracerProvider):
        made.tracer = _ours.tracer = TracerProvider(
            resource=sdk_resource, id_generator=_Ids(id_generator), shutdown_on_exit=False
        )
        made.tracer.sampler = NoScrapes(made.tracer.sampler)
        made.tracer.add_span_processor(_Forward(on_span))
        trace.set_tracer_provider(made.tracer)
    if type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider":  # the API does not export the class
        made.reader = PullReader()
        made.reader.serve(on_metrics, sdk_resource)
        made.meter = MeterProvider(
            resource=sdk_resource, metric_readers=[made.reader, *readers], shutdown_on_exit=False
        )
        metrics.set_meter_provider(made.meter)
        made.readers = readers
        _ours.reader, _ours.meter, _ours.readers = made.reader, made.meter, readers
    return made


class NoScrapes(Sampler):
    """Drops a web server's span of a Prometheus scrape, with all below it: an instrumented engine makes one every few seconds.

    Everything else is decided by the sampler that was there (``OTEL_TRACES_SAMPLER``). It need not look at a span's parent, so a
    scrape's trace state says what it is: whatever carries it is part of a scrape. A sampler around the user's, such as
    ``ParentBased``, would drop more than he wants.
    """

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        *rest: Any,
        **more: Any,
    ) -> SamplingResult:
        """Decide on one span; see `Sampler.should_sample`."""
        path = (attributes or {}).get("url.path") or (attributes or {}).get("http.target")
        parent = trace.get_current_span(parent_context).get_span_context()
        if (path == "/metrics" and not parent.is_valid) or parent.trace_state.get(_VENDOR) == _SCRAPE:
            return SamplingResult(Decision.DROP, trace_state=trace.TraceState([(_VENDOR, _SCRAPE)]))
        return self._inner.should_sample(parent_context, trace_id, name, kind, attributes, *rest, **more)

    def get_description(self) -> str:
        """Return the name of this sampler and of the one that it asks."""
        return f"NoScrapes({self._inner.get_description()})"


def _exchange_readers(ours: Providers, readers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Have the provider that is there serve the readers of a new session; return those it took (none in older versions)."""
    add, remove = getattr(ours.meter, "add_metric_reader", None), getattr(ours.meter, "remove_metric_reader", None)
    if add is None or remove is None:
        return ()
    for reader in ours.readers:
        remove(reader)
    for reader in readers:
        add(reader)
    ours.readers = readers
    return readers


class PullReader(MetricReader):
    """Collects the user's instruments when asked, on our thread: no thread of its own."""

    def serve(self, on_metrics: Callable[[bytes], None], resource: SdkResource) -> None:
        """Give what is collected to ``on_metrics``, as of ``resource``: a forked child is not what its parent is."""
        self._on_metrics = on_metrics
        self._resource = resource

    def _receive_metrics(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> None:  # noqa: ARG002
        if metrics_data is None or not metrics_data.resource_metrics:
            return
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        groups = [replace(each, resource=self._resource) for each in metrics_data.resource_metrics]
        self._on_metrics(encode_metrics(replace(metrics_data, resource_metrics=groups)).SerializeToString())

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Do nothing: there is no thread to stop."""


class DifferenceReader(PullReader):
    """Collects differences of the user's instruments, for an exporter that is asked for them.

    Args:
        preference: ``delta`` or ``lowmemory``.
        on_metrics: Takes what is collected, encoded.
    """

    def __init__(self, preference: str, on_metrics: Callable[[bytes], None]) -> None:
        asked = [sdk.ObservableCounter] if preference == "delta" else []
        super().__init__(
            preferred_temporality=dict.fromkeys([sdk.Counter, sdk.Histogram, *asked], AggregationTemporality.DELTA)
        )
        self.take = on_metrics


class _Ids(IdGenerator):
    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_span_id(self) -> int:
        return int(self._generator.make_span_id())

    def generate_trace_id(self) -> int:
        return int(self._generator.make_trace_id())


class _Forward(SpanProcessor):
    def __init__(self, on_span: Callable[[SpanRecord], None]) -> None:
        self._on_span = on_span

    def on_end(self, span: ReadableSpan) -> None:
        self._on_span(_record(span))

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - nothing waits here
        """Say that nothing is left; without a word, old versions do not flush the processors behind this one."""
        return True


def _processors(provider: Any) -> tuple[Any, ...]:
    return tuple(getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ()))


def _record(span: ReadableSpan) -> SpanRecord:
    context = cast("SpanContext", span.get_span_context())  # an ended span has one
    scope = span.instrumentation_scope
    parent = span.parent
    flags = int(context.trace_flags) | (REMOTE if parent is not None and parent.is_remote else 0)
    links = tuple(
        LinkRecord(
            link.context.trace_id,
            link.context.span_id,
            _attributes(link.attributes),
            link.context.trace_state.to_header(),
            REMOTE if link.context.is_remote else 0,
            _count_dropped(link.attributes),
        )
        for link in span.links
    )
    events = tuple(
        EventRecord(event.name, event.timestamp, _attributes(event.attributes), _count_dropped(event.attributes))
        for event in span.events
    )
    dropped = (span.dropped_attributes, span.dropped_events, span.dropped_links)
    return SpanRecord(
        context.trace_id,
        context.span_id,
        parent.span_id if parent is not None else 0,
        span.name,
        span.kind.value + 1,
        span.start_time or 0,
        span.end_time or 0,
        _attributes(span.attributes),
        links,
        events,
        span.status.status_code.value,
        span.status.description or "",
        flags,
        context.trace_state.to_header(),
        Scope(scope.name, scope.version or "", scope.schema_url or "") if scope is not None else None,
        dropped if any(dropped) else NONE_DROPPED,
    )


def _count_dropped(attributes: Any) -> int:
    return int(getattr(attributes, "dropped", 0))


def _attributes(given: Any) -> Attributes:
    """Return the SDK's attributes, which it has already checked, as plain data."""
    return dict(given or {})
