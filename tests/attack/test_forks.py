# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Forks in each of the first three seconds of a process, with every exporter and every way to fork: no child hangs or loses anything."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.builders.environments import inherit
from tests.fakes.http_server import HttpServer

pytestmark = pytest.mark.attack
STORM = Path(__file__).parents[1] / "session" / "fork_storm.py"
FORKS, EVERY = 60, 0.05
EXPORTERS = ("file", "prometheus", "otlp", "console", "otlp,prometheus,file")
METHODS = ("main", "thread", "multiprocessing", "loader")


NAMES = Counter()
"""Names of the children's spans, which hold their process ids."""


def count_names(call):
    if call.path == "/v1/traces":
        groups = ExportTraceServiceRequest.FromString(call.body).resource_spans
        NAMES.update(span.name for group in groups for scope in group.scope_spans for span in scope.spans)
    return 200


@pytest.fixture
def sink():
    """An endpoint for OTLP, with room for all children at once."""
    NAMES.clear()
    with HttpServer(count_names) as server:
        yield server.url


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("exporters", EXPORTERS)
def test_forks_in_the_first_three_seconds(exporters, method, sink, tmp_path, attack_counts):
    """Sixty children, one every 50 ms, all end, and all of their spans are in their files, on their page, or at the endpoint."""
    if method == "loader" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    inherited = inherit("PYTEST", "VERL_OTEL")
    environ = {
        **inherited,
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_RUN_DIR": str(tmp_path),
        "VERL_OTEL_RUN_ID": "r1",
        "VERL_OTEL_EXPORTERS": exporters,
        "VERL_OTEL_DRAIN_INTERVAL": "0.05",
        "VERL_OTEL_EXIT_TIMEOUT": "30",
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink,
    }
    result = subprocess.run(
        [sys.executable, STORM, method, str(FORKS), str(EVERY)],
        check=False,
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    unsent = []
    if "otlp" in exporters:
        unsent = [pid for pid in found["recorded"] if not all(NAMES[f"{p}-{pid}"] for p in ("first", "second"))]
    harm = [*found["hung"], *found["failed"], *found["lost"], *unsent]
    attack_counts(f"forks with {exporters} by {method}", FORKS, len(harm))
    assert (found["hung"], found["failed"], found["lost"], unsent) == ([], [], [], []), result.stderr
    assert "console" not in exporters or all(f"first-{pid}" in result.stderr for pid in found["recorded"])
