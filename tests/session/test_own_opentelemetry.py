# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's ordinary OpenTelemetry shares our exporters where no provider was set, and is left alone where one was."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider

OWN = """
import concurrent.futures.thread  # its fork hooks must come before those of a TracerProvider
import sys
import verl_otel
from verl_otel import session
from opentelemetry import metrics, trace
verl_otel.init({settings})
tracer, meter = trace.get_tracer("mine", "1.2"), metrics.get_meter("mine")
{work}
"""


@pytest.fixture
def own(run, files, tmp_path):
    """Run a script that uses OpenTelemetry itself; returns the run's files."""

    def finish(work, settings="", **variables):
        result = run(OWN.format(work=work, settings=settings), **variables)
        assert result.code == 0, result.err
        return files(tmp_path / "runs" / "r1")

    return finish


def test_own_spans_end_up_in_our_files(own):
    """A span of the user's tracer is in the files with its scope, attributes and parent, one tree with ours."""
    work = """
with verl_otel.step(1), tracer.start_as_current_span("outer", attributes={"a": 1}):
    with verl_otel.span("ours"), tracer.start_as_current_span("inner"):
        pass
"""
    spans = {span.name: span for span in own(work).spans()}
    assert spans["outer"].parent == spans["verl.step"].id
    assert spans["ours"].parent == spans["outer"].id
    assert spans["inner"].parent == spans["ours"].id
    assert len({span.trace for span in spans.values()}) == 1
    assert (spans["outer"].scope, spans["ours"].scope) == ("mine", "verl_otel")
    assert spans["outer"].attributes == {"a": 1}


def test_own_spans_have_ids_out_of_reach_of_seeds(own):
    """Ids of the user's spans differ although the generator of `random` is seeded the same before each."""
    work = """
import random
for _ in range(50):
    random.seed(42)
    tracer.start_span("own").end()
"""
    spans = own(work).spans()
    assert len({span.trace for span in spans}) == len({span.id for span in spans}) == 50


def test_own_counters_end_up_in_our_files(own):
    """The user's instruments are in the files after a flush."""
    work = 'meter.create_counter("my.things").add(7, {"kind": "x"})\nsession.flush()'
    found = own(work)
    assert found.last("my.things", kind="x") == 7


def test_own_counters_are_complete_at_the_end(own):
    """What the user counted in the last seconds is in the files after shutdown."""
    work = 'counter = meter.create_counter("my.things")\ncounter.add(1)\nsession.flush()\ncounter.add(6)'
    assert own(work).last("my.things") == 7


def test_own_counters_are_collected_after_a_new_start(own):
    """The user's instruments are in the files of a session that was started after another one."""
    work = """
counter = meter.create_counter("my.things")
with verl_otel.step(1):
    pass
verl_otel.shutdown()
verl_otel.init()
counter.add(7)
with verl_otel.step(2):
    pass
session.flush()
"""
    assert own(work).last("my.things") == 7


def test_own_spans_are_kept_after_a_new_start(own):
    """The user's spans are in the files of a session that was started after another one."""
    work = "verl_otel.shutdown()\nverl_otel.init()\nwith tracer.start_as_current_span('own'):\n    pass"
    assert own(work).names() == ["own"]


def test_own_counters_of_a_child_are_collected(own):
    """What the user counts in a forked child is in the child's files."""
    work = """
import os
counter = meter.create_counter("my.things")
if not os.fork():
    counter.add(7)
    with verl_otel.step(1):
        pass
    session.flush()
    os._exit(0)
os.wait()
"""
    (point,) = (found := own(work)).points("my.things")
    (step,) = found.spans()
    assert point.value == 7
    assert point.resource["service.instance.id"] == step.resource["service.instance.id"]


def test_own_instruments_are_on_metrics(own):
    """The user's instruments are on /metrics beside ours, named as the Collector names them."""
    work = """
import urllib.request
meter.create_counter("my.things", unit="By").add(7)
with verl_otel.step(1):
    pass
address = f"http://127.0.0.1:{session.current().exporters[-1].port}/metrics"
text = urllib.request.urlopen(address).read().decode()
assert "my_things_bytes_total 7.0" in text, text
assert "verl_training_steps_total 1.0" in text, text
"""
    own(work, "exporters='file,prometheus'")


@pytest.mark.skipif(
    not hasattr(MeterProvider, "add_metric_reader"), reason="this OpenTelemetry fixes a provider's readers"
)
def test_own_instruments_are_on_metrics_after_a_new_start(own):
    """The user's instruments are on /metrics of every session, which begins at zero as ours do."""
    work = """
import urllib.request
verl_otel.shutdown()
counter = meter.create_counter("my.things")
for _ in range(2):
    verl_otel.init(exporters="prometheus")
    counter.add(7)
    address = f"http://127.0.0.1:{session.current().exporters[-1].port}/metrics"
    text = urllib.request.urlopen(address).read().decode()
    assert "my_things_total 7.0" in text, text
    verl_otel.shutdown()
"""
    own(work, "exporters='prometheus'")


def test_a_provider_that_is_there_stays(own):
    """A provider set before us keeps the user's spans; ours go to our files, in the same trace."""
    work = """
provider = trace.get_tracer_provider()
assert provider is mine, provider
with tracer.start_as_current_span("own") as outer, verl_otel.span("ours"):
    pass
(kept,) = memory.get_finished_spans()
assert kept.name == "own"
print(f"{outer.get_span_context().span_id:016x}", file=open("id", "w"))
"""
    before = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
mine = TracerProvider()
mine.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(mine)
verl_otel.init()
"""
    (ours,) = own(before + work, "enabled=False").spans()
    assert ours.name == "ours"
    assert ours.parent == (ours.path.parents[2] / "id").read_text().strip()


def test_own_spans_do_not_grow_without_bound(own):
    """Spans of the user that wait for a drain are bounded; what is too much is dropped and counted."""
    work = "for number in range(10_500):\n    tracer.start_span(str(number)).end()\nsession.flush()\nsession.flush()"
    found = own(work, "drain_interval=60")
    assert found.names() == [str(number) for number in range(10_000)]
    assert found.last("verl.otel.spans.dropped") == 500
