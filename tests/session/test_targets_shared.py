# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Targets beyond one process: the address that others use, engines, files of crashed runs, mirrors on other machines."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

import verl_otel
from verl_otel import config, session
from verl_otel.session import resource, targets


@pytest.fixture
def settings(tmp_path):
    """The settings of run r1."""
    return config.load({}, run_dir=tmp_path, run_id="r1")


@pytest.fixture
def entry(settings):
    """Make an entry of this process for an instance."""

    def make(instance, address="a:1"):
        return targets.make_entry(resource.build(settings), address, instance=instance)

    return make


class Mirror:
    """Notes what it is told."""

    def __init__(self, address=""):
        self.known = address
        self.told = []

    def address(self):
        return self.known

    def add(self, config, entries):
        self.told.append(("add", config.run_id, [entry["targets"][0] for entry in entries]))

    def remove(self, config):
        self.told.append(("remove", config.run_id))

    def end(self, config):
        self.told.append(("end", config.run_id))


@pytest.fixture
def mirror(monkeypatch):
    """Have one mirror, for this test only."""
    made = Mirror()
    monkeypatch.setattr(targets, "_mirrors", [])
    targets.add_mirror(made)
    targets.add_mirror(made)
    return made


def address(**settings):
    return targets.make_address(config.load({}, **settings), 9000)


def test_the_address_is_the_one_that_is_bound():
    """One address is bound: that one is told, an IPv6 one in brackets."""
    assert address() == "127.0.0.1:9000"
    assert address(prometheus_host="10.1.2.3") == "10.1.2.3:9000"
    assert address(prometheus_host="::1") == "[::1]:9000"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_bound_to_every_address_the_nodes_own_is_told(mirror, host):
    """Nobody can reach 0.0.0.0: others are told the address that Ray knows, else the one of the way out."""
    mirror.known = "10.0.0.7"
    assert address(prometheus_host=host) == "10.0.0.7:9000"
    mirror.known = "fd00::7"
    assert address(prometheus_host=host) == "[fd00::7]:9000"
    mirror.known = ""
    found = address(prometheus_host=host).rpartition(":")[0]
    assert found not in ("", "0.0.0.0", "::", "[::]")
    assert found == socket.gethostname() or socket.inet_aton(found)


def test_the_user_may_say_how_others_reach_it(monkeypatch):
    """VERL_OTEL_PROMETHEUS_ADVERTISE wins, whatever is bound."""
    monkeypatch.setenv("VERL_OTEL_PROMETHEUS_ADVERTISE", "node-7.example")
    made = config.load(prometheus_host="0.0.0.0")
    assert targets.make_address(made, 9000) == "node-7.example:9000"


def test_a_process_answers_for_its_engines(settings, entry):
    """Entries of several instances stand side by side, the same instance is replaced, and all go with the process."""
    targets.add_entries(settings, [entry("r1/trainer-0", "a:1")])
    targets.add_entries(settings, [entry("r1/llm_server-0", "b:1"), entry("r1/llm_server-1", "c:1")])
    targets.add_entries(settings, [entry("r1/llm_server-1", "d:1")])
    assert [each["targets"][0] for each in targets.read_own(settings)] == ["a:1", "b:1", "d:1"]
    targets.remove_target(settings)
    assert not targets.targets_path(settings).exists()


def test_a_run_that_crashed_is_cleaned_by_the_next_one(settings, entry):
    """The file of a crashed run is in nobody's charge: whoever serves next takes its dead processes out of it."""
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
    targets.add_entries(settings, [entry("r1/trainer-0")])
    assert not (folder / "r0.json").exists()
    assert [each["targets"][0] for each in targets.read_targets(folder / "r00.json")] == ["y:1", "z:1"]


def test_processes_of_another_container_are_left_alone(settings, entry):
    """A container may share name and folder with this machine; its process ids say nothing here."""
    foreign = entry("r1/agent_loop-0", "x:1")
    foreign["labels"] |= {"__meta_verl_otel_pid": "999999999", "__meta_verl_otel_pid_space": "pid:[1]"}
    path = targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([foreign]))
    targets.add_entries(settings, [entry("r1/trainer-0")])
    assert [each["targets"][0] for each in targets.read_targets(path)] == ["x:1", "a:1"]


