# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's own SDK with the exporter ``sdk``: whole processes, since a global provider can be set once."""

import json

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from tests.fakes.otlp_sink import Sink
from verl_otel.exporting.own_opentelemetry import can_attach

CAN_ATTACH = can_attach(MeterProvider)
"""Whether the user's instruments reach our exporters, too: from OpenTelemetry 1.43 on."""

SETUP = """
import json, os, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader, ConsoleMetricExporter
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import verl_otel
from verl_otel import session
memory, reader = InMemorySpanExporter(), InMemoryMetricReader()
def set_providers():
    tracer = TracerProvider(resource=Resource({"service.name": "mine"}))
    tracer.add_span_processor(BatchSpanProcessor(memory))
    trace.set_tracer_provider(tracer)
    views = [View(instrument_name="verl.rollout.trajectory.duration", attribute_keys=set())]
    metrics.set_meter_provider(MeterProvider([reader], views=views))
def read_metrics():
    data = reader.get_metrics_data()
    return {m.name: m.data.data_points for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
@verl_otel.tool("python")
def call_tool():
    with trace.get_tracer("user").start_as_current_span("mine"):
        pass
def train(steps):
    for number in range(1, steps + 1):
        with verl_otel.step(number):
            with verl_otel.phase("gen"):
                for rollout in range(2):
                    with verl_otel.trajectory("prompt", rollout):
                        call_tool()
def say(**facts):
    print("FACTS " + json.dumps(facts))
"""
STEP = ["verl.step", "verl.phase.gen", *["verl.trajectory", "execute_tool python", "mine"] * 2]


def read_facts(result):
    assert result.code == 0, result.err
    (line,) = [line for line in result.out.splitlines() if line.startswith("FACTS ")]
    return json.loads(line.removeprefix("FACTS "))


@pytest.mark.smoke
def test_a_users_sdk_shows_a_whole_step_and_the_metrics(run, files, tmp_path):
    """Global providers, a batch processor, a view that drops all attributes. Our files have each span and metric once, the user's among them."""
    result = run(
        SETUP
        + """
set_providers()
verl_otel.init()
train(1)
metrics.get_meter("user").create_counter("my.counter").add(2)
verl_otel.shutdown()
spans = {span.context.span_id: span for span in memory.get_finished_spans()}
found = read_metrics()
say(names=sorted(span.name for span in spans.values()),
    above=sorted({(span.name, spans[span.parent.span_id].name) for span in spans.values() if span.parent}),
    one_resource=len({span.resource.attributes["service.name"] for span in spans.values()}),
    step=[(dict(point.attributes), point.count) for point in found["verl.step.duration"]],
    trajectories=[(dict(point.attributes), point.count) for point in found["verl.rollout.trajectory.duration"]],
    state=[point.value for point in found["verl.run.state"]],
    counter=[point.value for point in found["my.counter"]])
""",
        VERL_OTEL_EXPORTERS="sdk,file",
    )
    facts = read_facts(result)
    assert facts["names"] == sorted(STEP)
    assert facts["above"] == [
        ["execute_tool python", "verl.trajectory"],
        ["mine", "execute_tool python"],
        ["verl.phase.gen", "verl.step"],
    ]
    assert facts["one_resource"] == 1
    assert [count for _, count in facts["step"]] == [1]
    assert facts["trajectories"] == [[{}, 2]]
    assert facts["counter"] == [2]
    found = files(tmp_path / "runs" / "r1")
    assert sorted(found.names()) == sorted(STEP)
    assert found.last("verl.step.duration") == 1
    assert found.last("my.counter") == (2 if CAN_ATTACH else 0)


@pytest.mark.full
def test_providers_may_be_set_after_the_first_record(run):
    """What was recorded until then waits, and no provider of ours takes the place."""
    result = run(
        SETUP
        + """
verl_otel.init()
train(1)
session.flush()
set_providers()
train(1)
verl_otel.shutdown()
names = [span.name for span in memory.get_finished_spans()]
say(steps=names.count("verl.step"), count=read_metrics()["verl.step.duration"][0].count, mine=names.count("mine"))
""",
        VERL_OTEL_EXPORTERS="sdk",
    )
    assert read_facts(result) == {"steps": 2, "count": 2, "mine": 2}


@pytest.mark.full
def test_the_last_records_are_exported_at_exit(run):
    """Telemetry ends before the user's providers, which are set after it was switched on: their last export has everything."""
    result = run(
        SETUP
        + """
verl_otel.span  # the first use of a verb switches telemetry on
tracer = TracerProvider()
tracer.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=lambda span: f"SPAN {span.name}\\n")))
trace.set_tracer_provider(tracer)
exporter = ConsoleMetricExporter(formatter=lambda data: f"METRICS {'verl.step.duration' in data.to_json()}\\n")
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))
with verl_otel.span("first"):
    pass
session.flush()
train(1)
""",
        VERL_OTEL_EXPORTERS="sdk",
        VERL_OTEL_DRAIN_INTERVAL="60",
    )
    assert result.code == 0, result.err
    assert sorted(line for line in result.out.splitlines() if line.startswith("SPAN")) == sorted(
        f"SPAN {name}" for name in ["first", *STEP]
    )
    assert "METRICS True" in result.out


@pytest.mark.full
def test_a_forked_child_has_its_own_records(run):
    """The instruments of the parent show what the child has measured, and nothing of the parent."""
    result = run(
        SETUP
        + """
set_providers()
train(2)
session.flush()
read_end, write_end = os.pipe()
if not os.fork():
    memory.clear()
    train(1)
    verl_otel.shutdown()
    names = [span.name for span in memory.get_finished_spans()]
    os.write(write_end, json.dumps([names.count("verl.step"), len(read_metrics()["verl.run.state"])]).encode())
    os._exit(0)
assert os.wait()[1] == 0
say(child=json.loads(os.read(read_end, 1000)))
""",
        VERL_OTEL_EXPORTERS="sdk",
    )
    assert read_facts(result) == {"child": [1, 1]}


@pytest.mark.full
def test_our_exporters_do_not_read_our_metrics_from_the_users_provider(run):
    """With OTLP and ``/metrics`` beside it each metric has one series; those of the user are there, too."""
    with Sink() as sink:
        result = run(
            SETUP
            + """
set_providers()
verl_otel.init()
train(1)
metrics.get_meter("user").create_counter("my.counter").add(2)
session.flush()
from prometheus_client import generate_latest
(exporter,) = [each for each in session.current_session().outputs.exporters if each.name == "prometheus"]
text = generate_latest(exporter.registry).decode()
verl_otel.shutdown()
say(steps=text.count("verl_step_duration_seconds_count"), mine=text.count("\\nmy_counter_total"))
""",
            VERL_OTEL_EXPORTERS="sdk,otlp,prometheus",
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint,
        )
    assert read_facts(result) == {"steps": 1, "mine": int(CAN_ATTACH)}
    origins = {
        (
            scope.scope.name,
            next(pair.value.string_value for pair in group.resource.attributes if pair.key == "service.name"),
        )
        for request in sink.metrics
        for group in request.resource_metrics
        for scope in group.scope_metrics
    }
    assert ("verl_otel", "mine") not in origins
    assert "verl_otel" in {scope for scope, _ in origins}
