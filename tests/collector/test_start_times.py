# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A counter that appears with its first event: Prometheus shows it as a rise from 0, on every way into it."""

import subprocess
import sys

import pytest

PROGRAM = """
import verl_otel

with verl_otel.step(1):
    pass
print("ready", flush=True)
input()
"""
COUNTERS = ("verl_training_steps_total", "verl_step_duration_seconds_count")


@pytest.fixture
def train(tmp_path):
    """Start a process that makes one step and waits: ``train(**settings)``. It is ended with the test."""
    started = []

    def start(**settings):
        environ = {
            "PATH": "/usr/bin:/bin",
            "VERL_OTEL_ENABLED": "1",
            "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"),
            "VERL_OTEL_METRIC_INTERVAL": "1",
            **settings,
        }
        process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environ, stdin=-1, stdout=-1, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"

    yield start
    for process in started:
        process.communicate("\n", timeout=60)


@pytest.fixture(params=["otlp", "collector", "metrics page"])
def prometheus(request, start_prometheus, start_tier, tmp_path, train):
    """A Prometheus that gets the metrics of such a process: by OTLP, from a Collector, or from the process's own page."""
    if request.param == "otlp":
        prometheus = start_prometheus()
        train(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{prometheus.otlp_url}/v1/metrics")
    elif request.param == "collector":
        tier = start_tier("local", ["local.yaml"])
        prometheus = start_prometheus(tier=tier)
        train(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{tier.http_url}/v1/metrics")
    else:
        prometheus = start_prometheus(targets=tmp_path / "runs" / "targets")
        train(VERL_OTEL_EXPORTERS="prometheus")
    return prometheus


def test_the_first_event_is_an_increase(prometheus, wait_for):
    """The series begins with 0 at the time of the first event, so that `increase()` and alerts see that event; no time is a series."""
    for name in COUNTERS:
        wait_for(lambda name=name: prometheus.query(name), 60, 0.2)
        ((_, series),) = [
            (found["metric"], found["values"]) for found in prometheus.ask("query", query=f"{name}[5m]")["result"]
        ]
        assert float(series[0][1]) == 0.0, name
        assert float(series[-1][1]) == 1.0, name
        assert prometheus.query(f"increase({name}[5m])")[0][1] >= 1.0, name
    assert prometheus.query('{__name__=~"verl_.*_created"}') == []
