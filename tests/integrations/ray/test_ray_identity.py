# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who a process is in a Ray job: role and number from its actor, different for every process of a run."""

import enum
import subprocess
import sys
import threading
import types

import pytest

from verl_otel.integrations import cluster_store
from verl_otel.integrations.ray import identity
from verl_otel.integrations.ray.identity import describe_actor, describe_gpus
from verl_otel.recording.decorate import surround


def actor(class_name, **attributes):
    """An actor's object whose class has a name of verl's."""
    return type(class_name, (), attributes)()


RANK_1 = {"RANK": "1", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("instance", "name", "environ", "expected"),
    [
        (actor("AgentLoopWorkerTQ"), "agent_loop_worker_3_ab12cd34", {}, {"verl.role": "agent_loop", "verl.index": 3}),
        (actor("RewardLoopWorker"), "reward_loop_worker_0", {}, {"verl.role": "reward", "verl.index": 0}),
        (actor("TaskRunnerV1"), "", {}, {"verl.role": "trainer", "verl.index": 0}),
        (actor("FullyAsyncTrainer"), "", {}, {"verl.role": "trainer", "verl.index": 0}),
        (actor("FullyAsyncRollouter"), "", {}, {"verl.role": "agent_loop"}),
        (actor("SimpleStorageUnit"), "", {}, {"verl.role": "transfer_queue"}),
        (actor("MyOwnActor"), "mine", {}, {"verl.role": "actor"}),
        (
            type("Runner", (type("BaseTaskRunner", (), {}),), {})(),
            "",
            {},
            {"verl.role": "trainer", "verl.index": 0},
        ),
        (
            actor("WorkerDict", worker_dict={"critic": 1, "actor_rollout_ref": 2}),
            "abcWorkerDict_0:1",
            RANK_1,
            {"verl.role": "actor_rollout_ref", "verl.rank": 1, "verl.world_size": 4},
        ),
        (
            actor("vLLMHttpServer", replica_rank=2),
            "vllm_server_2_0",
            {},
            {"verl.role": "llm_server", "verl.replica.rank": 2, "verl.index": "2"},
        ),
        (
            actor("vLLMHttpServer", replica_rank=2, node_rank=1),
            "vllm_server_2_1",
            {},
            {"verl.role": "llm_server", "verl.replica.rank": 2, "verl.index": "2-1"},
        ),
        (
            actor("vLLMHttpServer", replica_rank=0, node_rank=0),
            "vllm_server_teacher_0_0_math",
            {},
            {"verl.role": "llm_server", "verl.replica.rank": 0, "verl.index": "teacher-0_math"},
        ),
        (
            actor("vLLMHttpServer", replica_rank=2),
            "vllm_server_reward_2_0",
            {},
            {"verl.role": "llm_server", "verl.replica.rank": 2, "verl.index": "reward-2"},
        ),
        (
            actor("CheckpointEngineWorker"),
            "rollout_standalone_3CheckpointEngineWorker_0:1",
            RANK_1,
            {"verl.role": "rollout", "verl.rank": 1, "verl.world_size": 4, "verl.replica.rank": 3, "verl.index": "3-1"},
        ),
        (
            actor("CheckpointEngineWorker"),
            "rollout_teacher_standalone_0_x",
            RANK_1,
            {
                "verl.role": "rollout",
                "verl.rank": 1,
                "verl.world_size": 4,
                "verl.replica.rank": 0,
                "verl.index": "teacher-0-1",
            },
        ),
    ],
)
def test_what_an_actor_is(instance, name, environ, expected):
    """Role, rank, replica and number follow from the class, the actor's name and the environment that verl gives it."""
    assert describe_actor(instance, name, environ) == expected


def test_an_actor_without_object_has_a_role():
    """Before its constructor ran, an actor counts as one of the user's."""
    assert describe_actor(None, "", {}) == {"verl.role": "actor"}
    assert describe_actor(types.SimpleNamespace(worker_dict={}), "", {})["verl.role"] == "actor"


