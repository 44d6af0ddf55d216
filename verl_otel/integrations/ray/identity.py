# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who a process is in a Ray job: its role and number, read from the actor that runs in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.model import AttributeValue
from verl_otel.recording import registry
from verl_otel.semconv import attributes as attr

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
"""First match wins: what an actor's class name says of its role."""
_PURPOSE: Final = re.compile(r"(reward|teacher)_")
"""What the engine of a reward model or teacher has in its actor's name; it counts its replicas from 0, as the rollout does."""
_REPLICA: Final = re.compile(r"^rollout_(?:reward_|teacher_)?(?:standalone|colocate)_(\d+)")

_ACCELERATORS: Final = ("GPU", "NPU")
"""What Ray calls the accelerators that verl asks for."""
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
_SETS_VISIBLE: Final = re.compile(r"vLLM|SGLang", re.IGNORECASE)
_NO_GPU: Final = ("-1", "NoDevFiles")
"""What these variables say where there is none."""


def install() -> None:
    """Have the session ask us who this process is."""
    session.add_describer(describe_process)


def describe_process() -> Mapping[str, AttributeValue]:
    """Return role, rank and Ray's ids of this process; nothing outside a Ray job."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {attr.ROLE: "driver", "verl.index": 0} if ray is not None else {}
    context = ray.get_runtime_context()
    found: dict[str, AttributeValue] = {
        attr.RAY_JOB: str(context.get_job_id()),
        attr.RAY_NODE: str(context.get_node_id()),
    }
    actor_id = context.get_actor_id()
    if not actor_id:
        worker = ray._private.worker
        is_driver = worker.global_worker.mode != worker.WORKER_MODE
        return {**found, attr.ROLE: "driver", "verl.index": 0} if is_driver else {**found, attr.ROLE: "task"}
    found[attr.RAY_ACTOR] = str(actor_id)
    with _guard.swallowed("restart"):
        _count_restart(ray, str(actor_id))
    instance = next(iter(ray._private.worker.global_worker.actors.values()), None)
    name = context.get_actor_name() or ""
    found |= describe_actor(instance, name, os.environ)
    with _guard.swallowed("gpu ids"):
        found |= describe_gpus(instance, str(found[attr.ROLE]), context.get_accelerator_ids(), os.environ)
    return found


class _Restart:
    """Whether this process was counted as one that Ray started again."""

    counted = False


def _count_restart(ray: Any, actor_id: str) -> None:
    """Count this process once if Ray made it in the place of an actor that had died."""
    if not _Restart.counted:
        _Restart.counted = True
        # As `was_current_actor_reconstructed` does, which tells the user's log that Ray's own way to the id is deprecated.
        known = ray._private.state.actors(actor_id=actor_id)
        if known and int(known["NumRestarts"]):  # of the others no series says that they were not
            registry.counter("verl.worker.restarts", ((attr.REASON, "actor died"),)).record(1)


def describe_gpus(
    instance: Any, role: str, reserved: Mapping[str, Sequence[Any]], environ: Mapping[str, str]
) -> dict[str, AttributeValue]:
    """Return which GPUs a process computes on, and how its replica shares them with the trainer.

    Args:
        instance: The actor's object.
        role: Its role. An LLM server reserves no GPU; those of vLLM and SGLang make the GPUs of their ranks visible to themselves, in
            others the variable is the host's.
        reserved: Ids by kind of accelerator, as Ray says them.
        environ: The environment of the process.

    Example:
        describe_gpus(worker, "actor_rollout_ref", {"GPU": ["3"]}, {}) == {"verl.gpu.ids": ("3",)}
    """
    ids = [str(each) for kind in _ACCELERATORS for each in reserved.get(kind) or ()]
    mode = getattr(instance, "rollout_mode", None)
    if not ids and role == "llm_server" and any(_SETS_VISIBLE.search(each.__name__) for each in type(instance).__mro__):
        visible = next((environ[name] for name in _VISIBLE if environ.get(name)), "")
        ids = [each.strip() for each in visible.split(",")]
    found: dict[str, AttributeValue] = {}
    known = tuple(dict.fromkeys(each for each in ids if each and each not in _NO_GPU))
    if known:
        found[attr.GPU_IDS] = known
    if mode is not None:
        found[attr.REPLICA_MODE] = str(getattr(mode, "value", mode)).lower()
    return found


def describe_actor(instance: Any, name: str, environ: Mapping[str, str]) -> dict[str, AttributeValue]:
    """Return role and number of an actor from its object, its name and its environment.

    Example:
        describe_actor(worker, "agent_loop_worker_3_ab12", {}) == {"verl.role": "agent_loop", "verl.index": 3}
    """
    class_name = type(instance).__name__
    held = getattr(instance, "worker_dict", None)
    found: dict[str, AttributeValue] = {}
    if isinstance(held, dict) and held:
        keys = sorted(map(str, held), key=lambda key: not key.startswith("actor"))
        found[attr.ROLE] = keys[0]
    else:
        found[attr.ROLE] = next((role for pattern, role in _ROLES if pattern.search(class_name)), "actor")
    if (
        found[attr.ROLE] in ("actor_rollout_ref", "critic", "ref", "actor", "rollout")
        and environ.get("RANK", "").isdigit()
    ):
        found[attr.RANK] = int(environ["RANK"])
        found[attr.WORLD_SIZE] = int(environ.get("WORLD_SIZE", "1"))
        replica_of = _REPLICA.search(name)
        if replica_of:  # every replica counts its ranks from 0
            found[attr.REPLICA_RANK] = int(replica_of[1])
            found["verl.index"] = _qualify(name, f"{replica_of[1]}-{found[attr.RANK]}")
        return found
    replica = getattr(instance, "replica_rank", None)
    if isinstance(replica, int):
        found[attr.REPLICA_RANK] = replica
        found["verl.index"] = _qualify(name, str(replica))
        return found
    if found[attr.ROLE] == "trainer":
        return {**found, "verl.index": 0}
    number = re.search(r"_(\d+)(?:_|$|:)", name)
    if number:
        found["verl.index"] = int(number[1])
    return found


def _qualify(name: str, number: str) -> str:
    """Return a replica's number with what its engine is for, unless that is the rollout."""
    purpose = _PURPOSE.search(name)
    return f"{purpose[1]}-{number}" if purpose else number
