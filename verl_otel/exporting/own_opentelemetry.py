# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's own OpenTelemetry: its spans and metrics reach the exporters of verl-otel, and spans of verl-otel its span processors.

Where the user has set no global provider, one is installed. A provider that is set stays: its spans and metrics go to its exporters, and to those of
verl-otel by a span processor and by readers that are attached to it. Nothing else of it changes. A meter provider of an older OpenTelemetry has fixed
readers and is left alone.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its fork hooks must be first: a TracerProvider uses a pool in every child
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from opentelemetry.trace import SpanContext

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import call_for, remaining
from verl_otel.exporting.base import SCOPE
from verl_otel.exporting.sdk_spans import BEGUN, MAX_WAITING, SpanFeeder
from verl_otel.model import (
    NONE_DROPPED,
    REMOTE,
    SAMPLED,
    EventRecord,
    LinkRecord,
    Scope,
    SpanRecord,
    cut,
)
from verl_otel.semconv.metric_names import MAX_LABEL_BYTES

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from verl_otel.exporting.base import GivenProviders
    from verl_otel.model import Attributes, Batch, Resource, Scope, SpanRecord


ATTACH_SECONDS: Final = 1.0
"""Seconds to wait for the lock of the user's provider, which a collection holds while it calls the user's callbacks."""
_OTLP: Final = "opentelemetry.exporter.otlp."
_SDK: Final = "opentelemetry.sdk."
_EXPORTER_ATTRIBUTES: Final = ("_exporter", "span_exporter")
"""Where readers and span processors of the SDK keep their exporter."""


def can_attach(meter: Any) -> bool:
    """Return whether readers can be added to a meter provider that exists, and removed from it."""
    return all(callable(getattr(meter, name, None)) for name in ("add_metric_reader", "remove_metric_reader"))


def has_otlp_exporter(parts: Iterable[Any]) -> bool:
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

    with contextlib.suppress(TimeoutError):
        call_for(max(0.0, seconds), "verl-otel-attach", run)


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
        self.tracer_of_user: TracerProvider | None = None
        """That provider. Of our spans it gets those below which its own have begun: see `BegunSpans`."""
        self.attached_to: MeterProvider | None = None
        """The meter provider of the user's own that the readers are attached to."""

    @property
    def user_processors(self) -> tuple[Any, ...]:
        """The span processors that the user has added to the installed provider."""
        return list_processors(self.tracer)

    @property
    def receivers(self) -> tuple[Any, ...]:
        """The span processors that get our spans: all of the installed provider, of the user's own those that follow traces from their begin."""
        return self.user_processors if self.tracer is not None else _followers(self.tracer_of_user)

    def flush(self, timeout: float) -> None:
        """Flush the user's processors for at most ``timeout`` seconds, if they observe the limit."""
        if self.tracer is not None:
            self.tracer.force_flush(int(1000 * timeout))

    def detach(self, seconds: float) -> None:
        """Leave the providers of the user's, which keep their own readers and processors; wait for at most ``seconds``."""
        if self.attached is not None:
            self.attached.on_span = self.attached.list_open = None  # a span processor cannot be removed
        meter, self.attached_to = self.attached_to, None
        if meter is None:
            return
        readers = (self.reader, *self.readers)
        if _installed.attached_to is meter:
            _installed.attached_to = _installed.reader = None
            _installed.readers = ()
        detach_readers(meter, readers, seconds)

    @property
    def pull_readers(self) -> tuple[PullReader, ...]:
        """The readers that collect on request."""
        own = (self.reader,) if self.reader is not None else ()
        readers = (*own, *(reader for reader in self.readers if isinstance(reader, OtlpReader)))
        return tuple(reader for reader in readers if is_attached(reader))


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
    """Give our readers new storages in a forked child, whose totals begin at 0.

    Every measurement takes the locks of the storages, and a thread of the parent may have held them. Readers of the user's are left alone.
    """
    BEGUN.clear()  # what the parent had begun it ends, too
    meter: Any = _installed.meter if _installed.meter is not None else _installed.attached_to
    consumer = getattr(meter, "_measurement_consumer", None)
    if consumer is None:
        return
    consumer._lock = threading.Lock()
    ours = (_installed.reader, *_installed.readers)
    consumer._reader_storages = {
        reader: type(storage)(
            consumer._sdk_config, reader._instrument_class_temporality, reader._instrument_class_aggregation
        )
        if reader in ours
        else storage
        for reader, storage in consumer._reader_storages.items()
    }


