# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel stack`` with the real programs: what it starts works together, and goes with it."""

import json
import os
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.collector.tiers import fetch

COMMAND = Path(sys.executable).with_name("verl-otel")


@pytest.fixture
def start_stack(programs, tmp_path):
    """Start ``verl-otel stack`` as a process; returns the process and the addresses that it says."""
    started = []

    def start(*arguments, **variables):
        hidden = ("OTEL", "VERL_", "PYTEST")
        inherited = inherit(*hidden)
        process = subprocess.Popen(
            [COMMAND, "stack", "--json", "--data", tmp_path / "stack", "--run-dir", tmp_path / "runs", *arguments],
            env={**inherited, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("{"), process.stderr.read()
        return process, json.loads(line)

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=180)


def ask(said, path, **form):
    return json.loads(fetch(f"{said['prometheus']}/api/v1/{path}?{urllib.parse.urlencode(form)}"))["data"]


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.smoke
def test_a_training_needs_the_two_variables_only(start_stack, run_sender, wait_for):
    """What a process sends to the printed address is in Prometheus and in the file of traces; the rules are loaded, every target is up."""
    _, said = start_stack("--free-ports")
    run_sender("send_catalogue", said["otlp_http"], "trainer", VERL_OTEL_ENABLED="1")

    def is_scraped():
        return ask(said, "query", query='verl_training_steps_total{verl_run_id="r"}')["result"]

    wait_for(is_scraped, 60, 0.5)
    assert ask(said, "rules")["groups"], "no rule was loaded"

    def both_are_up():
        healths = {each["labels"]["job"]: each["health"] for each in ask(said, "targets")["activeTargets"]}
        return healths.get("verl-by-otlp") == healths.get("otelcol") == "up"

    wait_for(both_are_up, 30, 0.5)
    assert Path(said["targets"]).name == "targets"


def test_engines_are_found_by_the_targets_of_their_runs(start_stack, wait_for):
    """What a run on this machine says that it serves is scraped, with the labels that it gives."""
    _, said = start_stack("--free-ports")
    page = urllib.parse.urlsplit(said["collector_metrics"]).netloc  # stands for an engine
    labels = {"job": "verl", "instance": "r/engine-0", "verl_role": "llm_server", "verl_run_id": "r"}
    (Path(said["targets"]) / "r.json").write_text(json.dumps([{"targets": [page], "labels": labels}]))

    def is_scraped():
        return ask(said, "query", query='up{instance="r/engine-0"} == 1')["result"]

    (found,) = wait_for(is_scraped, 60, 0.5)
    assert found["metric"] == {"__name__": "up", **labels}


STAND_IN = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "{ready}" else 404)
        self.end_headers()
json.dump([sys.argv[1:], dict(os.environ)], open("{said}", "w"))
HTTPServer(("127.0.0.1", int(os.environ["{port}"])), Handler).serve_forever()
"""


def test_tempo_and_grafana_are_told_where_everything_is(start_stack, tmp_path):
    """With stand-ins for both: each is started with its ports and folders, Grafana with the boards and the addresses of the others."""
    programs = {
        "tempo": (tmp_path / "tempo", "/ready", "TEMPO_HTTP_PORT"),
        "grafana": (tmp_path / "home" / "bin" / "grafana", "/api/health", "GF_SERVER_HTTP_PORT"),
    }
    for name, (path, ready, port) in programs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(python=sys.executable, ready=ready, port=port, said=tmp_path / f"{name}.json"))
        path.chmod(0o755)
    _, said = start_stack("--free-ports", "--tempo", tmp_path / "tempo", "--grafana-home", tmp_path / "home")
    words, environ = json.loads((tmp_path / "grafana.json").read_text())
    assert words == ["server", "--homepath", str(tmp_path / "home")]
    assert said["grafana"] == f"http://{environ['GF_SERVER_HTTP_ADDR']}:{environ['GF_SERVER_HTTP_PORT']}"
    assert environ["PROMETHEUS_URL"] == said["prometheus"]
    assert environ["TEMPO_URL"] == said["traces"]
    assert (Path(environ["VERL_OTEL_BOARDS"]) / "overview.json").exists()
    assert (Path(environ["GF_PATHS_PROVISIONING"]) / "datasources").is_dir()
    words, environ = json.loads((tmp_path / "tempo.json").read_text())
    assert words[1:] == ["-config.expand-env=true"]
    assert Path(words[0].removeprefix("-config.file=")).name == "tempo.yaml"
    assert Path(environ["TEMPO_DATA"]).is_dir()
    assert not [name for name in environ if name.startswith(("OTEL_", "VERL_OTEL_"))]


def test_it_takes_everything_with_it(start_stack):
    """SIGTERM ends the parts and the command, with code 0; what was gathered stays."""
    process, said = start_stack("--free-ports")
    assert all(map(is_alive, said["pids"].values()))
    process.terminate()
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (0, "")
    assert not any(map(is_alive, said["pids"].values()))
    assert (Path(said["data"]) / "prometheus" / "wal").is_dir()


def test_a_part_that_dies_is_told_with_its_log(start_stack):
    """When a part is killed the command says which, where its log is, ends the others, and returns 1."""
    process, said = start_stack("--free-ports")
    os.kill(said["pids"]["Prometheus"], signal.SIGKILL)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "Prometheus has ended with code -9" in errors
    assert "prometheus.log" in errors
    assert not is_alive(said["pids"]["the Collector"])


def test_the_ports_of_the_environment_are_taken(start_stack):
    """The variables of the configurations move the stack, too; the training's own settings do not reach its parts."""
    ports = [str(port) for port in _find_ports(6)]
    names = ("OTELCOL_GRPC", "OTELCOL_HTTP", "OTELCOL_METRICS", "OTELCOL_SELF_PORT", "OTELCOL_HEALTH")
    variables = dict(zip((*names, "STACK_PROMETHEUS"), ports, strict=True))
    _, said = start_stack(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", **variables)
    assert said["otlp_http"] == f"http://127.0.0.1:{ports[1]}"
    assert said["prometheus"] == f"http://127.0.0.1:{ports[5]}"


def _find_ports(count):
    from verl_otel.cli import stack_components

    return [address.rpartition(":")[2] for address in stack_components.choose_addresses({}, free=True).values()][:count]
