# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Global OpenTelemetry providers for the user's own instruments, which share the exporters of verl-otel.

A provider that is set already stays. The user's spans and metrics go to its exporters, and to those of verl-otel by a span processor and by
readers that are attached to it, see `verl_otel.exporting.attachment`.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its fork hooks must be first: a TracerProvider uses a pool in every child
from collections.abc import Callable
from dataclasses import replace
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import metrics, trace
from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from verl_otel._internal import error_boundary
from verl_otel.exporting import attachment, fork_locks
from verl_otel.model import NONE_DROPPED, REMOTE, EventRecord, LinkRecord, Scope, SpanRecord, WeighedAttributes, cut
from verl_otel.semconv.metric_names import MAX_LABEL_BYTES

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from verl_otel.model import Attributes, Resource


LONG_TEXT: Final = 256
"""Characters from which a text in the user's own spans counts as a large attribute."""
_VENDOR: Final = "verl"
_SCRAPE: Final = "scrape"
"""Entry of verl-otel in the trace state of a scrape; those of traces are in `verl_otel.semconv.spans`."""


class Providers:
    """The installed providers. A part is None if the user has set one."""

    def __init__(self) -> None:
        self.tracer: TracerProvider | None = None
        self.meter: MeterProvider | None = None
        self.reader: PullReader | None = None
        self.resource: SdkResource | None = None
        """Resource of the current session; a provider keeps the one that it was created with."""
        self.readers: tuple[Any, ...] = ()
        """The further readers that see the user's instruments."""
        self.attached: _Forward | None = None
        """The span processor on the tracer provider of the user's own."""
        self.attached_to: MeterProvider | None = None
        """The meter provider of the user's own that the readers are attached to."""

    @property
    def user_processors(self) -> tuple[Any, ...]:
        """The span processors that the user has added to the installed provider."""
        return tuple(processor for processor in _processors(self.tracer) if type(processor) is not _Forward)

    def flush(self, timeout: float) -> None:
        """Flush the user's processors for at most ``timeout`` seconds, if they observe the limit."""
        if self.tracer is not None:
            self.tracer.force_flush(int(1000 * timeout))

    def detach(self, seconds: float) -> None:
        """Leave the providers of the user's, which keep their own readers and processors; wait for at most ``seconds``."""
        if self.attached is not None:
            self.attached.on_span = None  # a span processor cannot be removed
        meter, self.attached_to = self.attached_to, None
        if meter is None:
            return
        readers = (self.reader, *self.readers)
        if _installed.attached_to is meter:
            _installed.attached_to = _installed.reader = None
            _installed.readers = ()
        attachment.detach_readers(meter, readers, seconds)

    @property
    def pull_readers(self) -> tuple[PullReader, ...]:
        """The readers that collect on request."""
        own = (self.reader,) if self.reader is not None else ()
        readers = (*own, *(reader for reader in self.readers if isinstance(reader, OtlpReader)))
        return tuple(reader for reader in readers if attachment.is_attached(reader))


_installed = Providers()
"""The providers that were installed first in this process: a global provider can be set once."""


def foreign_provider() -> str:
    """Return the class of a tracer provider that is not from verl-otel, or an empty text."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider) or provider is _installed.tracer:
        return ""
    kind = type(provider)
    return f"{kind.__module__}.{kind.__qualname__}"


def after_fork() -> None:
    """Replace the locks of the user's instruments in a forked child: a thread of the parent may have held them."""
    fork_locks.renew(_installed.meter, _installed.reader, _installed.readers)


def install(
    resource: Resource,
    id_generator: Any,
    on_span: Callable[[SpanRecord], None],
    on_metrics: Callable[[bytes], None],
    readers: tuple[Any, ...] = (),
    *,
    sends_otlp: bool = False,
) -> Providers:
    """Install global providers where none is set, and attach to those that are.

    Args:
        resource: The resource of this process.
        id_generator: Makes the ids of the user's spans, independent of random seeds.
        on_span: Receives each ended span of the user.
        on_metrics: Receives the user's metrics, encoded, whenever `PullReader.collect` is called.
        readers: Further metric readers.
        sends_otlp: Whether verl-otel sends by OTLP. A provider of the user's that does so, too, is left alone.
    """
    providers = Providers()
    sdk_resource = providers.resource = SdkResource(dict(resource.attributes))
    for reader in readers:
        if isinstance(reader, OtlpReader):
            reader.serve(reader.take, sdk_resource)
    _install_tracer(providers, sdk_resource, id_generator, on_span, sends_otlp=sends_otlp)
    _install_meter(providers, sdk_resource, on_metrics, readers, sends_otlp=sends_otlp)
    return providers


