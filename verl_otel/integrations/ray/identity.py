# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The identity of a process in a Ray job: role and number, read from the actor that runs in it."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary, process_state
from verl_otel.integrations import cluster_store
from verl_otel.integrations.patch import Hook
from verl_otel.model import AttributeValue
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.series import counter
from verl_otel.resource import add_describer
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.session import children

_ROLES: Final = (
    (re.compile(r"AgentLoopWorker"), "agent_loop"),
    (re.compile(r"Reward"), "reward"),
    (re.compile(r"TaskRunner|Trainer"), "trainer"),
    (re.compile(r"HttpServer|LLMServer|Replica"), "llm_server"),
    (re.compile(r"Rollouter"), "agent_loop"),
    (re.compile(r"TransferQueue|StorageUnit|Controller"), "transfer_queue"),
    (re.compile(r"CheckpointEngineWorker"), "rollout"),
    (re.compile(r"Critic"), "critic"),
    (re.compile(r"Ref"), "ref"),
    (re.compile(r"WorkerDict|Worker"), "actor_rollout_ref"),
)
"""Roles by the class name of the actor; the first match wins."""
_MAIN: Final = "TaskRunner"
"""Part of the name of verl's classes from which recipes derive the actor with their main program."""
_PURPOSE: Final = re.compile(r"(reward|teacher)_")
"""Part of the actor name of an engine of a reward model or teacher, whose replicas are numbered from 0, as those of the rollout."""
_SUFFIX: Final = re.compile(r"_server_(?:reward|teacher)_\d+_\d+(_\w+)$")
"""What distinguishes several reward models or teachers."""
_REPLICA: Final = re.compile(r"^rollout_(?:reward_|teacher_)?(?:standalone|colocate)_(\d+)")

_ACCELERATORS: Final = ("GPU", "NPU")
"""Ray's names of the accelerators that verl reserves."""
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
_SETS_VISIBLE: Final = re.compile(r"vLLM|SGLang", re.IGNORECASE)
_NO_GPU: Final = ("-1", "NoDevFiles")
"""Values of these variables without a GPU."""


class _Facts(NamedTuple):
    """What Ray's library in this process knows about it."""

    job: str
    node: str
    actor: str
    """Ray's id of the actor in this process; empty: none yet, or a driver."""
    name: str
    class_name: str
    """The class of the actor; empty if it is not known."""
    accelerators: Mapping[str, Sequence[Any]]
    """Reserved ids by kind of accelerator."""


class _Kept:
    """The facts that were read last: for a forked child and the end of a worker, where Ray's library must not be called."""

    facts: _Facts | None = None
    class_name = ""
    """The class of the actor that is about to begin in this worker."""


