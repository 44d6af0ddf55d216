# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``file_sd`` file of a run: complete under many writers, never half written, gone at the end."""

import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.builders.environments import inherit
from verl_otel import config, resource
from verl_otel.session import prometheus_targets

LABELS = {"job", "instance", "verl_role", "verl_run_id"}


@pytest.fixture
def settings(tmp_path):
    """The settings of run r1."""
    return config.load({}, run_dir=tmp_path, run_id="r1")


@pytest.fixture
def own_resource(settings):
    """The resource of this process."""
    resource.clear()
    resource.describe({"verl.role": "trainer", "verl.index": 0})
    yield resource.build(settings)
    resource.clear()


def foreign(pid, host=None, address="127.0.0.1:1"):
    """The entry of another process."""
    labels = {"job": "verl", "instance": f"r1/x-{pid}", "verl_role": "x", "verl_run_id": "r1"}
    host = host or socket.gethostname()
    return {"targets": [address], "labels": {**labels, "__meta_verl_otel_pid": str(pid), "__meta_verl_otel_host": host}}


def addresses(settings):
    return [entry["targets"][0] for entry in prometheus_targets.read_targets(prometheus_targets.targets_path(settings))]


def test_an_entry_has_the_labels_of_the_contract(settings, own_resource):
    """The file lists this process with the labels that every path of telemetry shares; the rest is meta data."""
    prometheus_targets.add_target(settings, own_resource, "127.0.0.1:9000")
    (entry,) = json.loads((settings.run_dir / "targets" / "r1.json").read_text())
    assert entry["targets"] == ["127.0.0.1:9000"]
    assert {key for key in entry["labels"] if not key.startswith("__meta_")} == LABELS
    assert entry["labels"]["job"] == "verl"
    assert entry["labels"]["instance"] == "r1/trainer-0"
    assert entry["labels"]["verl_role"] == "trainer"
    assert entry["labels"]["verl_run_id"] == "r1"


def test_the_job_is_the_name_that_the_user_gives(settings, monkeypatch):
    """OTEL_SERVICE_NAME is the job label, as it is on the Collector's path."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    prometheus_targets.add_target(settings, resource.build(settings), "127.0.0.1:9000")
    (entry,) = prometheus_targets.read_targets(prometheus_targets.targets_path(settings))
    assert entry["labels"]["job"] == "training"


def test_a_process_has_one_entry_and_the_last_takes_the_file_away(settings, own_resource):
    """Adding again replaces; removing leaves no file, and may be done twice."""
    prometheus_targets.add_target(settings, own_resource, "127.0.0.1:1")
    prometheus_targets.add_target(settings, own_resource, "127.0.0.1:2")
    assert addresses(settings) == ["127.0.0.1:2"]
    prometheus_targets.remove_target(settings)
    prometheus_targets.remove_target(settings)
    assert not prometheus_targets.targets_path(settings).exists()
    assert not [path for path in (settings.run_dir / "targets").glob("*") if path.suffix in (".json", ".tmp")]


@pytest.mark.full
def test_the_dead_are_dropped_and_the_others_stay(settings, own_resource, dead_pid):
    """Whoever writes drops the entries of processes that died on this machine; those of other machines stay."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    others = [foreign(dead_pid, address="a:1"), foreign(1, address="b:1"), foreign(999999, "elsewhere", "c:1")]
    path.write_text(json.dumps(others))
    prometheus_targets.add_target(settings, own_resource, "d:1")
    assert addresses(settings) == ["b:1", "c:1", "d:1"]
    prometheus_targets.remove_target(settings)
    assert addresses(settings) == ["b:1", "c:1"]


def killed_trainer(pid, **labels):
    entry = foreign(pid, address="t:1")
    return {**entry, "labels": {**entry["labels"], "verl_role": "trainer", **labels}}


@pytest.mark.full
def test_a_killed_trainer_stays_for_a_while(settings, own_resource, dead_pid, monkeypatch):
    """Prometheus is to see that it is gone: whoever writes, in this run or in another one, lets it stay for a quarter of an hour."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([killed_trainer(dead_pid), foreign(dead_pid)]))
    other = config.load({}, run_dir=settings.run_dir, run_id="r2")
    prometheus_targets._cleaned.clear()
    prometheus_targets.add_target(other, own_resource, "n:1")
    assert addresses(settings) == ["t:1"]
    prometheus_targets.remove_target(settings)
    assert addresses(settings) == ["t:1"]
    assert [entry["targets"] for entry in prometheus_targets.read_folder(path.parent, linger=True)] == [
        ["t:1"],
        ["n:1"],
    ]
    assert [entry["targets"] for entry in prometheus_targets.read_folder(path.parent)] == [["n:1"]]
    monkeypatch.setattr(prometheus_targets, "LINGER", 0)
    assert [entry["targets"] for entry in prometheus_targets.read_folder(path.parent, linger=True)] == [["n:1"]]
    prometheus_targets.remove_target(settings)
    assert not path.exists()


@pytest.mark.full
def test_a_resumed_run_forgets_its_killed_trainer(settings, own_resource, dead_pid):
    """As soon as another trainer of the run lives, the one that was killed is off the list."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([killed_trainer(dead_pid)]))
    prometheus_targets.add_target(settings, own_resource, "n:1")
    assert addresses(settings) == ["n:1"]


