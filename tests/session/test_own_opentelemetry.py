# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's ordinary OpenTelemetry shares our exporters where no provider was set, and is left alone where one was."""

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from tests.fakes.otlp_sink import Sink, read_sums

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


@pytest.mark.smoke
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


@pytest.mark.smoke
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


@pytest.mark.smoke
def test_own_spans_and_counters_are_kept_after_a_new_start(own):
    """The user's spans and instruments are in the files of a session that was started after another one."""
    work = """
counter = meter.create_counter("my.things")
with verl_otel.step(1):
    pass
verl_otel.shutdown()
verl_otel.init()
counter.add(7)
with verl_otel.step(2), tracer.start_as_current_span("own"):
    pass
session.flush()
"""
    files = own(work)
    assert files.last("my.things") == 7
    assert "own" in files.names()


@pytest.mark.smoke
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
    points = (run_files := own(work)).points("my.things")
    (step,) = run_files.spans()
    assert {(point.value, point.resource["service.instance.id"]) for point in points} == {
        (7, step.resource["service.instance.id"])
    }


@pytest.mark.smoke
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
    address = f"http://127.0.0.1:{session.current_session().outputs.exporters[-1].port}/metrics"
    text = urllib.request.urlopen(address).read().decode()
    assert "my_things_total 7.0" in text, text
    verl_otel.shutdown()
"""
    own(work, "exporters='prometheus'")


@pytest.mark.smoke
def test_own_spans_do_not_grow_without_bound(own):
    """Spans of the user that wait for a drain are bounded; what is too much is dropped and counted."""
    work = "for number in range(10_500):\n    tracer.start_span(str(number)).end()\nsession.flush()\nsession.flush()"
    run_files = own(work, "drain_interval=60")
    assert run_files.names() == [str(number) for number in range(10_000)]
    assert run_files.last("verl.otel.spans.dropped") == 500


@pytest.mark.smoke
def test_large_own_spans_do_not_grow_without_bound(own):
    """Of spans of the user with long texts that wait for a drain, those that fit into the limit are kept, and the others counted."""
    work = """
for number in range(100):
    tracer.start_span(str(number), attributes={"text": f"{number}".ljust(20_000)}).end()
session.flush()
session.flush()
"""
    run_files = own(work, "drain_interval=60, memory_mib=1")
    kept = len(run_files.names())
    assert 20 < kept < (1 << 19) / 19_000
    assert run_files.last("verl.otel.spans.dropped") == 100 - kept


@pytest.mark.smoke
def test_an_exporter_that_the_user_brings_gets_our_spans(own, tmp_path):
    """A span processor that the user adds to the global provider sees our spans beside his own, each once, to the last one."""
    work = f"""
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
class Mine(SpanExporter):
    def export(self, spans):
        with open({str(tmp_path / "mine")!r}, "a") as file:
            for span in spans:
                assert span.resource.attributes["service.name"]
                print(span.name, span.instrumentation_scope.name, span.context.span_id, span.parent and span.parent.span_id, file=file)
        return SpanExportResult.SUCCESS
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(Mine()))
with verl_otel.step(1):
    with verl_otel.tool("python"), tracer.start_as_current_span("his"):
        pass
verl_otel.shutdown()
"""
    files = own(work)
    lines = sorted(line.split() for line in (tmp_path / "mine").read_text().splitlines())
    expected = sorted(
        [*span.name.split(), span.scope, str(int(span.id, 16)), str(int(span.parent, 16)) if span.parent else "None"]
        for span in files.spans()
    )
    assert lines == expected
    assert len(lines) == 3


MINE = """
import os
from opentelemetry.sdk.trace import SpanProcessor
class Mine(SpanProcessor):
    def on_end(self, span):
        with open({path!r}, "a") as file:
            print(os.getpid(), span.name, span.resource.attributes["service.instance.id"], file=file)