def _install_tracer(
    providers: Providers,
    resource: SdkResource,
    id_generator: Any,
    on_span: Callable[[SpanRecord], None],
    *,
    sends_otlp: bool,
) -> None:
    """Have the user's spans passed on: by the provider that is installed already, by a new one, or by the user's."""
    tracer = trace.get_tracer_provider()
    if tracer is _installed.tracer:
        providers.tracer = _installed.tracer
    elif isinstance(tracer, trace.ProxyTracerProvider):
        made = TracerProvider(resource=resource, id_generator=_Ids(id_generator), shutdown_on_exit=False)
        made.sampler = NoScrapes(made.sampler)
        made.add_span_processor(_Forward(on_span))
        trace.set_tracer_provider(made)
        providers.tracer = _installed.tracer = made
    elif isinstance(tracer, TracerProvider) and not (sends_otlp and attachment.sends_otlp(_processors(tracer))):
        earlier = [processor for processor in _processors(tracer) if type(processor) is _Forward]
        providers.attached = earlier[0] if earlier else _Forward(on_span)
        providers.attached.on_span = on_span
        if not earlier:
            tracer.add_span_processor(providers.attached)


def _install_meter(
    providers: Providers,
    resource: SdkResource,
    on_metrics: Callable[[bytes], None],
    readers: tuple[Any, ...],
    *,
    sends_otlp: bool,
) -> None:
    """Have the user's instruments collected: by the provider that is installed already, by a new one, or by the user's."""
    meter: Any = metrics.get_meter_provider()
    if _installed.reader is not None and (meter is _installed.meter or meter is _installed.attached_to):
        # A second session in this process, or a forked child: the user's instruments report to the new callbacks.
        _installed.reader.serve(on_metrics, resource)
        providers.reader, providers.meter = _installed.reader, _installed.meter
        providers.attached_to = _installed.attached_to
        providers.readers = _exchange_readers(_installed, readers)
        return
    reader = PullReader()
    reader.serve(on_metrics, resource)
    if type(meter).__name__ == "_ProxyMeterProvider":  # the API does not export the class
        providers.meter = MeterProvider(resource=resource, metric_readers=[reader, *readers], shutdown_on_exit=False)
        metrics.set_meter_provider(providers.meter)
    elif attachment.can_attach(meter) and not (sends_otlp and attachment.sends_otlp(attachment.find_readers(meter))):
        providers.attached_to = meter
        attachment.attach_readers(meter, (reader, *readers))
    else:
        return
    providers.reader, providers.readers = reader, readers
    _installed.reader, _installed.meter, _installed.readers = reader, providers.meter, readers
    _installed.attached_to = providers.attached_to


class NoScrapes(Sampler):
    """Drops a web server's span of a Prometheus scrape, with all below it: an instrumented engine makes one every few seconds.

    Everything else is decided by the sampler that was there (``OTEL_TRACES_SAMPLER``). It need not look at a span's parent, so a
    scrape's trace state marks its children. A sampler around the user's, such as ``ParentBased``, would drop
    more than the user wants.
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
        """Return the name of this sampler and of the inner one."""
        return f"NoScrapes({self._inner.get_description()})"


def _exchange_readers(installed: Providers, readers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace the readers of the installed provider; return the registered ones (none with older versions of the SDK)."""
    meter: Any = installed.meter if installed.meter is not None else installed.attached_to
    if not attachment.can_attach(meter):
        return ()
    attachment.detach_readers(meter, installed.readers, attachment.ATTACH_SECONDS)
    attachment.attach_readers(meter, readers)
    installed.readers = readers
    return readers


