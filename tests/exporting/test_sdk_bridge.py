# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Our spans as the SDK's: an exporter that a user brings sends what ours sends."""

import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource as SdkResource

from tests.builders.exporting_records import RESOURCE, SCOPE, make_batch, make_span, plain, plain_mapping, spans, steady
from verl_otel.exporting.base import MetricState
from verl_otel.exporting.otlp import protobuf
from verl_otel.exporting.sdk_bridge import UserExporter, make_readable
from verl_otel.model import NONE_DROPPED, Batch, Scope

SDK_RESOURCE = SdkResource(dict(RESOURCE.attributes))


class Taker:
    """A user's span processor."""

    def __init__(self, broken=False):
        self.names, self.broken, self.begun = [], broken, 0
        self.gate = threading.Event()
        self.gate.set()

    def on_end(self, span):
        self.begun += 1
        self.gate.wait()
        if self.broken:
            raise RuntimeError("as told")
        self.names.append(span.name)


@pytest.mark.full
@steady
@given(spans())
def test_the_sdks_exporter_sends_the_same(span):
    """Any span that we may record is encoded by the SDK's own encoder as it is by ours, when it is handed on."""
    values = {"name": plain(span.name), "message": plain(span.message), "attributes": plain_mapping(span.attributes)}
    span = span._replace(scope=None, dropped=NONE_DROPPED, links=(), events=(), **values)
    theirs = encode_spans([make_readable(span, SDK_RESOURCE, SCOPE)])
    theirs.resource_spans[0].scope_spans[0].schema_url = SCOPE.schema_url
    found = theirs.resource_spans[0].scope_spans[0].spans[0]
    if not found.status.ByteSize():
        found.ClearField("status")
    assert str(ExportTraceServiceRequest.FromString(protobuf.encode_traces(RESOURCE, SCOPE, [span]))) == str(theirs)


@pytest.fixture
def user():
    """Have made-up processors of a user served; what they have is complete after a flush."""
    made, gates = [], []

    def serve(*processors, **keywords):
        providers = SimpleNamespace(user_processors=processors, resource=SDK_RESOURCE, flush=lambda seconds: None)
        exporter = UserExporter(providers, **keywords)
        exporter.open(RESOURCE, SCOPE, MetricState())
        made.append(exporter)
        gates.extend(each.gate for each in processors)
        return exporter

    yield serve
    for gate in gates:
        gate.set()
    for exporter in made:
        exporter.close(soon())


def soon():
    return time.monotonic() + 60


def test_only_ours_that_are_kept_are_handed_on(user):
    """The user's own spans are not handed to him twice, and the root of a trajectory that is not kept stays here."""
    taker = Taker()
    exporter = user(taker)
    exporter.consume(Batch(0, (make_span(1), make_span(2, scope=Scope("his")), make_span(3, flags=0))))
    exporter.flush(soon())
    assert taker.names == ["span 1"]


def test_a_processor_that_fails_costs_itself_only(user, swallow):
    """What a user's processor raises is swallowed, and the next one has every span."""
    taker = Taker()
    exporter = user(Taker(broken=True), taker)
    exporter.consume(make_batch(1, 2))
    exporter.flush(soon())
    assert taker.names == ["span 1", "span 2"]


def test_a_span_that_cannot_be_made_costs_itself_only(user):
    """A status that OpenTelemetry does not have loses this span, which is counted; the rest of the batch arrives."""
    taker = Taker()
    exporter = user(taker)
    exporter.consume(Batch(0, (make_span(1), make_span(2, status=7), make_span(3))))
    exporter.flush(soon())
    assert taker.names == ["span 1", "span 3"]
    assert exporter.dropped("spans") == {"cannot be encoded": 1}


@pytest.mark.full
def test_a_slow_processor_is_waited_for_by_nobody(user, wait_for):
    """Spans are taken while it works; the oldest make room and are counted; what it has got is complete and in order."""
    taker = Taker()
    taker.gate.clear()
    exporter = user(taker, capacity=3)
    exporter.consume(make_batch(1))
    wait_for(lambda: taker.begun)
    for number in range(2, 9):
        exporter.consume(make_batch(number))
    assert exporter.dropped("spans") == {"queue full": 4}
    exporter.flush(time.monotonic() + 0.05)  # returns although it has not been done
    taker.gate.set()
    exporter.flush(soon())
    assert taker.names == ["span 1", "span 6", "span 7", "span 8"]


@pytest.mark.full
def test_what_waits_at_the_end_is_counted(user):
    """A processor that does not come back holds the end up until its deadline; what it was not given is dropped."""
    taker = Taker()
    taker.gate.clear()
    exporter = user(taker)
    exporter.consume(make_batch(1, 2, 3))
    exporter.close(time.monotonic() + 0.2)
    assert sum(exporter.dropped("spans").values()) >= 2
    before = time.monotonic()
    exporter.flush(before + 20)
    assert time.monotonic() < before + 10  # it does not wait for the thread that has ended