def install(
    resource: Resource,
    id_generator: Any,
    on_span: Callable[[SpanRecord], None],
    on_metrics: Callable[[bytes], None],
    readers: tuple[Any, ...] = (),
    *,
    sends_otlp: bool = False,
    list_open: ListOpen | None = None,
    given: GivenProviders | None = None,
) -> Providers:
    """Install global providers where none is set, and attach to those that are.

    Args:
        resource: The resource of this process.
        id_generator: Makes the ids of the user's spans, independent of random seeds.
        on_span: Receives each ended span of the user.
        on_metrics: Receives the user's metrics, encoded, whenever `PullReader.collect` is called.
        readers: Further metric readers.
        sends_otlp: Whether verl-otel sends by OTLP. A provider of the user's that does so, too, is left alone.
        list_open: Lists our open spans above a span of the user's.
        given: The providers of the exporter ``sdk``, which waits for those that the user sets: none is installed in their place. None: it is not used.
    """
    providers = Providers()
    sdk_resource = providers.resource = SdkResource(dict(resource.attributes))
    for reader in readers:
        if isinstance(reader, OtlpReader):
            reader.serve(reader.take, sdk_resource)
    forward = _Forward(on_span, list_open)
    _install_tracer(providers, sdk_resource, id_generator, forward, sends_otlp=sends_otlp, given=given)
    _install_meter(providers, sdk_resource, on_metrics, readers, sends_otlp=sends_otlp, given=given)
    return providers


def _install_tracer(
    providers: Providers,
    resource: SdkResource,
    id_generator: Any,
    forward: _Forward,
    *,
    sends_otlp: bool,
    given: GivenProviders | None,
) -> None:
    """Have the user's spans passed on: by the provider that is installed already, by a new one, or by the user's."""
    tracer = trace.get_tracer_provider()
    if tracer is _installed.tracer:
        providers.tracer = _installed.tracer
    elif isinstance(tracer, trace.ProxyTracerProvider):
        if given is not None and given.tracer is None:
            return
        made = TracerProvider(resource=resource, id_generator=_Ids(id_generator), shutdown_on_exit=False)
        made.sampler = NoScrapes(made.sampler)
        made.add_span_processor(forward)
        trace.set_tracer_provider(made)
        providers.tracer = _installed.tracer = made
    elif isinstance(tracer, TracerProvider) and not (sends_otlp and has_otlp_exporter(_list_all_processors(tracer))):
        earlier = [processor for processor in _list_all_processors(tracer) if type(processor) is _Forward]
        providers.attached = earlier[0] if earlier else forward
        providers.attached.on_span, providers.attached.list_open = forward.on_span, forward.list_open
        if given is None or given.tracer not in (None, tracer):
            providers.tracer_of_user = tracer
        if not earlier:
            tracer.add_span_processor(forward)
            _put_first(tracer, forward)


def _put_first(tracer: Any, forward: _Forward) -> None:
    """Have a provider call our processor before the others, which must have seen a span begin before its children do."""
    both = getattr(tracer, "_active_span_processor", None)
    if both is not None and forward in _list_all_processors(tracer):
        both._span_processors = (forward, *list_processors(tracer))


