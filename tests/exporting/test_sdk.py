# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The exporter ``sdk``: what reaches the processors and readers of a user's providers."""

import gc
import math
import threading
import time
import weakref

import pytest
from opentelemetry import trace
from opentelemetry.metrics._internal import _ProxyMeterProvider
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.builders.exporting_records import NOW, RESOURCE, SCOPE, make_batch, make_histogram, make_point, make_span
from verl_otel.exporting.base import GivenProviders, MetricState
from verl_otel.exporting.sdk import MAX_VALUES, SdkExporter
from verl_otel.model import Batch, EventRecord, Exemplar, Instrument, LinkRecord, Scope, Values

SECONDS = Instrument("verl.tool.call.duration", "histogram", "s", "A test.")
LABELS = (("gen_ai.tool.name", "python"), ("verl.role", "rollout"))


class Case:
    """An exporter with a user's SDK: `spans` and `read` tell what the user has."""

    def __init__(self, views=(), temporality=None):
        self.memory = InMemorySpanExporter()
        self.tracer = TracerProvider(
            resource=SdkResource({"service.name": "mine", "team": "a"}), shutdown_on_exit=False
        )
        self.tracer.add_span_processor(BatchSpanProcessor(self.memory))
        self.reader = InMemoryMetricReader(preferred_temporality=temporality)
        self.meter = MeterProvider([self.reader], views=views, shutdown_on_exit=False)
        self.open()

    def open(self, **keywords):
        self.state = MetricState()
        self.exporter = SdkExporter(GivenProviders(self.tracer, self.meter), **keywords)
        self.exporter.open(RESOURCE, SCOPE, self.state)

    def put(self, batch):
        self.state.update(batch.points, batch.asked)
        self.exporter.consume(batch)
        self.exporter.flush(time.monotonic() + 60)

    def read(self):
        """Return the points of each metric of ours."""
        data = self.reader.get_metrics_data()
        scopes = [scope for group in data.resource_metrics for scope in group.scope_metrics] if data is not None else ()
        assert {scope.scope.name for scope in scopes} <= {"verl_otel"}
        return {metric.name: metric.data.data_points for scope in scopes for metric in scope.metrics}

    def close(self):
        self.exporter.close(time.monotonic() + 60)
        self.tracer.shutdown()
        self.meter.shutdown()


@pytest.fixture
def make():
    """Return an exporter with a user's SDK."""
    made = []

    def begin(*args, **keywords):
        made.append(Case(*args, **keywords))
        return made[-1]

    yield begin
    for case in made:
        case.close()


def test_a_span_arrives_with_everything_in_it(make):
    """Resource of both, the user's first; scope, parent, times, attributes, events, links, status, and the flag of a sampled trace."""
    case = make()
    link, event = LinkRecord(5, 6, {"why": "trained"}), EventRecord("happened", NOW, {"n": 1})
    fields = {"parent_id": 9, "attributes": {"a": 1}, "links": (link,), "events": (event,), "trace_state": "verl=t"}
    case.put(Batch(NOW, (make_span(3, status=2, message="no", kind=3, **fields),)))
    (span,) = case.memory.get_finished_spans()
    assert (span.context.span_id, span.context.trace_id, span.parent.span_id) == (3, 3 << 64 | 7, 9)
    assert span.context.trace_flags.sampled
    assert span.context.trace_state.to_header() == "verl=t"
    assert (span.start_time, span.end_time, span.kind.name) == (NOW, NOW + 10**9, "CLIENT")
    assert dict(span.attributes) == {"a": 1}
    assert [(each.name, dict(each.attributes)) for each in span.events] == [("happened", {"n": 1})]
    assert [(each.context.span_id, dict(each.attributes)) for each in span.links] == [(6, {"why": "trained"})]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no")
    assert (span.instrumentation_scope.name, span.instrumentation_scope.version) == (SCOPE.name, SCOPE.version)
    assert span.resource.attributes["service.name"] == "mine"
    assert span.resource.attributes["team"] == "a"
    assert span.resource.attributes["verl.role"] == "trainer"


