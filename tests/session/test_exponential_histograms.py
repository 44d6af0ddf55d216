# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Exponential buckets of the user's own histograms in OTLP. A global provider can be set once, so each test is a process."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from tests.fakes.otlp_sink import Sink

pytestmark = pytest.mark.full

WORK = """
import urllib.request
import verl_otel
from opentelemetry import metrics
from verl_otel import session
{before}
verl_otel.init(exporters="otlp,file,prometheus", exit_timeout=30)
with verl_otel.step(1):
    pass
session.flush()
histogram = metrics.get_meter("mine").create_histogram("my.seconds")
for value in (0.5, 1.0, 3.0):
    histogram.record(value)
verl_otel.histogram("ours", bounds=(1.0,)).record(0.5)
session.flush()
port = next(exporter.port for exporter in session.current_session().outputs.exporters if exporter.name == "prometheus")
text = urllib.request.urlopen(f"http://127.0.0.1:{{port}}/metrics").read().decode()
assert 'my_seconds_bucket{{le="5.0"}} 3.0' in text, text
verl_otel.shutdown()
"""
ATTACHED = "from opentelemetry.sdk.metrics import MeterProvider\nmetrics.set_meter_provider(MeterProvider())"


@pytest.mark.parametrize("temporality", [2, 1], ids=["cumulative", "delta"])
@pytest.mark.parametrize("before", ["", ATTACHED], ids=["own provider", "attached"])
def test_own_histograms_are_sent_with_exponential_buckets(run, files, tmp_path, temporality, before):
    """OTLP has the user's histogram with exponential buckets; files and /metrics, and our own histograms, keep explicit ones."""
    if before and not hasattr(MeterProvider, "add_metric_reader"):
        pytest.skip("this OpenTelemetry fixes a provider's readers")
    with Sink() as sink:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "base2_exponential_bucket_histogram",
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta" if temporality == 1 else "cumulative",
        }
        result = run(WORK.format(before=before), **variables)
    assert result.code == 0, result.err
    sent = sink.named("my.seconds")
    assert {metric.WhichOneof("data") for metric in sent} == {"exponential_histogram"}
    assert {metric.exponential_histogram.aggregation_temporality for metric in sent} == {temporality}
    points = [point for metric in sent for point in metric.exponential_histogram.data_points]
    assert max((point.count, point.sum, sum(point.positive.bucket_counts)) for point in points) == (3, 4.5, 3)
    assert {metric.WhichOneof("data") for metric in sink.named("ours")} == {"histogram"}
    assert files(tmp_path / "runs" / "r1").last("my.seconds") == 3