@pytest.mark.full
def test_a_restarted_trainer_that_is_killed_again_stays_again(settings, own_resource, dead_pid, monkeypatch):
    """It has the same instance, but another process: its time on the list begins with its own death."""
    folder = prometheus_targets.targets_path(settings).parent
    folder.mkdir()
    prometheus_targets.targets_path(settings).write_text(json.dumps([killed_trainer(dead_pid)]))
    monkeypatch.setattr(prometheus_targets, "_found_dead", {})
    prometheus_targets.read_folder(folder, linger=True)
    monkeypatch.setattr(
        prometheus_targets, "_found_dead", {key: now - 3600 for key, now in prometheus_targets._found_dead.items()}
    )
    assert prometheus_targets.read_folder(folder, linger=True) == []
    with subprocess.Popen([sys.executable, "-c", ""]) as again:
        again.wait()
    assert again.pid != dead_pid
    prometheus_targets.targets_path(settings).write_text(json.dumps([killed_trainer(again.pid)]))
    assert len(prometheus_targets.read_folder(folder, linger=True)) == 1


@pytest.mark.full
def test_a_killed_trainer_goes_when_its_address_is_taken(settings, own_resource, dead_pid):
    """A port is given out again: who answers there is not the trainer that was killed, in no file and for no reader."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    dead, other = killed_trainer(dead_pid), config.load({}, run_dir=settings.run_dir, run_id="r2")
    path.write_text(json.dumps([dead]))
    neighbor = prometheus_targets.make_entry(own_resource, "t:1", verl_run_id="r3")
    (path.parent / "r3.json").write_text(json.dumps([neighbor]))
    assert prometheus_targets.read_folder(path.parent, linger=True) == [neighbor]
    (path.parent / "r3.json").unlink()
    prometheus_targets._cleaned.clear()
    prometheus_targets.add_target(other, own_resource, "t:1")
    assert not path.exists()
    path.write_text(json.dumps([{**dead, "labels": {**dead["labels"], "verl_run_id": "r0"}}]))
    prometheus_targets.add_entries(
        settings, [prometheus_targets.make_entry(own_resource, "t:1", verl_role="rollout_replica")]
    )
    assert addresses(settings) == ["t:1"]


@pytest.mark.full
def test_the_same_address_of_another_machine_is_not_taken(settings, own_resource, dead_pid):
    """Each machine of a shared folder has a loopback of its own: a killed trainer must still be reported as vanished."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    dead = killed_trainer(dead_pid)
    path.write_text(json.dumps([dead]))
    (path.parent / "r3.json").write_text(json.dumps([foreign(1, host="elsewhere", address="t:1")]))
    assert [entry["targets"] for entry in prometheus_targets.read_folder(path.parent, linger=True)] == [
        ["t:1"],
        ["t:1"],
    ]


@pytest.mark.full
def test_what_does_not_change_is_not_written(settings, own_resource, dead_pid):
    """A look through the files of other runs rewrites none in which there is nothing to drop: Prometheus reads every file again that changes."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([killed_trainer(dead_pid, __meta_verl_otel_gone=str(int(time.time())))]))
    before = path.stat().st_ino
    prometheus_targets._cleaned.clear()
    prometheus_targets.add_target(config.load({}, run_dir=settings.run_dir, run_id="r2"), own_resource, "n:1")
    assert path.stat().st_ino == before


@pytest.mark.full
def test_a_time_of_death_in_the_future_expires(settings, own_resource, dead_pid):
    """A clock that was wrong when the trainer was found dead does not keep it on the list."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([killed_trainer(dead_pid, __meta_verl_otel_gone="9999999999")]))
    assert prometheus_targets.read_folder(path.parent, linger=True) == []


