# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel collect``: files of many nodes in one folder, whole, nothing from outside of the run, whatever a node does.

The nodes are stand-ins for Ray's that run what they are sent as Ray does, pickled by value; tests/ray has real ones.
"""

import json
import os
import pickle
import sys
import tracemalloc
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest

from tests.builders import stories
from verl_otel.integrations.ray import discovery, run_files


class RayError(Exception):
    """As ``ray.exceptions.RayError``."""


class Remote:
    """A function on a node: pickled, and run when its result is asked for."""

    def __init__(self, ray, function):
        self.ray, self.function = ray, function

    def options(self, *, num_cpus, max_retries, scheduling_strategy, **streaming):
        assert (num_cpus, max_retries) == (0, 0)
        self.node, self.streaming = scheduling_strategy, streaming
        return self

    def remote(self, *arguments):
        function = pickle.loads(cloudpickle.dumps(self.function))
        result = lambda: self.ray.behave(self.node, function, *arguments)  # noqa: E731 - it is passed on
        return iter(result()) if self.streaming else result


def make_ray(*names):
    """A module ``ray`` with one node for each name; the first is this one."""
    ray = ModuleType("ray")
    ray.init = lambda **_: None
    ray.shutdown = lambda: None
    ray.exceptions = SimpleNamespace(RayError=RayError)
    ray.util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    )
    ray.nodes = lambda: (
        [
            {"NodeID": f"id-{index}", "Alive": True, "NodeManagerHostname": name, "NodeManagerAddress": "10.0.0.1"}
            for index, name in reversed(list(enumerate(names)))
        ]
        + [{"NodeID": "gone", "Alive": False, "NodeManagerHostname": "gone"}]
    )
    ray.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "id-0")
    ray.remote = lambda function: Remote(ray, function)
    ray.behave = lambda node, function, *arguments: function(*arguments)
    ray.wait = lambda references, timeout, fetch_local=True: (references, [])
    ray.get = lambda reference, timeout=None: reference() if callable(reference) else reference
    ray.cancel = lambda *_, **__: None
    return ray


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """A cluster of two nodes, ``here`` and ``there``, each with a folder of run r1 that its processes have reported."""
    ray = make_ray("here", "there")
    monkeypatch.setitem(sys.modules, "ray", ray)
    folders = {name: tmp_path / name / "r1" for name in ("here", "there")}
    folders_of_nodes = {"id-0": [str(folders["here"])], "id-1": [str(folders["there"])]}
    monkeypatch.setattr(discovery, "find_cluster", lambda address: "head:1")
    monkeypatch.setattr(run_files, "find_folders", lambda cluster, run_id: folders_of_nodes)
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path / "default"))
    for folder in folders.values():
        folder.mkdir(parents=True)
    return SimpleNamespace(ray=ray, folders_of_nodes=folders_of_nodes, out=tmp_path / "out", **folders)


@pytest.fixture
def collect(cluster, call):
    """Collect run r1 into the folder of the test."""
    return lambda *arguments: call("collect", "r1", "--output", cluster.out, *arguments)


def contents(folder):
    """The files of a folder and what is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_files_of_every_node_come_into_one_folder(cluster, collect):
    """Local and remote files are there to the byte, empty ones and those of folders too; each node has a line, the sum another."""
    (cluster.here / "traces-a-h-1.jsonl").write_bytes(b"1\n" * 1000)
    (cluster.there / "traces-a-t-1.jsonl").write_bytes(b"2\n" * 1000)
    (cluster.there / "empty.jsonl").touch()
    (cluster.there / "profiles").mkdir()
    (cluster.there / "profiles" / "one.txt").write_text("deep")
    done = collect()
    assert (done.code, done.err) == (0, ""), done.out + done.err
    assert contents(cluster.out) == {
        "traces-a-h-1.jsonl": b"1\n" * 1000,
        "traces-a-t-1.jsonl": b"2\n" * 1000,
        "empty.jsonl": b"",
        "profiles/one.txt": b"deep",
    }
    lines = done.out.splitlines()
    assert lines[0].startswith("here: 1 files, 2.0 KiB, ")
    assert lines[1].startswith("there: 3 files, 2.0 KiB, ")
    assert lines[2] == f"4 files, 3.9 KiB in {cluster.out}: verl-otel report {cluster.out}"


def test_files_of_the_same_name_are_both_kept(cluster, collect):
    """Two processes of one name on two nodes: neither is overwritten, and the reader takes both."""
    for folder in (cluster.here, cluster.there):
        (folder / "metrics-a-h-1.jsonl").write_text(f'{{"of": "{folder}"}}\n')
    assert collect().code == 0
    found = contents(cluster.out)
    assert set(found) == {"metrics-a-h-1.jsonl", "metrics-a-h-1@there.jsonl"}
    assert len(set(found.values())) == 2


