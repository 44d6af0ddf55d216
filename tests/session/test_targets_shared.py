# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Targets beyond one process: the address that others use, engines, files of crashed runs, mirrors on other machines."""

import json
import os
import socket
import subprocess
import sys

import pytest

import verl_otel
from verl_otel import config
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