class Mode(enum.Enum):
    """As verl has it."""

    HYBRID = "hybrid"


@pytest.mark.parametrize(
    ("instance", "role", "reserved", "environ", "expected"),
    [
        (None, "actor_rollout_ref", {"GPU": ["3"], "TPU": ["7"]}, {}, {"verl.gpu.ids": ("3",)}),
        (None, "actor", {"GPU": [], "NPU": [4, 5]}, {}, {"verl.gpu.ids": ("4", "5")}),
        (None, "trainer", {"GPU": []}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {}),
        (
            actor("vLLMHttpServer", rollout_mode=Mode.HYBRID),
            "llm_server",
            {"GPU": []},
            {"CUDA_VISIBLE_DEVICES": "2, 3"},
            {"verl.gpu.ids": ("2", "3"), "verl.replica.mode": "hybrid"},
        ),
        (actor("SGLangHttpServer"), "llm_server", {}, {"ASCEND_RT_VISIBLE_DEVICES": "6"}, {"verl.gpu.ids": ("6",)}),
        (actor("vLLMHttpServer"), "llm_server", {}, {"CUDA_VISIBLE_DEVICES": "-1"}, {}),
        (actor("vLLMHttpServer"), "llm_server", {}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {}),
        (actor("vLLMHttpServer"), "llm_server", {}, {}, {}),
        (actor("TRTLLMHttpServer"), "llm_server", {}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {}),
        (actor("Mine", rollout_mode="standalone"), "actor", {}, {}, {"verl.replica.mode": "standalone"}),
    ],
)
def test_which_gpus_a_process_computes_on(instance, role, reserved, environ, expected):
    """A worker says what Ray reserved for it, a server what verl made visible to it, others what they see is not theirs."""
    assert describe_gpus(instance, role, reserved, environ) == expected


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(None, {"verl.role": "driver", "verl.index": 0}), ("0", {"verl.role": "driver", "verl.index": 0}), ("1", {})],
)
def test_ranks_of_torchrun_are_no_drivers(monkeypatch, rank, expected):
    """They import Ray with verl and do not start it: all of them would be the instance ``driver-0``."""
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert identity.describe_process() == expected


WRAPPED = """
import functools
import ray.actor
original = ray.actor.ActorMethod._remote
@functools.wraps(original)
def wrapper(*args, **kwargs):
    return original(*args, **kwargs)
ray.actor.ActorMethod._remote = wrapper
import verl_otel
verl_otel.init(exporters="none")
from verl_otel.integrations.ray.context_propagation import Propagation
print(ray.actor.ActorMethod._remote is wrapper, Propagation.state)
"""


