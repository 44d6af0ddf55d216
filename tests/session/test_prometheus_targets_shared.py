# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Targets beyond one process: the address that others use, engines, files of crashed runs, mirrors on other machines."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import verl_otel
from tests.builders.environments import inherit
from verl_otel import config, resource, session
from verl_otel.session import prometheus_targets


@pytest.fixture
def settings(tmp_path):
    """The settings of run r1."""
    return config.load({}, run_dir=tmp_path, run_id="r1")


@pytest.fixture
def entry(settings):
    """Make an entry of this process for an instance."""

    def make(instance, address="a:1"):
        return prometheus_targets.make_entry(resource.build(settings), address, instance=instance)

    return make


class RecordingPublisher:
    """Records its calls."""

    def __init__(self, address=""):
        self.host = address
        self.calls = []

    def address(self):
        return self.host

    def add(self, config, entries):
        self.calls.append(("add", config.run_id, [entry["targets"][0] for entry in entries]))

    def remove(self, config):
        self.calls.append(("remove", config.run_id))

    def end(self, config):
        self.calls.append(("end", config.run_id))


@pytest.fixture
def publisher(monkeypatch):
    """Have one publisher, for this test only."""
    publisher = RecordingPublisher()
    monkeypatch.setattr(prometheus_targets, "_publishers", [])
    prometheus_targets.add_publisher(publisher)
    prometheus_targets.add_publisher(publisher)
    return publisher


def address(**settings):
    return prometheus_targets.make_address(config.load({}, **settings), 9000)


def test_the_address_is_the_one_that_is_bound():
    """One address is bound: that one is advertised, an IPv6 address in brackets."""
    assert address() == "127.0.0.1:9000"
    assert address(prometheus_host="10.1.2.3") == "10.1.2.3:9000"
    assert address(prometheus_host="::1") == address(prometheus_host="[::1]") == "[::1]:9000"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_bound_to_every_address_the_nodes_own_is_advertised(publisher, host):
    """0.0.0.0 cannot be reached: the address that Ray knows is advertised, else that of the outgoing route."""
    publisher.host = "10.0.0.7"
    assert address(prometheus_host=host) == "10.0.0.7:9000"
    publisher.host = "fd00::7"
    assert address(prometheus_host=host) == "[fd00::7]:9000"
    publisher.host = ""
    advertised = address(prometheus_host=host).rpartition(":")[0]
    assert advertised not in ("", "0.0.0.0", "::", "[::]")
    assert advertised == socket.gethostname() or socket.inet_aton(advertised)


def test_the_user_may_say_how_others_reach_it(monkeypatch):
    """VERL_OTEL_PROMETHEUS_ADVERTISE wins, whatever is bound."""
    monkeypatch.setenv("VERL_OTEL_PROMETHEUS_ADVERTISE", "node-7.example")
    publisher = config.load(prometheus_host="0.0.0.0")
    assert prometheus_targets.make_address(publisher, 9000) == "node-7.example:9000"


def test_a_process_answers_for_its_engines(settings, entry):
    """Entries of several instances stand side by side, the same instance is replaced, and all go with the process."""
    prometheus_targets.add_entries(settings, [entry("r1/trainer-0", "a:1")])
    prometheus_targets.add_entries(settings, [entry("r1/llm_server-0", "b:1"), entry("r1/llm_server-1", "c:1")])
    prometheus_targets.add_entries(settings, [entry("r1/llm_server-1", "d:1")])
    assert [entry["targets"][0] for entry in prometheus_targets.read_own(settings)] == ["a:1", "b:1", "d:1"]
    prometheus_targets.remove_target(settings)
    assert not prometheus_targets.targets_path(settings).exists()