trace.get_tracer_provider().add_span_processor(Mine())
"""


@pytest.mark.smoke
@pytest.mark.parametrize("when", ["a second start", "a forked child"])
def test_an_exporter_that_the_user_brings_goes_on_getting_our_spans(own, tmp_path, when):
    """It gets them after a second start and in a forked child, too, with the resource of the process that they are of."""
    if when == "a second start" and (3, 12) <= sys.version_info < (3, 12, 3):
        pytest.skip("CPython 3.12.0 to 3.12.2 start no thread at exit (python/cpython issue 113964)")
    path = tmp_path / "mine"
    again = "verl_otel.shutdown()\nverl_otel.init()\nwith verl_otel.step(1):\n    pass"
    child = "if not os.fork():\n    with verl_otel.step(1):\n        pass\n    verl_otel.shutdown()\n    os._exit(0)\nos.wait()"
    files = own(MINE.format(path=str(path)) + (again if when == "a second start" else child))
    (step,) = files.spans()
    assert path.read_text().split() == [
        str(step.resource["process.pid"]), "verl.step", step.resource["service.instance.id"],
    ]  # fmt: skip


@pytest.mark.full
def test_a_slow_exporter_that_the_user_brings_holds_nothing_up(own):
    """While his processor does not come back, what is recorded is drained, and a host's exporters can be opened."""
    work = """
import threading
from opentelemetry.sdk.trace import SpanProcessor
begun, gate = threading.Event(), threading.Event()
class Mine(SpanProcessor):
    def on_end(self, span):
        begun.set()
        gate.wait()
    def force_flush(self, timeout_millis=0):
        return True
trace.get_tracer_provider().add_span_processor(Mine())
with verl_otel.step(1):
    pass
assert begun.wait(30)
with verl_otel.step(2):
    pass
session.flush(1)
session.current_session().open_now()
import pathlib
assert sum(path.read_text().count('"verl.step"') for path in pathlib.Path("runs/r1").glob("traces-*")) == 2
gate.set()
"""
    assert own(work, "exit_timeout=2").names() == ["verl.step"] * 2


@pytest.mark.smoke
def test_own_counters_are_sent_by_a_second_session_without_differences(run):
    """Where OpenTelemetry fixes a provider's readers, totals are sent in the place of differences; nothing vanishes."""
    code = """
import verl_otel
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
for name in ("add_metric_reader", "remove_metric_reader"):
    if hasattr(MeterProvider, name):
        delattr(MeterProvider, name)
verl_otel.init(exporters="otlp")
verl_otel.shutdown()
verl_otel.init(exporters="otlp", exit_timeout=60)
metrics.get_meter("mine").create_counter("my.things").add(7)
verl_otel.session.flush()
verl_otel.shutdown()
"""
    with Sink() as sink:
        asked = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
        result = run(code, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint, **asked)
    assert result.code == 0, result.err
    assert read_sums(sink)[0] == (2, 7)
    assert result.err.count("their totals are sent (logged once)") == 1


FAILING = """
try:
    with tracer.start_as_current_span("outer", attributes={"gen_ai.input.messages": "S3CRET", "url.full": "http://u:S3CRET@h/?S3CRET"}):
        raise ValueError("S3CRET")
except ValueError:
    pass
"""


@pytest.mark.smoke
@pytest.mark.parametrize("content", [False, True])
def test_content_of_own_spans_is_kept_only_when_asked_for(own, content):
    """Messages and stacks of exceptions, prompts and queries of the user's own spans obey VERL_OTEL_CAPTURE_CONTENT."""
    files = own(FAILING, VERL_OTEL_CAPTURE_CONTENT=str(int(content)))
    text = "".join(path.read_text() for path in files.paths("traces"))
    assert (text.count("S3CRET") >= 5) if content else "S3CRET" not in text
    assert '"outer"' in text
    assert "exception.type" in text
    assert "ValueError" in text