class PullReader(MetricReader):
    """Collects the user's instruments on request, without a thread of its own."""

    def serve(self, on_metrics: Callable[[bytes], None], resource: SdkResource) -> None:
        """Pass collected metrics to ``on_metrics`` with ``resource``, which differs in a forked child."""
        self._on_metrics = on_metrics
        self._resource = resource

    def _receive_metrics(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> None:  # noqa: ARG002
        if metrics_data is None or not metrics_data.resource_metrics:
            return
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        groups = [replace(_bound_labels(group), resource=self._resource) for group in metrics_data.resource_metrics]
        self._on_metrics(encode_metrics(replace(metrics_data, resource_metrics=groups)).SerializeToString())

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Do nothing: there is no thread to stop."""


def _bound_labels(group: Any) -> Any:
    """Return metrics with labels within Prometheus's limits: it rejects the whole scrape of a Collector for one long label."""
    if not any(
        _is_long(point)
        for scope in group.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ):
        return group
    scopes = [replace(scope, metrics=list(map(_bound_metric, scope.metrics))) for scope in group.scope_metrics]
    return replace(group, scope_metrics=scopes)


def _bound_metric(metric: Any) -> Any:
    points = [replace(point, attributes=_cut_all(point.attributes)) for point in metric.data.data_points]
    return replace(metric, data=replace(metric.data, data_points=points))


def _is_long(point: Any) -> bool:
    attributes = point.attributes or {}
    return any(type(value) is str and len(value) > MAX_LABEL_BYTES // 4 for value in attributes.values())


def _cut_all(attributes: Any) -> dict[str, Any]:
    return {
        key: cut(value, MAX_LABEL_BYTES) if type(value) is str else value for key, value in (attributes or {}).items()
    }


class OtlpReader(PullReader):
    """Collects the user's instruments for the OTLP exporter alone: deltas, or histograms with exponential buckets.

    Args:
        preference: ``cumulative``, ``delta`` or ``lowmemory``.
        on_metrics: Receives the collected metrics, encoded.
        exponential: Whether histograms have exponential buckets, where no view of the user's decides.
    """

    def __init__(self, preference: str, on_metrics: Callable[[bytes], None], *, exponential: bool = False) -> None:
        asked = [sdk.ObservableCounter] if preference == "delta" else []
        deltas = [] if preference == "cumulative" else [sdk.Counter, sdk.Histogram, *asked]
        super().__init__(
            preferred_temporality=dict.fromkeys(deltas, AggregationTemporality.DELTA),
            preferred_aggregation={sdk.Histogram: ExponentialBucketHistogramAggregation()} if exponential else None,
        )
        self.take = on_metrics


class _Ids(IdGenerator):
    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_span_id(self) -> int:
        return int(self._generator.make_span_id())

    def generate_trace_id(self) -> int:
        return int(self._generator.make_trace_id())

    def is_trace_id_random(self) -> bool:
        return True


class _Forward(SpanProcessor):
    def __init__(self, on_span: Callable[[SpanRecord], None]) -> None:
        self.on_span: Callable[[SpanRecord], None] | None = on_span

    def on_end(self, span: ReadableSpan) -> None:
        on_span = self.on_span
        if on_span is not None:
            with error_boundary.suppress_errors("user span"):
                on_span(_record(span))

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - nothing waits here
        """Return True: nothing waits. Old versions of the SDK flush no further processors without it."""
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
        _weighed(span.attributes, [*links, *events]),
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


def _weighed(given: Any, parts: list[Any]) -> Attributes:
    """Return the attributes of a span, with the bytes of long texts in them and in its links and events, if any."""
    own = _attributes(given)
    weight = 0
    for attributes in (own, *[part.attributes for part in parts]):
        for value in attributes.values():
            items = value if type(value) is tuple else (value,)
            weight += sum([getsizeof(item) for item in items if type(item) is str and len(item) > LONG_TEXT])
    return WeighedAttributes(own, weight) if weight else own


def _attributes(given: Any) -> Attributes:
    """Return attributes of the SDK, which has validated them, as a dictionary."""
    return dict(given or {})
