# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The example of the Collector, with the real one: what was sent is read back."""

import json
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

pytestmark = pytest.mark.collector

STEPS, TRAJECTORIES = 3, 24
SENT = {
    "example_samples_total": TRAJECTORIES,
    "execute_tool lookup": TRAJECTORIES,
    "verl.phase.gen": STEPS,
    "verl.step": STEPS,
    "verl.trajectory": TRAJECTORIES,
    "verl_training_steps_total": STEPS,
}
PORTS = {
    "OTELCOL_GRPC": 4317, "OTELCOL_HTTP": 4318, "OTELCOL_METRICS": 8889, "OTELCOL_HEALTH": 13133, "OTELCOL_SELF_PORT": 8888,
}  # fmt: skip
"""Variables of the Collector's configuration and their ports, which may be in use here."""


READ = "--otlp otelcol-state/traces.jsonl"


def choose_ports(number):
    """Return ports that are free now."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def is_healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=10) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def collector(example, tmp_path, wait_for):
    """The example with its Collector running, started by the commands of the README but on free ports."""
    ran = example("collector")
    ports = dict(zip(PORTS.values(), choose_ports(len(PORTS)), strict=True))
    export, build, *ran.rest = ran.commands()
    ran.run(export)
    if ran.try_run(build).returncode:
        pytest.skip("the Collector is not here and could not be built: make collector")
    addresses = {name: f"127.0.0.1:{ports[port]}" for name, port in PORTS.items()}
    addresses["OTELCOL_SELF_PORT"] = str(ports[8888])
    (start,) = ran.blocks("sh")
    start = start.replace("~/.cache", "${XDG_CACHE_HOME:-$HOME/.cache}")
    log = tmp_path / "collector.log"
    with log.open("wb") as handle:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {start}"],
            env={**ran.environ, **addresses},
            cwd=ran.folder,
            stdout=handle,
            stderr=handle,
        )
    try:
        wait_for(lambda: process.poll() is not None or is_healthy(ports[13133]))
        assert process.poll() is None, log.read_text("utf-8", "replace")[-3000:]
        for old, new in ports.items():
            ran.rest = [command.replace(f":{old}", f":{new}") for command in ran.rest]
        yield ran
    finally:
        process.terminate()
        process.wait(60)


def test_what_was_sent_is_read_back(collector, wait_for):
    """Counters and spans in the Collector are those that the program has recorded."""
    send, read_back = collector.rest
    assert collector.run(send) == f"sent {STEPS} steps and {TRAJECTORIES} trajectories\n"

    def read():
        done = collector.try_run(read_back)  # the file is not there before the first trace is
        return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines()) if done.returncode == 0 else None

    expected = {name: str(count) for name, count in SENT.items()}
    wait_for(lambda: read() == expected)
    assert list(collector.runs.glob("*/traces-*.jsonl")), "an endpoint adds OTLP to the files"
    own, received = (json.loads(collector.run(f"verl-otel report --json {more}")) for more in ("", READ))
    for report in (own, received):  # the Collector has the spans in the order of their arrival
        for step in report["steps"]:
            step["trajectories"].sort()
        report["trajectories"].sort(key=lambda trajectory: trajectory["trace_id"])
    for key in ("run_id", "steps", "trajectories", "orphans"):
        assert received[key] == own[key]