def _install_meter(
    providers: Providers,
    resource: SdkResource,
    on_metrics: Callable[[bytes], None],
    readers: tuple[Any, ...],
    *,
    sends_otlp: bool,
    given: GivenProviders | None,
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
    is_unset = type(meter).__name__ == "_ProxyMeterProvider"  # the API does not export the class
    if is_unset and given is not None and given.meter is None:
        return
    if is_unset:
        providers.meter = MeterProvider(resource=resource, metric_readers=[reader, *readers], shutdown_on_exit=False)
        metrics.set_meter_provider(providers.meter)
    elif can_attach(meter) and not (sends_otlp and has_otlp_exporter(find_readers(meter))):
        providers.attached_to = meter
        attach_readers(meter, (reader, *readers))
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
        found: SpanContext | None = trace.get_current_span(parent_context).get_span_context()
        parent = trace.INVALID_SPAN_CONTEXT if found is None else found  # spans of other libraries may have none
        if (path == "/metrics" and not parent.is_valid) or parent.trace_state.get(_VENDOR) == _SCRAPE:
            return SamplingResult(Decision.DROP, trace_state=trace.TraceState([(_VENDOR, _SCRAPE)]))
        return self._inner.should_sample(parent_context, trace_id, name, kind, attributes, *rest, **more)

    def get_description(self) -> str:
        """Return the name of this sampler and of the inner one."""
        return f"NoScrapes({self._inner.get_description()})"


def _exchange_readers(installed: Providers, readers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace the readers of the installed provider; return the registered ones (none with older versions of the SDK)."""
    meter: Any = installed.meter if installed.meter is not None else installed.attached_to
    if not can_attach(meter):
        return ()
    detach_readers(meter, installed.readers, ATTACH_SECONDS)
    attach_readers(meter, readers)
    installed.readers = readers
    return readers


def without_ours(data: Any) -> Any:
    """Return the user's metrics without those that the exporter ``sdk`` has given to the same provider: our exporters have them already."""
    if data is None or all(
        scope.scope.name != SCOPE.name for each in data.resource_metrics for scope in each.scope_metrics
    ):
        return data
    groups = []
    for group in data.resource_metrics:
        scopes = [scope for scope in group.scope_metrics if scope.scope.name != SCOPE.name]
        groups += [replace(group, scope_metrics=scopes)] if scopes else []
    return replace(data, resource_metrics=groups)


class PullReader(MetricReader):
    """Collects the user's instruments on request, without a thread of its own."""

    def serve(self, on_metrics: Callable[[bytes], None], resource: SdkResource) -> None:
        """Pass collected metrics to ``on_metrics`` with ``resource``, which differs in a forked child."""
        self._on_metrics = on_metrics
        self._resource = resource

    def _receive_metrics(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> None:  # noqa: ARG002
        metrics_data = without_ours(metrics_data)
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


ListOpen = Callable[[Any], Sequence["SpanRecord"]]
"""Returns the records of the open, sampled spans of verl-otel from the root of their trace to a given one; none if it is not ours."""


class _Forward(SpanProcessor):
    def __init__(self, on_span: Callable[[SpanRecord], None], list_open: ListOpen | None = None) -> None:
        self.on_span: Callable[[SpanRecord], None] | None = on_span
        self.list_open = list_open

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Tell the other processors of our spans above one of the user's, before they see it begin."""
        list_open = self.list_open
        if list_open is None or span.parent is None or span.parent.is_remote:
            return
        with error_boundary.suppress_errors("user span"):
            parent = trace.get_current_span(parent_context)
            if isinstance(parent, ReadableSpan):
                return
            followers = _followers(trace.get_tracer_provider())
            for record in list_open(parent) if followers else ():
                BEGUN.begin(record, span.resource, followers)

    def on_end(self, span: ReadableSpan) -> None:
        on_span = self.on_span
        if on_span is not None:
            with error_boundary.suppress_errors("user span"):
                on_span(_record(span))

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - nothing waits here
        """Return True: nothing waits. Old versions of the SDK flush no further processors without it."""
        return True


def _list_all_processors(provider: Any) -> tuple[Any, ...]:
    return tuple(getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ()))


def list_processors(provider: Any) -> tuple[Any, ...]:
    """Return the span processors of a provider that are not ours."""
    return tuple(processor for processor in _list_all_processors(provider) if type(processor) is not _Forward)


def _followers(provider: Any) -> tuple[Any, ...]:
    """Return the span processors of a provider that do something when a span begins. Those of the SDK only export."""
    return tuple(each for each in list_processors(provider) if not type(each).on_start.__module__.startswith(_SDK))


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
    """Return attributes of the SDK, which has validated them, as a dictionary."""
    return dict(given or {})


MAX_MESSAGES: Final = 16
"""Collected messages that are queued for the drain, which runs every second; the oldest are dropped."""


class UserMetricsThread:
    """Runs one collection at a time and queues the results.

    Example:
        collection.begin(providers.pull_readers)
        collection.wait(time.monotonic() + 1.0)
        for message in collection.take(): ...
    """

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self.has_reported = False
        """Whether an instrument of the user has reported anything."""
        self._thread: threading.Thread | None = None
        self._messages: deque[bytes] = deque(maxlen=MAX_MESSAGES)
        self._collect_again: Sequence[PullReader] = ()
        """Readers that collect once more: the collection that is running may have begun before the request."""

    def begin(self, readers: Sequence[PullReader]) -> None:
        """Start a collection; if one is running, another follows it in `wait`."""
        if self._is_running():
            self._collect_again = readers
            return
        self._collect_again = ()
        if not readers:
            return
        thread = threading.Thread(target=self._collect, args=(readers,), name="verl-otel-collect", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # CPython 3.12 starts no threads during interpreter shutdown
            self._collect(readers)
        else:
            self._thread = thread

    def wait(self, deadline: float) -> None:
        """Wait for the collection that was started last, until a deadline (``time.monotonic``)."""
        self._join(deadline)
        if self._collect_again and not self._is_running():
            self.begin(self._collect_again)
            self._join(deadline)

    def put(self, message: bytes) -> None:
        """Queue an encoded message of a reader."""
        self.has_reported = True
        self._messages.append(message)

    @property
    def has_messages(self) -> bool:
        """Whether a message is queued."""
        return bool(self._messages)

    def take(self) -> list[bytes]:
        """Return the messages since the last call, oldest first."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _join(self, deadline: float) -> None:
        if self._thread is not None:
            self._thread.join(remaining(deadline))

    def _collect(self, readers: Sequence[PullReader]) -> None:
        begin = time.thread_time()
        for reader in readers:
            with error_boundary.suppress_errors("user metrics"):
                reader.collect()
        self.cpu_seconds += time.thread_time() - begin


class OwnOpenTelemetry(SpanFeeder):
    """Connects a session with the user's own OpenTelemetry.

    Sampled spans of verl-otel go to the span processors that the user has added to our provider. The thread starts with the first one.

    Args:
        providers: The installed providers.
        metrics: The thread that collects the user's instruments.
        capacity: Spans that may wait; the oldest are dropped.
    """

    name = "user"

    def __init__(self, providers: Providers, metrics: UserMetricsThread, capacity: int = MAX_WAITING) -> None:
        super().__init__(capacity)
        self.metrics = metrics
        self._providers = providers

    @property
    def readers(self) -> tuple[Any, ...]:
        """The further readers that see the user's instruments."""
        return self._providers.readers

    @property
    def is_serving(self) -> bool:
        """Whether spans go to the user's span processors."""
        return self._thread is not None

    def _serve(self) -> bool:
        """Start the thread if the user has span processors; return whether it runs."""
        providers = self._providers
        if self._thread is None and (providers.user_processors or (providers.tracer_of_user and len(BEGUN))):
            try:
                self._start()
            except RuntimeError as error:  # no more threads
                error_boundary.warn_once("user", "verl-otel: your span processors get no spans of verl-otel: %s", error)
        return self.is_serving

    def collect(self) -> None:
        """Have the user's instruments collected, on a thread of their own."""
        self.metrics.begin(self._providers.pull_readers)

    def consume(self, batch: Batch) -> None:
        """Queue the spans of verl-otel. The user's own spans in the batch have been processed already."""
        if not self._serve():
            return
        spans = [span for span in batch.spans if span.scope is None and span.flags & SAMPLED]
        # spans of ours go to no provider of the user's, but for what it has seen begin
        if self._providers.tracer is None:
            spans = [span for span in spans if span.span_id in BEGUN]
        self._put(spans)

    def begin_flush(self, deadline: float) -> None:
        """Start to flush the user's processors, which takes place while our exporters are flushed."""
        if self._serve():
            self._request_flush(deadline)

    def close(self, deadline: float) -> None:
        """Flush, stop, count the rest as dropped, and leave the providers of the user's."""
        super().close(deadline)
        self._providers.detach(remaining(deadline))

    def after_fork(self) -> None:
        """Let the user's instruments measure in a forked child."""
        after_fork()

    def _receivers(self) -> tuple[Any, ...]:
        return self._providers.receivers

    def _sdk_resource(self) -> Any:
        return self._providers.resource

    def _flush_receivers(self, seconds: float) -> None:
        self._providers.flush(seconds)


def attach(
    resource: Resource,
    id_generator: Any,
    on_span: Callable[[SpanRecord], None],
    readers: tuple[Any, ...],
    *,
    sends_otlp: bool,
    list_open: ListOpen | None = None,
    given: GivenProviders | None = None,
) -> OwnOpenTelemetry:
    """Install providers or attach to those that are set; arguments as of `install`."""
    thread = UserMetricsThread()
    providers = install(
        resource, id_generator, on_span, thread.put, readers, sends_otlp=sends_otlp, list_open=list_open, given=given
    )
    return OwnOpenTelemetry(providers, thread)
