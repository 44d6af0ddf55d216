# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Processes of one run in containers, which have process ids and host names of their own."""

import subprocess
import sys

import pytest

APART = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--uts", "--mount-proc")
"""Run a command in a container: as process 1, with a host name of its own."""


@pytest.mark.full
def test_two_containers_with_one_host_name_and_pid_are_two_processes(environ, tmp_path, files):
    """In one run and one folder: each has its files and its instance, and none is taken for dead."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make namespaces")
    code = """
import os, sys, time
import verl_otel
from verl_otel.watchdog import monitor
monitor.CONFIRM_SECONDS = 0.0
assert os.getpid() == 1
with verl_otel.span("work"):
    time.sleep(float(sys.argv[1]))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    command = f"hostname trainer && exec {sys.executable} {script} $0"
    started = [subprocess.Popen([*APART, "sh", "-c", command, seconds], env=environ) for seconds in ("0.5", "2.5")]
    assert [process.wait() for process in started] == [0, 0]
    spans = files(tmp_path / "runs" / "r1").spans()
    assert len(spans) == len({span.path for span in spans}) == 2
    assert len({span.resource["service.instance.id"] for span in spans}) == 2
    assert {(span.resource["host.name"], span.resource["process.pid"]) for span in spans} == {("trainer", 1)}
    assert not (tmp_path / "runs" / "r1" / "events.jsonl").exists()