@pytest.mark.full
def test_a_wrapper_of_another_library_stays():
    """Ray's methods that another library has wrapped are left alone, and the state says why calls carry no context."""
    pytest.importorskip("ray", reason="Ray is not installed in this environment")
    done = subprocess.run([sys.executable, "-c", WRAPPED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True another library has wrapped the methods of Ray's actors\n", done.stderr


# -- moments at which Ray cannot be asked --


class Library:
    """Ray's library in a worker; it counts its calls. Those of a process that Ray cannot answer would hang, or end it."""

    def __init__(self):
        self.calls = []

    def call(self, name, value):
        def answer(*_, **__):
            self.calls.append(name)
            return value

        return answer

    def install(self, monkeypatch):
        module = types.ModuleType("ray")
        worker = types.SimpleNamespace(mode=1, actors={})
        module._private = types.SimpleNamespace(
            worker=types.SimpleNamespace(WORKER_MODE=1, global_worker=worker),
            state=types.SimpleNamespace(actors=self.call("actors", None)),
        )
        module.is_initialized = lambda: True
        context = types.SimpleNamespace(
            get_job_id=self.call("job", "j1"),
            get_node_id=self.call("node", "n1"),
            get_actor_id=lambda: (self.calls.append("actor"), "a1" if worker.actors else None)[1],
            get_actor_name=lambda: (self.calls.append("name"), "agent_loop_worker_3_ab12" if worker.actors else None)[
                1
            ],
            get_accelerator_ids=self.call("accelerators", {"GPU": ["3"]}),
        )
        module.get_runtime_context = lambda: context
        monkeypatch.setitem(sys.modules, "ray", module)
        identity.install()
        return worker


@pytest.fixture
def worker(monkeypatch):
    """A worker of Ray that has loaded telemetry, before there is an actor in it."""
    library = Library()
    made = library.install(monkeypatch)
    made.library = library
    return made


def begin_actor(worker, *, noted=True):
    """What Ray does in a worker when an actor begins; ``noted``: its class is loaded by the function that is hooked."""
    worker.actors["a1"] = actor("AgentLoopWorker")
    if noted:
        load = surround("ray identity", identity._note_actor)(lambda: type(worker.actors["a1"]))
        load()


ACTOR = {
    "ray.job.id": "j1",
    "ray.node.id": "n1",
    "ray.actor.id": "a1",
    "verl.role": "agent_loop",
    "verl.index": 3,
    "verl.gpu.ids": ("3",),
}


def test_at_its_end_a_worker_is_described_without_ray(worker, monkeypatch):
    """Ray has closed its connection before: a question would end the process, before the user's own exit handlers."""
    begin_actor(worker)
    worker.actors.clear()
    monkeypatch.setattr(cluster_store, "is_exiting", lambda: True)
    asked = list(worker.library.calls)
    assert identity.describe_process() == ACTOR
    assert worker.library.calls == asked


def test_what_was_known_before_the_end_stays(worker, monkeypatch):
    """Number and GPUs of an actor that was described while it worked."""
    begin_actor(worker, noted=False)
    before = identity.describe_process()
    assert before == ACTOR
    monkeypatch.setattr(cluster_store, "is_exiting", lambda: True)
    assert identity.describe_process() == before


def test_a_forked_child_is_described_as_its_parent_was_at_the_fork(worker, monkeypatch):
    """Though the parent has recorded nothing yet. Ray has no threads in the child: a question would wait for ever."""
    begin_actor(worker, noted=False)
    identity._before_fork()
    monkeypatch.setattr(cluster_store._Inherited, "connection", True)
    asked = list(worker.library.calls)
    assert identity.describe_process() == ACTOR
    assert worker.library.calls == asked


def test_rays_head_is_asked_for_restarts_once_and_not_waited_for(worker, wait_for):
    """On a thread of its own; the description does not need the answer."""
    begin_actor(worker)
    identity.describe_process()
    identity.describe_process()
    wait_for(lambda: not any(thread.name == "verl-otel-restart" for thread in threading.enumerate()))
    assert worker.library.calls.count("actors") == 1


FORKED = """
import os, sys, types
ray = types.ModuleType("ray")
ray.is_initialized = lambda: True
sys.modules["ray"] = ray
from verl_otel.integrations import cluster_store
print(cluster_store.is_connected(), flush=True)
if os.fork() == 0:
    print(cluster_store.is_connected(), flush=True)
    os._exit(0)
os.wait()
"""


EXITING = """
import atexit, sys, threading
from verl_otel.integrations import cluster_store
atexit.register(lambda: print(cluster_store.is_exiting()))
thread = threading.Thread(target=lambda: print(cluster_store.is_exiting()))
thread.start()
thread.join()
{end}
"""


@pytest.mark.full
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise KeyboardInterrupt"])
def test_an_exit_handler_runs_while_the_interpreter_ends(end):
    """However the program ends."""
    command = [sys.executable, "-c", EXITING.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "False\nTrue\n", done.stderr


@pytest.mark.full
def test_a_forked_child_has_no_connection_to_ray():
    """Nothing asks Ray there: neither the store, nor the watchdog, nor the end of a run that is its parent's."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True\nFalse\n", done.stderr