def test_only_sampled_spans_of_ours_arrive(make):
    """A root that only files keep does not, nor does a span of the user's own, which comes from a provider of the user's."""
    case = make()
    case.put(Batch(NOW, (make_span(1, flags=0), make_span(2, scope=Scope("mine")), make_span(3))))
    assert [span.name for span in case.memory.get_finished_spans()] == ["span 3"]


def test_a_long_drain_does_not_overflow_a_batch_processor(make):
    """Its queue has room for 2,048 spans."""
    case = make()
    case.put(make_batch(*range(1, 5001)))
    assert len(case.memory.get_finished_spans()) == 5000


def test_no_batch_waits_in_a_process_that_may_be_killed(make):
    """What was drained is exported, without a flush and long before the interval of the batch processor."""
    case = make()
    exported = threading.Event()
    exporter = InMemorySpanExporter()
    exporter.export = lambda spans: exported.set() or SpanExportResult.SUCCESS
    case.tracer.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    case.exporter.consume(make_batch(1))
    assert exported.wait(60)


class Broken(SpanProcessor):
    def on_end(self, span):
        raise RuntimeError("planted")

    def force_flush(self, timeout_millis=30000):
        return True  # otherwise old versions of the SDK flush no further processors


def test_a_broken_processor_costs_nobody_else_a_span(make, swallow):
    """The next processor gets the span."""
    case = make()
    case.tracer.add_span_processor(Broken())
    case.tracer.add_span_processor(BatchSpanProcessor(second := InMemorySpanExporter()))
    case.put(make_batch(1))
    assert len(case.memory.get_finished_spans()) == len(second.get_finished_spans()) == 1


def put_values(case, *values, labels=LABELS, exemplars=()):
    point = make_point(SECONDS.name, "histogram", make_histogram(*values), "s", labels, exemplars=exemplars)
    case.put(Batch(NOW, points=(point,), values=(Values(SECONDS, labels, values, (0.1, 1.0, 10.0)),)))


def test_each_kind_of_metric_is_read(make):
    """A reader has the latest state at each collection: sums, last values, and histograms with our bounds and their exemplars."""
    case = make()
    points = [
        make_point("verl.hits", "counter", 3, labels=LABELS),
        make_point("verl.open", "updown", -2),
        make_point("verl.reward", "gauge", 0.5),
    ]
    case.put(Batch(NOW, points=tuple(points)))
    put_values(case, 0.05, 0.5, 50.0, exemplars=(Exemplar(0.5, NOW, 7, 8),))
    for _ in range(2):
        found = case.read()
        assert {name: [point.value for point in found[name]] for name in ("verl.hits", "verl.open", "verl.reward")} == {
            "verl.hits": [3],
            "verl.open": [-2],
            "verl.reward": [0.5],
        }
        assert dict(found["verl.hits"][0].attributes) == dict(LABELS)
        (histogram,) = found[SECONDS.name]
        assert (histogram.count, histogram.sum, histogram.min, histogram.max) == (3, 50.55, 0.05, 50.0)
    if len(histogram.explicit_bounds) == 3:  # the API knows advice from 1.30 on
        assert tuple(histogram.bucket_counts) == (1, 1, 0, 1)
    exemplars = getattr(histogram, "exemplars", ())
    assert [(each.value, each.trace_id, each.span_id) for each in exemplars] in ([], [(0.5, 7, 8)])


def test_views_apply(make):
    """An attribute that a view drops is gone, the series are added up; bounds of a view are those of the values."""
    drops = View(instrument_name="verl.hits", attribute_keys={"gen_ai.tool.name"})
    bounds = View(
        instrument_name=SECONDS.name, attribute_keys=set(), aggregation=ExplicitBucketHistogramAggregation([0.2, 0.3])
    )
    case = make([bounds, drops])
    other = (LABELS[0], ("verl.role", "trainer"))
    points = tuple(make_point("verl.hits", "counter", 2, labels=labels) for labels in (LABELS, other))
    case.put(Batch(NOW, points=points))
    put_values(case, 0.25, 0.05)
    put_values(case, 0.4, labels=other)
    found = case.read()
    assert [(dict(point.attributes), point.value) for point in found["verl.hits"]] == [(dict(LABELS[:1]), 4)]
    counts = [(dict(point.attributes), tuple(point.bucket_counts)) for point in found[SECONDS.name]]
    assert counts == [({}, (1, 1, 1))]


