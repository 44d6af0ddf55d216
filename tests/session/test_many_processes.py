# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Five hundred processes of one run on one node: each is listed, answers, keeps what it recorded, and none is reported as stalled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.environments import inherit

pytestmark = pytest.mark.alone

PROCESSES = 500
SECONDS = 180
"""Seconds in which all of them have to be listed, on a machine of few cores."""
TRAINING = """
import os, sys
import verl_otel
from verl_otel import session
verl_otel.init(exporters="file,prometheus", run_dir=sys.argv[1], run_id="r")
count, (waits, ends) = int(sys.argv[2]), os.pipe()
with verl_otel.step(1):
    session.flush()
    for number in range(count):
        if not os.fork():
            os.close(ends)
            with verl_otel.span(f"child {number}"):
                pass
            os.read(waits, 1)
            verl_otel.shutdown()
            os._exit(0)
    print("forked", flush=True)
    sys.stdin.readline()
    os.close(ends)
    print(sum(os.wait()[1] != 0 for _ in range(count)), flush=True)
verl_otel.shutdown()
"""


@pytest.fixture
def training(tmp_path):
    """A process with five hundred children, which end when it is sent a line."""
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, tmp_path, str(PROCESSES)],
            env={**inherit("PYTEST", "VERL", "OTEL"), "VERL_OTEL_EXIT_TIMEOUT": "30"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout.readline() == "forked\n"
    yield process
    process.communicate(timeout=120)  # closes its input, so that it ends in any case


def discover(folder):
    """Return the state of each process that is listed."""
    command = [Path(sys.executable).with_name("verl-otel"), "discover", "--local", "--json", "--timeout", "30"]
    done = subprocess.run([*command, "--run-dir", folder], capture_output=True, text=True, timeout=SECONDS, check=False)
    return [entry["state"] for entry in json.loads(done.stdout)["targets"]]


def test_five_hundred_processes_on_a_node(training, tmp_path, wait_for, read_run):
    """All are in the targets files and answer scrapes; all spans are in the files; no stall, crash or error is reported."""
    wait_for(lambda: len(list((tmp_path / "targets").glob("r@*.json"))) == PROCESSES + 1, SECONDS)
    states = discover(tmp_path)
    training.stdin.write("end\n")
    training.stdin.flush()
    failed = int(training.stdout.readline())
    training.communicate(timeout=120)
    errors = (tmp_path / "errors").read_text()
    names = {span.name for span in read_run(tmp_path / "r").spans}
    lost = {f"child {number}" for number in range(PROCESSES)} - names
    assert states == ["ok"] * (PROCESSES + 1)
    assert (failed, lost, errors) == (0, set(), "")
    assert not (tmp_path / "r" / "events.jsonl").exists()
