# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Instruments of a meter provider that the user set before us. A global provider can be set once, so each test is a process."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from tests.fakes.otlp_sink import Sink, read_sums

pytestmark = pytest.mark.full

CAN_ATTACH = hasattr(MeterProvider, "add_metric_reader")
needs_attaching = pytest.mark.skipif(not CAN_ATTACH, reason="this OpenTelemetry fixes a provider's readers")
PROVIDER = """
import threading, time, urllib.request
import verl_otel
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from verl_otel import session
reader = InMemoryMetricReader()
provider = MeterProvider([reader], shutdown_on_exit=False)
metrics.set_meter_provider(provider)
meter = metrics.get_meter("mine")
counter = meter.create_counter("my.things")
def read():
    return [point.value for group in reader.get_metrics_data().resource_metrics for scope in group.scope_metrics
            for metric in scope.metrics for point in metric.data.data_points]
def count_readers():
    return len(provider._measurement_consumer._reader_storages)
"""
SLOW_GAUGE = """
entered, gate = threading.Event(), threading.Event()
def wait(options):
    entered.set()
    gate.wait()
    return []
meter.create_observable_gauge("slow", [wait])
"""


@pytest.mark.parametrize("start", ["verl_otel.init()", "verl_otel.init(); session.current_session().open_now()"])
def test_instruments_of_a_provider_that_is_there_reach_our_files(run_script, start):
    """The provider, its reader and its values stay; our files have the instruments, too, until the session ends."""
    files = run_script(
        PROVIDER
        + f"""
{start}
with verl_otel.step(1):
    pass
session.flush()
counter.add(7)
assert metrics.get_meter_provider() is provider
session.flush()
assert read() == [7]
assert count_readers() == {2 if CAN_ATTACH else 1}
verl_otel.shutdown()
assert count_readers() == 1
counter.add(1)
assert read() == [8]
"""
    )
    points = files.points("my.things")
    assert [point.value for point in points[-1:]] == ([7] if CAN_ATTACH else [])
    (step,) = files.spans()
    assert {point.resource["service.instance.id"] for point in points} <= {step.resource["service.instance.id"]}


@needs_attaching
def test_a_forked_child_is_collected(run_script):
    """What the user counts in a forked child is in the child's files, although the parent collected at the fork."""
    files = run_script(
        PROVIDER
        + """
import os
verl_otel.init()
session.current_session().open_now()
"""
        + SLOW_GAUGE
        + """
threading.Thread(target=session.flush, daemon=True).start()
assert entered.wait(30)
child = os.fork()
gate.set()
if not child:
    counter.add(7)
    with verl_otel.step(1):
        pass
    session.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    (step,) = files.spans()
    (point,) = files.points("my.things")
    assert (point.value, point.resource["process.pid"]) == (7, step.resource["process.pid"])


@needs_attaching
def test_a_callback_that_does_not_return_holds_nothing_up(run_script):
    """While a collection of the user's holds the provider's lock, we start, record and end in time."""
    files = run_script(
        PROVIDER
        + SLOW_GAUGE
        + """
threading.Thread(target=reader.collect, daemon=True).start()
assert entered.wait(30)
begin = time.monotonic()
verl_otel.init(exit_timeout=2)
with verl_otel.step(1):
    pass
verl_otel.shutdown()
assert time.monotonic() - begin < 20
gate.set()
"""
    )
    assert files.names() == ["verl.step"]


OTLP = """
verl_otel.init(exporters="otlp", exit_timeout=30)
session.current_session().open_now()
counter.add(7)
session.flush()
verl_otel.shutdown()
"""
WITH_OTLP = PROVIDER.replace(
    "MeterProvider([reader]", "MeterProvider([reader, PeriodicExportingMetricReader(OTLPMetricExporter())]"
)
IMPORTS = """
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
"""


@needs_attaching
@pytest.mark.parametrize(("preference", "temporality"), [("cumulative", 2), ("delta", 1)])
def test_they_are_sent_by_otlp(run, preference, temporality):
    """The instruments are sent with the temporality that was asked for."""
    with Sink() as sink:
        asked = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": preference}
        result = run(PROVIDER + OTLP, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint, **asked)
    assert result.code == 0, result.err
    assert (temporality, 7) in read_sums(sink)


@needs_attaching
def test_what_the_provider_sends_by_otlp_is_not_sent_twice(run):
    """A provider that has OpenTelemetry's own OTLP exporter is left alone where we send by OTLP, too."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with Sink() as sink:
        result = run(
            IMPORTS + WITH_OTLP + OTLP + "provider.force_flush()",
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint,
            OTEL_METRIC_EXPORT_INTERVAL="600000",
        )
    assert result.code == 0, result.err
    assert read_sums(sink) == [(2, 7)]
