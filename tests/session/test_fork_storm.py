# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Forks at many moments of a process's first second: no child hangs, none loses what it recorded."""

import json
from pathlib import Path

import pytest

STORM = Path(__file__).with_name("fork_storm.py")
FORKS = 10
IMPORTS = """
import sys, threading
seen = []
sys.addaudithook(lambda event, args: event == "import" and seen.append((threading.current_thread().name, args[0])))
import time, urllib.request
import verl_otel
{begin}
from opentelemetry import metrics, trace
metrics.get_meter("mine").create_counter("mine").add(1)
with trace.get_tracer("mine").start_as_current_span("mine"), verl_otel.step(1), verl_otel.phase("gen"):
    pass
end = time.monotonic() + 20
while not session.current_session().outputs.exporters and time.monotonic() < end:  # a flush would open them in this thread
    time.sleep(0.05)
session.flush(2)
for each in session.current_session().outputs.exporters:
    if each.name == "prometheus":
        urllib.request.urlopen(f"http://127.0.0.1:{{each.port}}/metrics").read()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    time.sleep(0.1)
session.flush(2)
print(*(each for each in seen if each[0] != "MainThread"))
"""
BEGINNINGS = {
    "init": "from verl_otel import session; verl_otel.init()",
    "plugin": "import verl_otel.plugin; from verl_otel import session",
}
"""How telemetry begins: in a program of one's own, and under verl."""


@pytest.mark.full
@pytest.mark.parametrize("begin", BEGINNINGS)
@pytest.mark.parametrize("exporters", ["file", "prometheus", "otlp", "console", "otlp,prometheus,file"])
def test_no_thread_of_ours_imports(run, exporters, begin):
    """Whatever is exported, every import is made by the thread that starts telemetry: one elsewhere is copied half done by a fork."""
    result = run(
        IMPORTS.format(begin=BEGINNINGS[begin]),
        VERL_OTEL_EXPORTERS=exporters,
        VERL_OTEL_METRIC_INTERVAL="1",
        VERL_OTEL_EXIT_TIMEOUT="1",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://localhost:9",
    )
    assert (result.code, result.out.strip()) == (0, ""), result.err


@pytest.mark.alone  # forks within the first second: a busy machine has no such second
@pytest.mark.parametrize("method", ["main", "thread"])
@pytest.mark.parametrize("exporters", ["file", "otlp,prometheus,file"])
def test_no_child_of_the_first_second_hangs_or_loses_anything(spawn, environ, exporters, method):
    """Children forked every 100 ms, with a drain in every 50 ms, import what they like and keep what they record."""
    code = f"import runpy, sys; sys.argv[1:] = {method!r}, '{FORKS}', '0.1'; runpy.run_path({str(STORM)!r}, run_name='__main__')"
    process = spawn(
        code,
        VERL_OTEL_EXPORTERS=exporters,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        VERL_OTEL_EXIT_TIMEOUT="2",
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert not found["failed"], err
    assert "Exception ignored" not in err
    assert found["early"] + found["whole"] == FORKS
    assert method == "thread" or not found["early"]
    assert (
        found["slowest_fork"] < 12
    )  # the ten seconds that a fork waits at most for the start of telemetry in another thread