def test_a_reader_of_differences_gets_them_across_sessions(make):
    """What a second session counts from 0 is added to what the first one had counted."""
    case = make(temporality=dict.fromkeys((Counter, ObservableCounter, Histogram), AggregationTemporality.DELTA))

    def count(value):
        case.put(Batch(NOW, points=(make_point("verl.hits", "counter", value),)))
        return [point.value for point in case.read()["verl.hits"]]

    assert (count(3), count(5)) == ([3], [2])
    case.exporter.close(time.monotonic() + 60)
    case.open()
    assert (count(4), count(6)) == ([4], [2])


def test_what_is_gone_or_not_finite_is_not_read(make, caplog):
    """A series that has been removed, such as that of a lost GPU; a loss that is NaN, of which the SDK would log a line each time."""
    case = make()
    gone = make_point("verl.gpu", "gauge", 1.0, labels=(("gpu", "0"),))
    kept = make_point("verl.gpu", "gauge", 2.0, labels=(("gpu", "1"),))
    loss = make_point("verl.loss", "gauge", math.nan)
    case.put(Batch(NOW, points=(gone, kept, loss), asked=frozenset(["verl.gpu"])))
    assert sorted(point.value for point in case.read()["verl.gpu"]) == [1.0, 2.0]
    case.put(Batch(NOW, points=(kept,), asked=frozenset(["verl.gpu"])))
    assert [point.value for point in case.read()["verl.gpu"]] == [2.0]
    assert "verl.loss" not in case.read()
    assert not caplog.records


def test_a_name_that_the_sdk_refuses_costs_only_itself(make, caplog):
    """It is logged once."""
    case = make()
    for _ in range(2):
        case.put(Batch(NOW, points=(make_point("verl.val@1"), make_point("verl.reward"))))
    assert list(case.read()) == ["verl.reward"]
    assert len([record for record in caplog.records if "verl.val@1" in record.getMessage()]) == 1


def test_values_that_wait_for_a_provider_are_bounded():
    """Without a provider the oldest are dropped and counted, and what is left at the end is counted."""
    exporter = SdkExporter(GivenProviders(trace.ProxyTracerProvider(), _ProxyMeterProvider()))
    exporter.open(RESOURCE, SCOPE, MetricState())
    chunk = Values(SECONDS, LABELS, (0.1,) * 1000, ())
    exporter.consume(Batch(NOW, (make_span(1),), values=(chunk,) * (MAX_VALUES // 1000 + 2)))
    assert exporter.dropped("points") == {"queue full": 2000}
    exporter.close(time.monotonic() + 60)
    assert exporter.dropped("points") == {"queue full": 2000, "not sent before exit": MAX_VALUES}
    assert exporter.dropped("spans") == {"not sent before exit": 1}


class OtlpLike:
    """Stands for OpenTelemetry's own exporter, which a user may not have installed."""

    __module__ = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    _preferred_temporality = _preferred_aggregation = None

    def export(self, spans):
        raise AssertionError("it would arrive twice")

    def shutdown(self):
        pass


def test_what_verl_otel_sends_by_otlp_is_not_sent_again(make, caplog):
    """A provider with OpenTelemetry's own OTLP exporter gets no spans while verl-otel sends by OTLP; its metrics go on."""
    case = make()
    case.tracer.add_span_processor(BatchSpanProcessor(OtlpLike()))
    case.exporter.close(time.monotonic() + 60)
    case.open(sends_otlp=lambda: True)
    case.put(make_batch(1, points=(make_point("verl.reward"),)))
    assert case.memory.get_finished_spans() == ()
    assert list(case.read()) == ["verl.reward"]
    assert "gives it nothing" in caplog.text


def test_a_provider_is_not_kept_alive():
    """A provider of the user's that has no other reference is freed with its session."""
    case = Case()
    case.put(make_batch(1, points=(make_point("verl.reward"),)))
    case.close()
    meter = weakref.ref(case.meter)
    del case
    gc.collect()
    assert meter() is None
