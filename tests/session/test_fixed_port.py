# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Several processes of a run with one fixed port for ``/metrics``: all of them are on the list and can be scraped."""

import json
import socket
import subprocess
import sys
import urllib.request

import verl_otel  # noqa: F401 - the processes need it
from tests.builders.environments import inherit

PROCESS = """
import sys
import verl_otel
from verl_otel import session
with verl_otel.span("work"):
    pass
session.flush()
print("ready", flush=True)
sys.stdin.read()
verl_otel.shutdown()
"""


def test_every_process_of_a_fixed_port_is_listed_and_scraped(tmp_path):
    """The first process has the port, the others have free ones; the targets file has all three, and one line says why."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = inherit("PYTEST") | {
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_EXPORTERS": "prometheus",
        "VERL_OTEL_PROMETHEUS_PORT": str(port),
        "VERL_OTEL_RUN_DIR": str(tmp_path),
        "VERL_OTEL_RUN_ID": "r1",
    }
    program = PROCESS.replace("import verl_otel\n", "import verl_otel\nverl_otel.init()\n", 1)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment, **pipes) for _ in range(3)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
        entries = json.loads((tmp_path / "targets" / "r1.json").read_text())
        addresses = [entry["targets"][0] for entry in entries]
        pages = {address: _scrape(address) for address in addresses}
    finally:
        errors = [process.communicate("", timeout=30)[1] for process in processes]
    assert {entry["labels"]["__meta_verl_otel_pid"] for entry in entries} == {str(process.pid) for process in processes}
    assert len(pages) == 3
    assert f"127.0.0.1:{port}" in pages
    assert all("target_info" in page for page in pages.values())
    assert sorted(text.count(f"VERL_OTEL_PROMETHEUS_PORT={port} is in use") for text in errors) == [0, 1, 1]


def _scrape(address):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=10) as answer:
        return answer.read().decode()
