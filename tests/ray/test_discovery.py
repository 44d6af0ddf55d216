# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Two nodes of a real Ray: any of them lists the targets of all, nothing stays behind, and a run's files come together."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders.environments import inherit

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytestmark = pytest.mark.ray

HERE = Path(__file__).resolve().parent
OBSTACLES = HERE.parent / "end_to_end" / "obstacles"


class Process:
    """A script that is told commands and answers each with a RESULT line."""

    def __init__(self, environ, *arguments):
        command = [sys.executable, HERE / "ray_nodes.py", *map(str, arguments)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.first = self._read()

    def tell(self, command):
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        self._log.seek(0)
        said = self._log.read()[-3000:]
        self.end()
        raise AssertionError(f"the script ended: {said}")

    def is_running(self):
        return self._process.poll() is None

    def end(self, number=None):
        """End in order, or by a signal."""
        if number is not None:
            self._process.send_signal(number)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()
            self._log.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two raylets in a temporary folder of their own, so that nobody else on this machine finds the cluster."""
    folder = tmp_path_factory.mktemp("nodes")
    hidden = tempfile.mkdtemp(prefix="vo-", dir="/tmp")  # short: Ray's sockets lie in it
    environ = inherit("RAY_", "PYTEST_")
    environ |= {
        "RAY_TMPDIR": hidden,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "VERL_OTEL_RUN_DIR": str(folder / "first"),
    }
    cluster = Process(environ, "cluster", OBSTACLES)
    trainings = []

    def train(run_id):
        settings = {"VERL_OTEL_ENABLED": "1", "VERL_OTEL_EXPORTERS": "file,prometheus", "VERL_OTEL_RUN_ID": run_id}
        made = Process(environ | settings, "train", cluster.first["address"], folder / "second")
        trainings.append(made)
        return made

    def call(*arguments):
        command = [Path(sys.executable).with_name("verl-otel"), *map(str, arguments)]
        done = subprocess.run(
            command, env=environ, cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    def discover(*arguments):
        done = call("discover", "--address", cluster.first["address"], "--json", *arguments)
        assert done.code in (0, 1), done.err
        return done.code, {entry["labels"]["instance"]: entry for entry in json.loads(done.out)["targets"]}

    yield SimpleNamespace(
        cluster=cluster, train=train, call=call, discover=discover, folder=folder, environ=environ, trainings=trainings
    )
    for training in trainings:
        if training.is_running():
            training.end()
    cluster.end()
    deadline = time.monotonic() + 60
    while Path(hidden).exists() and time.monotonic() < deadline:  # Ray's last processes write until they have ended
        shutil.rmtree(hidden, ignore_errors=True)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def training(nodes):
    """A training that goes on: a driver, and an actor on each node."""
    return nodes.train("run-1")


def test_any_node_lists_the_targets_of_all(nodes, training):
    """Driver and both workers are listed wherever one asks, with the contract's labels, and each answers."""
    code, found = nodes.discover("--run-dir", nodes.folder / "nowhere")
    assert set(found) == {"run-1/driver-0", "run-1/agent_loop-0", "run-1/agent_loop-1"}
    assert code == 0, found
    labels = found["run-1/agent_loop-1"]["labels"]
    assert {name: labels[name] for name in ("job", "verl_role", "verl_run_id")} == {
        "job": "verl",
        "verl_role": "agent_loop",
        "verl_run_id": "run-1",
    }
    assert [found[f"run-1/agent_loop-{number}"]["targets"] for number in (0, 1)] == [
        each["targets"] for each in training.first
    ]
    assert nodes.discover("--run", "run-2") == (1, {})


def test_an_engine_is_listed_from_afar(nodes, training):
    """What verl's hook has added in one process is in the list of all."""
    training.tell("engine")
    _, found = nodes.discover()
    assert found["run-1/llm_server-0-vllm"]["labels"]["verl_engine"] == "vllm"
    assert len(found) == 4


def test_prometheus_is_served_the_same(nodes, training):
    """``--serve`` answers with what every node serves."""
    command = [Path(sys.executable).with_name("verl-otel"), "discover", "--serve", "--port", "0"]
    command += ["--address", nodes.cluster.first["address"]]
    process = subprocess.Popen(command, env=nodes.environ, cwd=nodes.folder, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[4]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=60) as answer:
            found = json.load(answer)
        assert {"run-1/agent_loop-0", "run-1/agent_loop-1"} <= {entry["labels"]["instance"] for entry in found}
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_files_of_all_nodes_come_together(nodes, training):
    """While the run goes on its files are fetched from the folders of both nodes, one of which has no verl-otel for us."""
    out = nodes.folder / "together"
    done = nodes.call("collect", "run-1", "--address", nodes.cluster.first["address"], "--output", out)
    assert done.code == 0, done.out + done.err
    assert len(done.out.splitlines()) == 3, done.out
    for number, folder in enumerate(("first", "second")):
        pid = training.first[number]["pid"]
        (origin,) = (nodes.folder / folder / "run-1").glob(f"traces-agent_loop-*-{pid}.jsonl")
        assert origin.read_bytes().startswith((out / origin.name).read_bytes())
        assert (out / origin.name).stat().st_size > 0
    assert json.loads((out / "run.json").read_text())["run_id"] == "run-1"
    assert not list(out.rglob("*.part"))
    assert "Run run-1" in nodes.call("report", out).out


def test_a_worker_that_died_is_not_listed(nodes, training, wait_for):
    """A killed worker cannot say goodbye; it is listed no more, the others are."""
    training.tell("kill")

    def gone():
        return "run-1/agent_loop-1" not in nodes.discover()[1]

    wait_for(gone, seconds=60)
    assert "run-1/agent_loop-0" in nodes.discover()[1]


def test_the_end_of_a_run_leaves_nothing(nodes, training):
    """When the run has ended in order, nothing of it is in Ray's store or in the targets files."""
    assert nodes.cluster.tell("keys")
    training.tell("end")
    assert nodes.cluster.tell("keys") == []
    assert list((nodes.folder / "first" / "targets").glob("*.json")) == []
    training.end()
    assert nodes.discover() == (1, {})


def test_a_crashed_run_is_not_listed_and_cleaned_up(nodes, wait_for):
    """A driver that was killed leaves its notes in Ray's store; whoever lists next drops them."""
    crashed = nodes.train("run-2")
    assert len(nodes.discover()[1]) == 3
    crashed.end(signal.SIGKILL)
    assert nodes.cluster.tell("keys")

    def cleaned():
        assert nodes.discover()[1].keys() <= {"run-2/agent_loop-0", "run-2/agent_loop-1", "run-2/driver-0"}
        return nodes.cluster.tell("keys") == []

    wait_for(cleaned, seconds=60)
    assert nodes.discover() == (1, {})


def test_the_files_of_an_ended_run_are_fetched(nodes):
    """After its end nobody says where a run's files are: they are looked for below the run directory of every node."""
    address = nodes.cluster.first["address"]
    done = nodes.call("collect", "run-1", "--address", address, "--output", nodes.folder / "later")
    assert done.code == 0, done.out + done.err
    done = nodes.call(
        "collect", nodes.folder / "second" / "run-1", "--address", address, "--output", nodes.folder / "second-later"
    )
    assert done.code == 0, done.out + done.err
    assert "on a disk that was read before" in done.out
    done = nodes.call("collect", "run-77", "--address", address)
    assert done.code == 1
    assert "no node has files of run-77" in done.out


def test_a_lost_node_does_not_keep_the_others(nodes):
    """With one node gone the rest is fetched; until Ray knows that it is gone, it is said to have failed."""
    assert nodes.cluster.tell("lose") == "lost"
    done = nodes.call(
        "collect", "run-1", "--address", nodes.cluster.first["address"], "--output", nodes.folder / "rest"
    )
    assert list((nodes.folder / "rest").glob("traces-*")), done.out + done.err
    assert done.code == int("FAILED" in done.out)