@pytest.mark.full
def test_a_run_that_crashed_is_cleaned_by_the_next_one(settings, entry):
    """The file of a crashed run has no owner: the next process that serves drops its dead processes."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = settings.run_dir / "targets"
    folder.mkdir()
    here = {"__meta_verl_otel_host": socket.gethostname()}
    dead = {"targets": ["x:1"], "labels": {**here, "instance": "r0/a", "__meta_verl_otel_pid": str(ended.pid)}}
    living = {"targets": ["y:1"], "labels": {**here, "instance": "r0/b", "__meta_verl_otel_pid": str(os.getppid())}}
    elsewhere = {"targets": ["z:1"], "labels": {**dead["labels"], "__meta_verl_otel_host": "elsewhere"}}
    (folder / "r0.json").write_text(json.dumps([dead]))
    (folder / "r00.json").write_text(json.dumps([dead, living, elsewhere]))
    prometheus_targets.add_entries(settings, [entry("r1/trainer-0")])
    assert not (folder / "r0.json").exists()
    assert [entry["targets"][0] for entry in prometheus_targets.read_targets(folder / "r00.json")] == ["y:1", "z:1"]


def test_processes_of_another_container_are_left_alone(settings, entry):
    """A container may share name and folder with this machine; its process ids say nothing here."""
    foreign = entry("r1/agent_loop-0", "x:1")
    foreign["labels"] |= {"__meta_verl_otel_pid": "999999999", "__meta_verl_otel_pid_space": "pid:[1]"}
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([foreign]))
    prometheus_targets.add_entries(settings, [entry("r1/trainer-0")])
    assert [entry["targets"][0] for entry in prometheus_targets.read_targets(path)] == ["x:1", "a:1"]


def test_publishers_are_called_once(settings, entry, publisher):
    """A mirror hears of each change, once, also where the file cannot be written."""
    prometheus_targets.add_entries(settings, [entry("r1/trainer-0")])
    prometheus_targets.remove_target(settings)
    prometheus_targets.remove_run(settings)
    assert publisher.calls == [("add", "r1", ["a:1"]), ("remove", "r1"), ("end", "r1")]
    publisher.calls.clear()
    (settings.run_dir / "file").touch()
    broken = config.load({}, run_dir=settings.run_dir / "file", run_id="r1")
    prometheus_targets.add_entries(broken, [entry("r1/trainer-0")])
    assert publisher.calls == [("add", "r1", ["a:1"])]


def test_a_session_tells_and_takes_back(tmp_path, publisher):
    """A process that serves is published when its port is open, and removed when it ends."""
    verl_otel.init(exporters="prometheus", run_dir=tmp_path, run_id="r1")
    try:
        ((what, run_id, (target,)),) = publisher.calls
        assert (what, run_id) == ("add", "r1")
        assert target.startswith("127.0.0.1:")
    finally:
        verl_otel.shutdown()
    assert ("remove", "r1") in publisher.calls[1:]
    assert not (tmp_path / "targets" / "r1.json").exists()


def test_the_end_of_a_process_takes_its_entries_away_once(monkeypatch, publisher, tmp_path):
    """A process that serves /metrics is removed once when it ends."""
    verl_otel.init(exporters="prometheus", run_dir=tmp_path, run_id="r1", drain_interval=60)
    verl_otel.shutdown()
    assert [call[0] for call in publisher.calls] == ["add", "remove"]


def test_a_process_that_ends_before_its_first_drain_is_not_announced(monkeypatch, publisher, tmp_path):
    """A process whose first record is sent at its end, and which therefore serves nothing any more, adds no entry."""
    for name, value in (("ENABLED", "1"), ("RUN_DIR", str(tmp_path)), ("EXPORTERS", "prometheus")):
        monkeypatch.setenv(f"VERL_OTEL_{name}", value)
    monkeypatch.setenv("VERL_OTEL_DRAIN_INTERVAL", "60")
    session.start_lazily()
    with verl_otel.step(1):
        pass
    verl_otel.shutdown()
    assert [call[0] for call in publisher.calls] == ["remove"]


def test_a_folder_that_may_not_be_read_any_more_harms_no_exit(settings, monkeypatch):
    """Where it cannot even be asked whether the file is there, the end of a process and of a run raise nothing."""

    def refuse(path, *, follow_symlinks=True):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(prometheus_targets.Path, "exists", refuse)
    prometheus_targets.remove_target(settings)
    prometheus_targets.remove_run(settings)


@pytest.fixture
def held(settings, entry):
    """Hold the lock of the targets, as a process that is stopped, or on a machine that is gone."""
    prometheus_targets.add_entries(settings, [entry("r1/trainer-0", "a:1")])
    with (settings.run_dir / "targets" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


@pytest.mark.full
def test_an_exit_does_not_wait_for_a_lock_for_ever(settings, held, monkeypatch, caplog):
    """While the lock is held the end of a process gives up in silence: the next process that writes cleans up, and hundreds may end at once."""
    monkeypatch.setattr(prometheus_targets, "EXIT_WAIT", 0.1)
    thread = threading.Thread(target=prometheus_targets.remove_target, args=(settings,), daemon=True)
    thread.start()
    thread.join(10)
    given_up = not thread.is_alive()
    fcntl.flock(held, fcntl.LOCK_UN)
    thread.join(10)
    assert given_up
    assert caplog.text == ""
    assert len(prometheus_targets.read_own(settings)) == 1
    prometheus_targets.remove_target(settings)
    assert prometheus_targets.read_own(settings) == []


def wait_for_targets(settings, expected):
    """Return the addresses of this process once they are as expected, or after ten seconds."""
    deadline = time.monotonic() + 60
    while True:
        targets = [entry["targets"][0] for entry in prometheus_targets.read_own(settings)]
        if targets == expected or time.monotonic() > deadline:
            return targets
        time.sleep(0.01)


@pytest.mark.full
def test_an_entry_waits_its_turn_and_the_caller_does_not(settings, entry, held):
    """While the lock is held a caller continues within half a second; its entry is added once the lock is free."""
    begin = time.monotonic()
    prometheus_targets.add_entries(settings, [entry("r1/llm_server-0", "b:1")])
    assert time.monotonic() - begin < 3
    assert [entry["targets"][0] for entry in prometheus_targets.read_own(settings)] == ["a:1"]
    fcntl.flock(held, fcntl.LOCK_UN)
    assert wait_for_targets(settings, ["a:1", "b:1"]) == ["a:1", "b:1"]


@pytest.mark.full
def test_what_is_removed_meanwhile_is_not_added_late(settings, entry, held, monkeypatch):
    """An entry that still waits for the lock when its process ends does not appear after that."""
    monkeypatch.setattr(prometheus_targets, "EXIT_WAIT", 0.0)
    prometheus_targets.add_entries(settings, [entry("r1/llm_server-0", "b:1")])
    prometheus_targets.remove_target(settings)
    (late,) = [thread for thread in threading.enumerate() if thread.name == "verl-otel-targets"]
    fcntl.flock(held, fcntl.LOCK_UN)
    late.join(10)
    assert [entry["targets"][0] for entry in prometheus_targets.read_own(settings)] == ["a:1"]


@pytest.mark.full
def test_a_child_that_is_forked_under_the_lock_does_not_keep_it(settings, entry, monkeypatch):
    """The lock is free once the change is made, also while a child lives that inherited its file."""
    children = []
    write = prometheus_targets._write

    def fork_and_write(path, entries):
        child = os.fork()
        if not child:
            os.read(reader, 1)
            os._exit(0)
        children.append(child)
        write(path, entries)

    reader, writer = os.pipe()
    with monkeypatch.context() as patched:
        patched.setattr(prometheus_targets, "_write", fork_and_write)
        prometheus_targets.add_entries(settings, [entry("r1/trainer-0", "a:1")])
    prometheus_targets.add_entries(settings, [entry("r1/llm_server-0", "b:1")])
    targets = [entry["targets"][0] for entry in prometheus_targets.read_own(settings)]
    os.close(writer)
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    os.close(reader)
    assert targets == ["a:1", "b:1"]


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


@pytest.mark.full
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
    with opener.open(f"http://{address}/metrics", timeout=60) as answer:
        return answer.read().decode()
