# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A process that sends its metrics to Prometheus by OTLP, without a Collector."""

import subprocess
import sys
import time

import pytest

from tests.collector.tiers import Prometheus

PROGRAM = """
import time
import verl_otel

for number in range(3):
    with verl_otel.step(number), verl_otel.trajectory(uid=str(number)):
        pass
    time.sleep(1.1)  # the process of the test: metrics are sent once a second
print("ready", flush=True)
input()
"""


class StrictPrometheus(Prometheus):
    """A Prometheus with its own defaults, which rejects what is out of order and, to save time, ends a series after three seconds."""

    def __init__(self, program, folder):
        super().__init__(program, folder, "strict")
        text = self.settings.read_text("utf-8")
        window = "  tsdb: {out_of_order_time_window: 30m}"
        assert text.count(window) == 1
        self.settings.write_text(text.replace(window, "  tsdb: {}"), "utf-8")

    def command(self):
        """Return the command line."""
        return [*super().command(), "--query.lookback-delta=3s"]


@pytest.fixture
def prometheus(programs, tmp_path):
    """Start such a Prometheus."""
    process = StrictPrometheus(programs.prometheus, tmp_path)
    yield process.start()
    process.kill()


def test_series_go_on_while_nothing_changes_and_no_request_is_rejected(prometheus, wait_for, tmp_path):
    """The counter of a loop that waits is there after the time in which Prometheus ends a series without new samples; nothing is dropped."""
    settings = {
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"),
        "VERL_OTEL_METRIC_INTERVAL": "1",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{prometheus.otlp_url}/v1/metrics",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": "/usr/bin:/bin", **settings},
        stdin=-1,
        stdout=-1,
        stderr=-1,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        changed = time.time()
        wait_for(lambda: time.time() > changed + 6.0, 30)
        wait_for(lambda: prometheus.total("verl_training_steps_total") == 3, 10)
    finally:
        _, log = process.communicate("\n", timeout=60)
    assert "HTTP 400" not in log
    assert prometheus.total("verl_otel_points_dropped_total") == 0