def _note_actor(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Read the facts when an actor begins: it may end before anything else needs them."""
    actor_class = yield
    _Kept.class_name = actor_class.__name__
    _keep_facts()


BEGIN_ACTOR: Final = Hook.wrapping(
    "ray._private.function_manager",
    "FunctionActorManager.load_actor_class",
    surround("ray identity", _note_actor),
    "role and number of actors that live for less than a second",
)


def install() -> None:
    """Register the description of this process for the resource, and read what is known of it now."""
    add_describer(describe_process)
    with error_boundary.suppress_errors("ray identity"):
        _keep_facts()


def describe_process() -> Mapping[str, AttributeValue]:
    """Return role, rank and Ray's ids of this process; nothing outside a Ray job. Asks no other process."""
    ray = sys.modules.get("ray")
    if ray is None:
        return {}
    _keep_facts()
    facts = _Kept.facts
    if facts is None or not ray.is_initialized():
        return {} if _is_one_of_many() else {attr.ROLE: "driver", attr.INDEX: 0}
    attributes: dict[str, AttributeValue] = {attr.RAY_JOB: facts.job, attr.RAY_NODE: facts.node}
    if not cluster_store.is_worker():
        return {**attributes, attr.ROLE: "driver", attr.INDEX: 0}
    instance = next(iter(ray._private.worker.global_worker.actors.values()), None)  # none any more at the end
    if not facts.actor:
        return {**attributes, attr.ROLE: "task"}
    attributes[attr.RAY_ACTOR] = facts.actor
    with error_boundary.suppress_errors("restart"):
        _count_restart(ray, facts.actor)
    attributes |= describe_actor(instance, facts.name, os.environ, facts.class_name)
    with error_boundary.suppress_errors("gpu ids"):
        attributes |= describe_gpus(instance, str(attributes[attr.ROLE]), facts.accelerators, os.environ)
    return attributes


def _keep_facts() -> None:
    """Read the facts from Ray's library, which asks no other process. Those of an actor do not change."""
    if not cluster_store.is_connected() or (_Kept.facts is not None and _Kept.facts.actor):
        return
    context = cluster_store.runtime_context()
    actor, name, accelerators = "", "", {}
    if cluster_store.is_worker():
        actor, name = str(context.get_actor_id() or ""), context.get_actor_name() or ""
    if actor:
        with error_boundary.suppress_errors("gpu ids"):
            accelerators = context.get_accelerator_ids()
    job, node = str(context.get_job_id()), str(context.get_node_id())
    _Kept.facts = _Facts(job, node, actor, name, _Kept.class_name, accelerators)


def _before_fork() -> None:
    with error_boundary.suppress_errors("ray identity"):
        _keep_facts()


def _reset() -> None:
    _Kept.facts, _Kept.class_name = None, ""
    _Restart.asked = False


def _is_one_of_many() -> bool:
    """Return whether this is a rank of ``torchrun`` or a child of `multiprocessing`: no driver, though it imports Ray."""
    return children.is_child() or os.environ.get("RANK", "0") != "0"


class _Restart:
    """Whether Ray was asked for the restarts of the actor in this process."""

    asked = False


def _count_restart(ray: Any, actor_id: str) -> None:
    """Count this process, once, if Ray started it in place of an actor that died. Nothing waits for Ray's head, which knows it."""
    if not _Restart.asked and cluster_store.is_connected():
        _Restart.asked = True
        threading.Thread(target=_ask_for_restarts, args=(ray, actor_id), name="verl-otel-restart", daemon=True).start()


@error_boundary.never_raises("restart")
def _ask_for_restarts(ray: Any, actor_id: str) -> None:
    # As `was_current_actor_reconstructed` does, which logs a deprecation warning.
    row = ray._private.state.actors(actor_id=actor_id)
    if row and int(row["NumRestarts"]):  # other processes get no series
        counter(metric_names.WORKER_RESTARTS, ((attr.REASON, "actor died"),)).record(1)


process_state.register(reset=_reset, before_fork=_before_fork)


def describe_gpus(
    instance: Any, role: str, reserved: Mapping[str, Sequence[Any]], environ: Mapping[str, str]
) -> dict[str, AttributeValue]:
    """Return the GPUs of a process, and how its replica shares them with the trainer.

    Args:
        instance: The actor's object.
        role: Its role. An LLM server reserves no GPU; servers of vLLM and SGLang make the GPUs of their ranks visible, in other
            servers the variable is that of the host.
        reserved: Reserved ids by kind of accelerator, from Ray.
        environ: The environment of the process.

    Example:
        describe_gpus(worker, "actor_rollout_ref", {"GPU": ["3"]}, {}) == {"verl.gpu.ids": ("3",)}
    """
    ids = [str(gpu_id) for kind in _ACCELERATORS for gpu_id in reserved.get(kind) or ()]
    mode = getattr(instance, "rollout_mode", None)
    if not ids and role == "llm_server" and any(_SETS_VISIBLE.search(base.__name__) for base in type(instance).__mro__):
        visible = next((environ[name] for name in _VISIBLE if environ.get(name)), "")
        ids = [gpu_id.strip() for gpu_id in visible.split(",")]
    attributes: dict[str, AttributeValue] = {}
    gpu_ids = tuple(dict.fromkeys(gpu_id for gpu_id in ids if gpu_id and gpu_id not in _NO_GPU))
    if gpu_ids:
        attributes[attr.GPU_IDS] = gpu_ids
    if mode is not None:
        attributes[attr.REPLICA_MODE] = str(getattr(mode, "value", mode)).lower()
    return attributes


def describe_actor(
    instance: Any, name: str, environ: Mapping[str, str], class_name: str = ""
) -> dict[str, AttributeValue]:
    """Return role and number of an actor from its object, its name, its environment, and its class if the object is gone.

    Example:
        describe_actor(worker, "agent_loop_worker_3_ab12", {}) == {"verl.role": "agent_loop", "verl.index": 3}
    """
    class_name = class_name if instance is None else type(instance).__name__
    worker_dict = getattr(instance, "worker_dict", None)
    attributes: dict[str, AttributeValue] = {}
    if isinstance(worker_dict, dict) and worker_dict:
        keys = sorted(map(str, worker_dict), key=lambda key: not key.startswith("actor"))
        attributes[attr.ROLE] = keys[0]
    else:
        is_main = any(_MAIN in base.__name__ for base in type(instance).__mro__)
        attributes[attr.ROLE] = find_role(class_name, "trainer" if is_main else "actor")
    if (
        attributes[attr.ROLE] in ("actor_rollout_ref", "critic", "ref", "actor", "rollout")
        and environ.get("RANK", "").isdigit()
    ):
        attributes[attr.RANK] = int(environ["RANK"])
        attributes[attr.WORLD_SIZE] = int(environ.get("WORLD_SIZE", "1"))
        replica_of = _REPLICA.search(name)
        if replica_of:  # ranks are numbered from 0 in every replica
            attributes[attr.REPLICA_RANK] = int(replica_of[1])
            attributes[attr.INDEX] = _qualify(name, f"{replica_of[1]}-{attributes[attr.RANK]}")
        return attributes
    replica = getattr(instance, "replica_rank", None)
    if isinstance(replica, int):
        attributes[attr.REPLICA_RANK] = replica
        node = getattr(instance, "node_rank", 0)  # a replica on several nodes has a server on each
        attributes[attr.INDEX] = _qualify(name, f"{replica}-{node}" if isinstance(node, int) and node else str(replica))
        return attributes
    if attributes[attr.ROLE] == "trainer":
        return {**attributes, attr.INDEX: 0}
    number = re.search(r"_(\d+)(?:_|$|:)", name)
    if number:
        attributes[attr.INDEX] = int(number[1])
    return attributes


def find_role(class_name: str, unnamed: str = "actor") -> str:
    """Return the role of an actor by the name of its class; ``unnamed`` for a class of the user's."""
    return next((role for pattern, role in _ROLES if pattern.search(class_name)), unnamed)


def _qualify(name: str, number: str) -> str:
    """Return the number of a replica, with the purpose of its engine unless it is the rollout."""
    purpose, suffix = _PURPOSE.search(name), _SUFFIX.search(name)
    return f"{purpose[1]}-{number}{suffix[1] if suffix else ''}" if purpose else number