def test_mirrors_are_told_once(settings, entry, mirror):
    """A mirror hears of each change, once, also where the file cannot be written."""
    targets.add_entries(settings, [entry("r1/trainer-0")])
    targets.remove_target(settings)
    targets.remove_run(settings)
    assert mirror.told == [("add", "r1", ["a:1"]), ("remove", "r1"), ("end", "r1")]
    mirror.told.clear()
    (settings.run_dir / "file").touch()
    broken = config.load({}, run_dir=settings.run_dir / "file", run_id="r1")
    targets.add_entries(broken, [entry("r1/trainer-0")])
    assert mirror.told == [("add", "r1", ["a:1"])]


def test_a_session_tells_and_takes_back(tmp_path, mirror):
    """A process that serves is told to the mirrors when its port is open, and taken back when it ends."""
    verl_otel.init(exporters="prometheus", run_dir=tmp_path, run_id="r1")
    try:
        ((what, run_id, (found,)),) = mirror.told
        assert (what, run_id) == ("add", "r1")
        assert found.startswith("127.0.0.1:")
    finally:
        verl_otel.shutdown()
    assert ("remove", "r1") in mirror.told[1:]
    assert not (tmp_path / "targets" / "r1.json").exists()


def test_the_end_of_a_process_takes_its_entries_away_once(monkeypatch, mirror, tmp_path):
    """A process that serves /metrics tells everybody once that it ends."""
    verl_otel.init(exporters="prometheus", run_dir=tmp_path, run_id="r1", drain_interval=60)
    verl_otel.shutdown()
    assert [each[0] for each in mirror.told] == ["add", "remove"]


def test_a_process_that_ends_before_its_first_drain_is_not_announced(monkeypatch, mirror, tmp_path):
    """A process whose first record is sent at its end, and which therefore serves nothing any more, adds no entry."""
    for name, value in (("ENABLED", "1"), ("RUN_DIR", str(tmp_path)), ("EXPORTERS", "prometheus")):
        monkeypatch.setenv(f"VERL_OTEL_{name}", value)
    monkeypatch.setenv("VERL_OTEL_DRAIN_INTERVAL", "60")
    session.start_lazily()
    with verl_otel.step(1):
        pass
    verl_otel.shutdown()
    assert [each[0] for each in mirror.told] == ["remove"]


def test_a_folder_that_may_not_be_read_any_more_harms_no_exit(settings, monkeypatch):
    """Where it cannot even be asked whether the file is there, the end of a process and of a run raise nothing."""

    def refuse(path, *, follow_symlinks=True):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(targets.Path, "exists", refuse)
    targets.remove_target(settings)
    targets.remove_run(settings)


@pytest.fixture
def held(settings, entry):
    """Hold the lock of the targets, as a process that is stopped, or on a machine that is gone."""
    targets.add_entries(settings, [entry("r1/trainer-0", "a:1")])
    with (settings.run_dir / "targets" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def test_an_exit_does_not_wait_for_a_lock_for_ever(settings, held, monkeypatch, caplog):
    """Where somebody holds the lock the end of a process gives up, says so, and whoever writes next cleans up."""
    monkeypatch.setattr(targets, "EXIT_WAIT", 0.1)
    thread = threading.Thread(target=targets.remove_target, args=(settings,), daemon=True)
    thread.start()
    thread.join(10)
    given_up = not thread.is_alive()
    fcntl.flock(held, fcntl.LOCK_UN)
    thread.join(10)
    assert given_up
    assert "another process holds its lock" in caplog.text
    assert len(targets.read_own(settings)) == 1
    targets.remove_target(settings)
    assert targets.read_own(settings) == []


def test_an_entry_waits_its_turn(settings, entry, held, monkeypatch):
    """Many processes that begin at once all get into the file: to be added one waits for longer than to be removed."""
    monkeypatch.setattr(targets, "EXIT_WAIT", 0.0)
    threading.Timer(0.5, fcntl.flock, (held, fcntl.LOCK_UN)).start()
    targets.add_entries(settings, [entry("r1/llm_server-0", "b:1")])
    assert [each["targets"][0] for each in targets.read_own(settings)] == ["a:1", "b:1"]
