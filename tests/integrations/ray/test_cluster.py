# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray's store: notes in it are written beside the training, never waited for, gone at the end; what it says of dead actors. Ray is made up here."""

import json
import os
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest

from verl_otel import config
from verl_otel.integrations import cluster_store
from verl_otel.integrations.ray import cluster
from verl_otel.watchdog import cluster_backend


@pytest.fixture
def ray(monkeypatch):
    """A Ray that is connected and keeps its store in a dict; ``gate`` closed: the store does not answer."""
    fake, experimental, kv = (
        ModuleType("ray"),
        ModuleType("ray.experimental"),
        ModuleType("ray.experimental.internal_kv"),
    )
    fake.store, fake.reads, fake.writes, fake.gate, fake.connected = {}, [], [], threading.Event(), True
    fake.gate.set()

    def put(key, value, overwrite, namespace):
        assert fake.gate.wait(60)
        fake.writes.append(key)
        fake.store[namespace, key] = value

    def delete(key, namespace, del_by_prefix=False):
        assert fake.gate.wait(60)
        for known in [each for each in fake.store if each[1] == key or (del_by_prefix and each[1].startswith(key))]:
            del fake.store[known]

    def get(key, namespace):
        fake.reads.append(key)
        assert fake.gate.wait(60)
        return fake.store.get((namespace, key))

    def list_keys(prefix, namespace):
        return [key for space, key in fake.store if space == namespace and key.startswith(prefix)]

    kv._internal_kv_put, kv._internal_kv_get, kv._internal_kv_del = put, get, delete
    kv._internal_kv_list = list_keys
    experimental.internal_kv = kv
    fake.is_initialized = lambda: fake.connected
    fake.util = SimpleNamespace(get_node_ip_address=lambda: "[fd00::7]")
    fake.get_runtime_context = lambda: SimpleNamespace(
        get_node_id=lambda: "n1",
        get_job_id=lambda: "j1",
        get_worker_id=lambda: "w1",
        get_actor_id=lambda: None,
        get_actor_name=lambda: None,
    )
    fake._private = SimpleNamespace(worker=SimpleNamespace(WORKER_MODE=1, global_worker=SimpleNamespace(mode=1)))
    for module in (fake, experimental, kv):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield fake
    fake.gate.set()


@pytest.fixture
def board(wait_for):
    """A board of this process; its thread has ended at the end of the test."""
    made = cluster.TargetRegistry()
    yield made
    wait_for(lambda: made._writer is None)


@pytest.fixture
def settings(tmp_path):
    return config.load_config({}, run_dir=tmp_path, run_id="r1")


def entry(instance="r1/trainer-0", address="a:1"):
    return {"targets": [address], "labels": {"instance": instance}}


def test_a_note_says_what_and_where(ray, board, settings, wait_for):
    """One note per process: its entries, the folder of its files, and who tells whether it lives."""
    board.add(settings, [entry()])
    board.add(settings, [entry("r1/llm_server-0", "b:1")])
    wait_for(lambda: board._writer is None)
    ((key, value),) = ray.store.items()
    assert key == (b"verl_otel", b"targets/r1/w1")
    assert json.loads(value) == {
        "entries": [entry(), entry("r1/llm_server-0", "b:1")],
        "folder": str(settings.run_path),
        "node": "n1",
        "job": "j1",
        "worker": "w1",
        "driver": False,
    }


@pytest.mark.full
def test_a_store_that_does_not_answer_keeps_nobody_waiting(ray, board, settings, wait_for):
    """Changes return at once while Ray's head is away; when it is back the last state is written, not each one."""
    ray.gate.clear()
    for number in range(50):
        board.add(settings, [entry(address=f"a:{number}")])
    assert ray.writes == []
    ray.gate.set()
    wait_for(lambda: board._writer is None)
    (value,) = ray.store.values()
    assert json.loads(value)["entries"] == [entry(address="a:49")]
    assert len(ray.writes) <= 3


def test_what_was_said_before_there_was_a_cluster_is_told_later(ray, board, settings, wait_for):
    """Without a cluster nothing is written; publishing after the start of one writes what is known."""
    ray.connected = False
    board.add(settings, [entry()])
    assert board._writer is None
    assert board.address() == ""
    ray.connected = True
    assert board.address() == "fd00::7"
    board.publish()
    wait_for(lambda: ray.store)


def test_a_note_goes_with_its_process(ray, board, settings, wait_for):
    """A process that ends in order takes its note away; one that has none asks nothing of the store."""
    board.remove(settings)
    board.add(settings, [entry()])
    wait_for(lambda: ray.store)
    board.remove(settings)
    wait_for(lambda: not ray.store)
    assert len(ray.writes) == 1


def test_the_end_of_a_run_deletes_all_of_its_notes(ray, board, settings):
    """The notes of all processes of the run are gone when `end` returns; those of a run with a longer name stay."""
    for key in (b"targets/r1/w1", b"targets/r1/w2", b"targets/r10/w1"):
        ray.store[cluster_store.NAMESPACE, key] = b"{}"
    board.end(settings)
    assert list(ray.store) == [(cluster_store.NAMESPACE, b"targets/r10/w1")]