def test_a_shared_disk_is_read_once(cluster, collect):
    """Nodes that show the same files do not send them again, also those that were replaced or have grown meanwhile."""
    cluster.there.rmdir()
    cluster.folders_of_nodes["id-1"] = [str(cluster.here)]
    (cluster.here / "traces-a-h-1.jsonl").write_text("trace\n")
    (cluster.here / "open-a-h-1.jsonl").write_text("old\n")

    def behave(node, function, *arguments):
        (cluster.here / "new").write_text("new\n")
        (cluster.here / "new").replace(cluster.here / "open-a-h-1.jsonl")
        (cluster.here / "traces-b-t-2.jsonl").write_text("of there\n")
        return function(*arguments)

    cluster.ray.behave = behave
    done = collect()
    assert done.code == 0
    assert set(contents(cluster.out)) == {"traces-a-h-1.jsonl", "open-a-h-1.jsonl", "traces-b-t-2.jsonl"}
    assert "2 files more are on a disk that was read before" in done.out


def test_nothing_outside_of_the_run_is_read(cluster, collect, tmp_path):
    """Links to files and folders, pipes, and half-written files stay where they are; none is followed or waited for."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.jsonl").write_text("secret")
    for folder in (cluster.here, cluster.there):
        (folder / "traces-link.jsonl").symlink_to(secret / "key.jsonl")
        (folder / "folder").symlink_to(secret)
        (folder / "open-a.tmp").write_text("half")
        os.mkfifo(folder / "traces-pipe.jsonl")
    (cluster.there / "traces-good.jsonl").write_text("good")
    assert collect().code == 0
    assert contents(cluster.out) == {"traces-good.jsonl": b"good"}


@pytest.mark.parametrize("path", ["../escaped", "/tmp/verl-otel-escaped"])
def test_a_node_cannot_write_elsewhere(cluster, collect, tmp_path, path):
    """A node that sends a path outside of the folder has failed; nothing is written there, the other node is fetched."""
    (cluster.here / "traces-a.jsonl").write_text("good")

    def behave(node, function, *arguments):
        if function.__name__ == "list_run":
            return [(str(cluster.there), path, 3, 1, 1)]
        return [(0, b"bad")]

    cluster.ray.behave = behave
    done = collect()
    assert done.code == 1
    assert "there: FAILED: it sent a path outside of the run" in done.out
    assert "without 1 of 2 nodes" in done.out
    assert contents(cluster.out) == {"traces-a.jsonl": b"good"}
    assert not (tmp_path / "escaped").exists()


def test_a_node_that_goes_away_costs_only_its_own(cluster, collect):
    """Lost in the middle of a file, a node's finished files and the other node's stay; no piece of a file is left."""
    (cluster.here / "traces-a.jsonl").write_text("good")
    for name in ("b", "c"):
        (cluster.there / f"traces-{name}.jsonl").write_text("good")

    def behave(node, function, *arguments):
        if function.__name__ == "list_run":
            return function(*arguments)

        def break_off():
            yield 0, b"good"
            yield 1, b"go"
            raise RayError("The node died.\nAnd more.")

        return break_off()

    cluster.ray.behave = behave
    done = collect()
    assert done.code == 1
    assert "there: FAILED: The node died.\n" in done.out
    assert contents(cluster.out) == {"traces-a.jsonl": b"good", "traces-b.jsonl": b"good"}


def test_a_node_that_does_not_answer_is_left(cluster, collect, monkeypatch):
    """Silence ends after a minute, whether the node was to list or to send."""
    (cluster.there / "traces-b.jsonl").write_text("good")
    monkeypatch.setattr(run_files, "TIMEOUT", 0.1)
    cluster.ray.wait = lambda references, timeout, fetch_local=True: ([], references)
    done = collect()
    assert done.code == 1
    assert "there: FAILED: no answer within 0.1 s" in done.out
    cluster.ray.wait = lambda references, timeout, fetch_local=True: (references if fetch_local else [], [])
    assert "there: FAILED: no data within 0.1 s" in collect().out
    assert not list(cluster.out.rglob("*.part"))


def test_a_file_that_goes_or_grows_meanwhile(cluster, collect):
    """What has gone since the list is left out; what has grown is taken as long as it was listed."""
    (cluster.there / "open-a.jsonl").write_text("gone\n")
    (cluster.there / "traces-a.jsonl").write_text("first\n")

    def behave(node, function, *arguments):
        if function.__name__ == "send_run":
            (cluster.there / "open-a.jsonl").unlink()
            with (cluster.there / "traces-a.jsonl").open("a") as file:
                file.write("second\n")
        return function(*arguments)

    cluster.ray.behave = behave
    assert collect().code == 0
    assert contents(cluster.out) == {"traces-a.jsonl": b"first\n"}


@pytest.mark.full
def test_a_large_file_is_never_whole_in_memory(cluster, collect, monkeypatch):
    """Files of 64 MiB on both nodes pass in pieces of 1 MiB, with a few of them in memory at most."""
    monkeypatch.setattr(run_files, "PIECE_BYTES", 1 << 20)
    for folder in (cluster.here, cluster.there):
        with (folder / f"traces-{folder.parent.name}.jsonl").open("wb") as file:
            file.write(os.urandom(512))
            file.truncate(64 << 20)
    tracemalloc.start()
    try:
        assert collect().code == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    for folder in (cluster.here, cluster.there):
        name = f"traces-{folder.parent.name}.jsonl"
        assert (cluster.out / name).read_bytes() == (folder / name).read_bytes()


def test_what_each_node_knows_of_the_run_is_one_record(cluster, collect):
    """The driver's node counts the attempts, the trainer's knows the project: the record has both; a damaged one is passed over."""
    (cluster.here / "run.json").write_text(json.dumps({"run_id": "r1", "attempts": [{"attempt": 1}], "who": "here"}))
    (cluster.there / "run.json").write_text(json.dumps({"verl.project": "p", "attempts": [], "who": "there"}))
    assert collect().code == 0
    assert json.loads((cluster.out / "run.json").read_text()) == {
        "run_id": "r1",
        "attempts": [{"attempt": 1}],
        "verl.project": "p",
        "who": "here",
    }
    (cluster.there / "run.json").write_text("{")
    assert collect().code == 0
    assert json.loads((cluster.out / "run.json").read_text())["who"] == "here"


def test_a_second_time_brings_what_is_new(cluster, collect):
    """Collecting a run that goes on again replaces the files by longer ones and renames none."""
    (cluster.there / "traces-a.jsonl").write_text("1\n")
    assert collect().code == 0
    (cluster.there / "traces-a.jsonl").write_text("1\n2\n")
    assert collect().code == 0
    assert contents(cluster.out) == {"traces-a.jsonl": b"1\n2\n"}


def test_the_report_reads_it(cluster, collect, call):
    """A run whose processes were on two nodes is, collected, the same for the report as from the folders of both."""
    stories.training(cluster.here).write()
    for path in cluster.here.glob("*-agent_loop-*"):
        path.rename(cluster.there / path.name)
    assert collect().code == 0
    collected, apart = (
        json.loads(call("report", "--json", *folders).out) for folders in ([cluster.out], [cluster.here, cluster.there])
    )
    assert len(collected["trajectories"]) == 4
    assert collected["facts"].pop("attempts") == []
    places = dict.fromkeys(("name", "folders", "next"))
    assert {**collected, **places} == {**apart, **places}


def test_no_files_anywhere_is_a_finding(cluster, collect):
    """Nothing found: code 1, where it was looked, and no folder made."""
    done = collect()
    assert done.code == 1
    assert "no node has files of r1" in done.out
    assert not cluster.out.exists()


def test_a_place_that_cannot_be_written_is_said(cluster, call, tmp_path):
    """A file where the folder should be: each node fails with the reason, code 1."""
    (cluster.there / "traces-a.jsonl").write_text("1\n")
    (tmp_path / "file").touch()
    done = call("collect", "r1", "--output", tmp_path / "file")
    assert done.code == 1
    assert f"there: FAILED: cannot write {tmp_path / 'file'}: " in done.out


def test_wrong_usage_is_code_2(cluster, call):
    """The run's own folder as destination, an id that is none, a cluster that lets nobody in: code 2 and one line."""
    (cluster.here / "traces-a.jsonl").write_text("1\n")
    done = call("collect", "r1", "--output", cluster.here)
    assert (done.code, "the run's own folder" in done.err) == (2, True)
    assert contents(cluster.here) == {"traces-a.jsonl": b"1\n"}
    done = call("collect", "a b")
    assert (done.code, "no id of a run" in done.err) == (2, True)

    def refuse(**_):
        raise ConnectionError("Could not find any running Ray instance.\nAnd more.")

    cluster.ray.init = refuse
    done = call("collect", "r1", "--output", cluster.out)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "Could not find any running Ray instance." in done.err


def test_without_ray_there_is_nothing_to_collect_from(monkeypatch, call):
    """Where Ray is not installed: code 2 and one line."""
    for name in ("ray", "ray._private"):  # another test may have imported both
        monkeypatch.setitem(sys.modules, name, None)
    done = call("collect", "r1")
    assert (done.code, done.err) == (2, "verl-otel: Ray is not installed here\n")


def test_a_path_names_a_folder_on_every_node(cluster, call, tmp_path):
    """RUN as a path is looked for on every node, and its name is the run's."""
    cluster.folders_of_nodes.clear()
    (cluster.there / "traces-a.jsonl").write_text("1\n")
    done = call("collect", cluster.there, "--output", cluster.out)
    assert done.code == 0
    assert contents(cluster.out) == {"traces-a.jsonl": b"1\n"}


def test_nodes_of_one_name_are_told_apart(monkeypatch, cluster, collect):
    """Two nodes that call themselves the same have lines of their own."""
    cluster.ray.nodes = make_ray("localhost", "localhost").nodes
    done = collect()
    assert [line.partition(":")[0] for line in done.out.splitlines()[:2]] == ["localhost-id-0", "localhost-id-1"]