@pytest.mark.full
def test_a_damaged_time_of_death_is_replaced(settings, own_resource, dead_pid):
    """Nothing that stands in the file keeps a process out."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([killed_trainer(dead_pid, verl_run_id="r0", __meta_verl_otel_gone="x")]))
    prometheus_targets.add_target(settings, own_resource, "n:1")
    assert sorted(addresses(settings)) == ["n:1", "t:1"]


def test_the_end_of_a_run_takes_everything_away(settings, own_resource):
    """When the run has ended its file goes, whoever is in it; other runs keep theirs."""
    other = config.load({}, run_dir=settings.run_dir, run_id="r2")
    prometheus_targets.add_target(other, own_resource, "e:1")
    path = prometheus_targets.targets_path(settings)
    path.write_text(json.dumps([foreign(1), foreign(5, "elsewhere")]))
    prometheus_targets.remove_run(settings)
    assert not path.exists()
    assert addresses(other) == ["e:1"]


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', "[", "null", "\x00\xff"])
def test_a_damaged_file_is_replaced(settings, own_resource, text):
    """A file that is no list of targets reads as empty, and the next writer mends it."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    assert prometheus_targets.read_targets(path) == []
    prometheus_targets.add_target(settings, own_resource, "f:1")
    assert addresses(settings) == ["f:1"]


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"labels": None},
        {"targets": [9]},
        {"targets": ["g:1"], "labels": {"verl_run_id": {}, "verl_role": "trainer", "__meta_verl_otel_gone": 7}},
        {"targets": ["g:1"], "labels": {"__meta_verl_otel_pid": "x", "__meta_verl_otel_host": socket.gethostname()}},
    ],
)
def test_a_damaged_entry_keeps_no_other_out(settings, own_resource, swallow, entry):
    """An entry that cannot be understood does not keep this process out of the file."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([entry]))
    prometheus_targets.add_target(settings, own_resource, "h:1")
    assert "h:1" in path.read_text()


def test_an_entry_of_the_user_stays(settings, own_resource):
    """An entry without our labels, which Prometheus takes, is left as it is."""
    path = prometheus_targets.targets_path(settings)
    path.parent.mkdir()
    path.write_text(json.dumps([{"targets": ["j:1"]}]))
    prometheus_targets.add_target(settings, own_resource, "k:1")
    assert addresses(settings) == ["j:1", "k:1"]


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path, own_resource, caplog):
    """Where the file cannot be written one line is logged and the process goes on."""
    (tmp_path / "file").write_text("")
    broken = config.load({}, run_dir=tmp_path / "file", run_id="r1")
    prometheus_targets.add_target(broken, own_resource, "i:1")
    prometheus_targets.remove_target(broken)
    assert [record.getMessage().partition(";")[2].strip() for record in caplog.records] == [
        "Prometheus will not find this process"
    ]


CHILD = """
import sys
from pathlib import Path
from verl_otel import config
from verl_otel import resource; from verl_otel.session import prometheus_targets
prometheus_targets.WAIT = prometheus_targets.EXIT_WAIT = 120.0
settings = config.load({}, run_dir=Path(sys.argv[1]), run_id="r1")
mine = resource.build(settings)
print("ready", flush=True)
for line in sys.stdin:
    if line == "add\\n":
        for number in range(8):
            prometheus_targets.add_target(settings, mine, f"{sys.argv[2]}:{number}")
            if number < 7:
                prometheus_targets.remove_target(settings)
    else:
        prometheus_targets.remove_target(settings)
    print("done", flush=True)
"""


@pytest.mark.full
def test_many_processes_at_once_lose_and_tear_nothing(settings, tmp_path):
    """16 processes that add and remove at the same time are all in the file at the end, and every state is whole."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    clean = inherit("PYTEST")
    children = [
        subprocess.Popen(
            [sys.executable, script, tmp_path, f"host-{index}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean,
        )
        for index in range(16)
    ]
    stop, torn = threading.Event(), []

    def watch():
        path = prometheus_targets.targets_path(settings)
        while not stop.is_set():
            try:
                text = path.read_text()
            except FileNotFoundError:
                continue
            try:
                torn.extend(entry for entry in json.loads(text) if entry["labels"].keys() < LABELS)
            except ValueError:
                torn.append(text)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for word in ("ready", "add", "remove"):
            for child in children:
                if word != "ready":
                    child.stdin.write(f"{word}\n")
                    child.stdin.flush()
            answers = [child.stdout.readline() for child in children]
            assert answers == ["ready\n" if word == "ready" else "done\n"] * 16
            expected = [f"host-{index}:7" for index in range(16)] if word == "add" else []
            assert sorted(addresses(settings)) == sorted(expected)
    finally:
        stop.set()
        watcher.join()
        for child in children:
            child.kill()
            child.communicate()
    assert not torn
    assert not prometheus_targets.targets_path(settings).exists()