@pytest.mark.full
def test_the_end_of_a_run_does_not_wait_for_long(ray, board, settings, monkeypatch):
    """A store that does not answer costs the end of a run its time-out and no more."""
    monkeypatch.setattr(cluster, "END_TIMEOUT", 0.2)
    ray.gate.clear()
    begin = time.monotonic()
    board.end(settings)
    assert 0.1 < time.monotonic() - begin < 5
    ray.gate.set()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_store_alone(ray, board, settings):
    """A forked child has none of the threads that Ray's client needs: a call would never return."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        board.add(settings, [entry()])
        board.remove(settings)
        board.end(settings)
        os.write(writer, b"idle" if board._writer is None and not ray.writes else b"busy")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 4) == b"idle"
    os.close(reader)
    os.waitpid(pid, 0)


def test_a_failure_of_the_store_is_ours_alone(ray, board, settings, swallow, caplog, wait_for):
    """What the store raises is one line in the log."""

    def fail(*_, **__):
        raise RuntimeError("GCS is gone")

    sys.modules["ray.experimental.internal_kv"]._internal_kv_put = fail
    board.add(settings, [entry()])
    wait_for(lambda: board._writer is None)
    board.add(settings, [entry()])
    wait_for(lambda: board._writer is None)
    assert caplog.text.count("GCS is gone") == 1


# -- What Ray's record of a dead actor says, and what is asked where there is no Ray --


@pytest.fixture
def records():
    """Ray's own definition of the record."""
    pytest.importorskip("ray", reason="Ray is not installed in this environment")
    from ray.core.generated import common_pb2

    return common_pb2


def died(records, reason, message):
    cause = records.ActorDeathCause()
    context = cause.actor_died_error_context
    context.error_message = message
    context.reason = context.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_name[reason].number
    return cause


LONG = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly "
    "exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL"
)


def test_a_death_that_nobody_wanted_is_told_in_a_few_words(records):
    """The detail without the list of guesses."""
    death = cluster.read_cause(died(records, "WORKER_DIED", LONG))
    assert death == (False, "Ray says: Worker unexpectedly exits with a connection error code 2. End of file")


def test_a_traceback_that_ray_quotes_is_left_out(records):
    """The message of its exception may quote a prompt."""
    message = (
        "Worker exit detail: Worker exits with an exit code 1. Traceback (most recent call last): ValueError: SECRET"
    )
    death = cluster.read_cause(died(records, "WORKER_DIED", message))
    assert death == (False, "Ray says: Worker exits with an exit code 1")


@pytest.mark.parametrize("reason", ["RAY_KILL", "OUT_OF_SCOPE", "OWNER_DIED"])
def test_an_end_that_somebody_wanted_is_no_crash(records, reason):
    """Killed by its job, not needed any more, or its owner is gone."""
    assert cluster.read_cause(died(records, reason, "ended")).expected


def test_the_memory_monitor_is_named(records):
    """Ray kills who takes too much memory, and says so."""
    cause = records.ActorDeathCause()
    cause.oom_context.error_message = "Task was killed due to the node running low on memory"
    death = cluster.read_cause(cause)
    assert not death.expected
    assert "out of memory" in death.text


def test_what_ray_does_not_know_is_no_answer(records):
    """No cause, or one of another kind."""
    assert cluster.read_cause(None) is None
    assert cluster.read_cause(records.ActorDeathCause()) is None


def test_without_a_cluster_nothing_is_asked(monkeypatch):
    """Neither Ray nor anybody else is there."""
    monkeypatch.setattr(cluster_store, "is_connected", lambda: False)
    assert cluster.BACKEND.explain("ab") is None
    assert cluster.BACKEND.list_actors() == []
    assert cluster.BACKEND.read("r1") == []
    assert cluster.BACKEND.take("r1") == []
    cluster.BACKEND.send("r1", b"")
    cluster.BACKEND.publish("r1", "here", {})
    cluster.BACKEND.clear("r1")


def test_a_message_is_taken_once(ray):
    """In the order in which they were sent, and those of other runs stay."""
    for run_id, message in (("r1", b"1"), ("r2", b"2"), ("r1", b"3")):
        cluster.BACKEND.send(run_id, message)
    assert cluster.BACKEND.take("r1") == [b"1", b"3"]
    assert cluster.BACKEND.take("r1") == []
    assert cluster.BACKEND.take("r2") == [b"2"]


def test_messages_that_nobody_takes_are_bounded(ray):
    """The store is the memory of Ray's head."""
    backend = cluster.RayBackend()
    for number in range(3 * cluster.MAX_MESSAGES):
        backend.send("r1", b"%d" % number)
    assert len(backend.take("r1")) == cluster.MAX_MESSAGES


@pytest.mark.full
def test_a_cluster_that_does_not_answer_costs_a_moment(monkeypatch, swallow):
    """Who asks goes on without an answer, also when the question fails."""
    import threading

    monkeypatch.setattr(cluster_backend, "QUERY_SECONDS", 0.05)
    monkeypatch.setattr(cluster_backend._Current, "backend", cluster.BACKEND)
    release = threading.Event()
    assert cluster_backend.query(lambda _: release.wait(20)) is None
    release.set()
    assert cluster_backend.query(lambda _: 1 / 0) is None
    assert cluster_backend.query(lambda cluster: cluster) is cluster.BACKEND


# -- Ray's store: asking for it never starts Ray --


def test_ray_is_neither_started_nor_joined():
    """Ray's `get_runtime_context` would start a cluster, or join that of another program, which ends this process when the cluster is gone."""
    ray = pytest.importorskip("ray", reason="Ray is not installed in this environment")
    with pytest.raises(RuntimeError, match="not part of a Ray cluster"):
        cluster_store.runtime_context()
    assert not ray.is_initialized()


# -- the run of a worker --


def test_a_store_that_does_not_answer_does_not_hold_the_first_use(ray, monkeypatch):
    """A worker that looks for the run of its job goes on without it, and does not ask again at its next use."""
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    monkeypatch.setattr(cluster, "PUT_TIMEOUT", 0.05)
    ray.gate.clear()
    assert cluster.join() is False
    assert cluster.join() is False
    assert len(ray.reads) == 1
