# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a run has, and which processes compute on each.

A process says the ids of its GPUs (`verl.gpu.ids`): a worker those that Ray reserved for it, an LLM server those that verl made visible
to it. A device is then (host, node, id), whoever shares it. Where nobody says ids, each process with a rank stands for one device, and
the servers are laid over these: a standalone replica over its own ranks, the others over the actor's ranks in order, as verl itself
places them (``RolloutReplica.init_hybrid``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr

_SERVER: Final = "llm_server"
_PURPOSE: Final = re.compile(r"llm_server-(reward|teacher)-")
_NUMBERS: Final = re.compile(r"(\d+)")


class Device(NamedTuple):
    """One GPU."""

    name: str
    """``<host>/<id>``; the process that stands for it where no ids are known."""
    trains: bool = False
    """A worker of the trainer computes on it."""
    serves: str = ""
    """What an LLM server on it is for: ``rollout``, ``reward`` or ``teacher``; empty: there is none."""

    @property
    def lane(self) -> str:
        """Why it can be idle: ``train``, ``hybrid``, ``rollout``, ``reward`` or, of no known use, ``other``."""
        if self.trains:
            return "hybrid" if self.serves in ("rollout", "teacher") else "train"
        return {"rollout": "rollout", "teacher": "rollout", "reward": "reward"}.get(self.serves, "other")


class Devices(NamedTuple):
    """The GPUs of a run, in a natural order of their names."""

    known: tuple[Device, ...]
    users: Mapping[str, tuple[int, ...]]
    """Indexes of the devices that a process computes on, by its instance."""
    problems: tuple[str, ...] = ()
    """What is missing, in words."""

    @property
    def replicas(self) -> int:
        """How many LLM servers generate rollouts."""
        return sum(instance.startswith(_SERVER) and not _PURPOSE.match(instance) for instance in self.users)


class _Process(NamedTuple):
    instance: str
    role: str
    rank: int | None
    mode: str
    ids: tuple[str, ...]
    place: tuple[str, str]
    """Host and node of Ray."""


def find(resources: Iterable[Resource], manifest: Mapping[str, Any]) -> Devices:
    """Return the GPUs of a run.

    Args:
        resources: Those of all its processes.
        manifest: Its ``run.json``: how many GPUs the trainer has.
    """
    processes = sorted(map(_read, resources), key=lambda process: (_natural(process.instance), process.place))
    used = _lay_workers(processes)
    _lay_servers(processes, used)
    trains = {name for each in processes if _is_trainer(each) for name in used.get(each.instance, ())}
    serves: dict[str, str] = {}
    for process in processes:
        if process.role == _SERVER:
            found = _PURPOSE.match(process.instance)
            for name in used.get(process.instance, ()):
                if serves.get(name) != "rollout":  # a reward model may share the GPUs of the rollout
                    serves[name] = found[1] if found else "rollout"
    names = sorted({name for each in used.values() for name in each}, key=_natural)
    index = {name: number for number, name in enumerate(names)}
    known = tuple(Device(name, name in trains, serves.get(name, "")) for name in names)
    users = {instance: tuple(sorted(index[name] for name in set(each))) for instance, each in used.items()}
    return Devices(known, users, _find_problems(processes, known, manifest))


def _read(resource: Resource) -> _Process:
    values = resource.attributes
    rank, ids = values.get(attr.RANK), values.get(attr.GPU_IDS, ())
    return _Process(
        resource.text(attr.SERVICE_INSTANCE).rpartition("/")[2],
        resource.text(attr.ROLE),
        rank if isinstance(rank, int) else None,
        resource.text(attr.REPLICA_MODE),
        tuple(map(str, ids)) if isinstance(ids, (tuple, list)) else (str(ids),),
        (resource.text(attr.HOST_NAME), resource.text(attr.RAY_NODE)),
    )


def _is_trainer(process: _Process) -> bool:
    return process.rank is not None and process.role != "rollout"


def _lay_workers(processes: list[_Process]) -> dict[str, list[str]]:
    """Return the names of devices by the instance of every process that says its GPUs, or stands for one."""
    nodes: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        if process.ids:
            nodes[process.place[0]].add(process.place[1])
    used: dict[str, list[str]] = defaultdict(list)
    for process in processes:
        host, node = process.place
        where = (
            f"{host}-{node[:8]}" if len(nodes[host]) > 1 else host
        )  # several nodes of Ray on one host: a test's cluster
        used[process.instance] += [f"{where}/{each}" for each in process.ids]
        if not process.ids and process.rank is not None and process.role != _SERVER:
            used[process.instance].append(process.instance)
    return {instance: names for instance, names in used.items() if names}


def _lay_servers(processes: list[_Process], used: dict[str, list[str]]) -> None:
    """Add the devices of the LLM servers that do not say their GPUs."""
    silent = {each.instance: each for each in processes if each.role == _SERVER and each.instance not in used}
    hybrid = []
    for instance, server in silent.items():
        own = f"rollout-{instance.removeprefix(_SERVER + '-')}-"
        ranks = [name for each in processes if each.instance.startswith(own) for name in used.get(each.instance, ())]
        if ranks:
            used[instance] = ranks
        elif server.mode == "standalone":
            used[instance] = [instance]
        else:
            hybrid.append(instance)
    hosts = _order_hosts(processes, used)
    for number, instance in enumerate(hybrid):
        begin = number * len(hosts) // len(hybrid)
        end = max((number + 1) * len(hosts) // len(hybrid), begin + 1)
        used[instance] = hosts[begin:end] or [instance]


def _order_hosts(processes: list[_Process], used: Mapping[str, list[str]]) -> list[str]:
    """Return the devices that replicas share with the trainer: those of the actor, in the order of its ranks."""
    ranked = sorted((each for each in processes if _is_trainer(each)), key=lambda each: each.rank or 0)
    actors = [each for each in ranked if each.role.startswith("actor")] or ranked
    return list(dict.fromkeys(name for each in actors for name in used.get(each.instance, ())))


def _find_problems(
    processes: list[_Process], known: tuple[Device, ...], manifest: Mapping[str, Any]
) -> tuple[str, ...]:
    try:
        expected = int(manifest.get("verl.gpus", 0)) * int(manifest.get("verl.nodes", 1))
    except (TypeError, ValueError):
        expected = 0
    found = []
    trained_on = sum(device.trains for device in known)
    if not known:
        found.append("GPUs: no process says which it uses; there is no account of their time")
    elif trained_on < expected:
        found.append(f"GPUs: {trained_on} of the trainer's {expected} are known; the others are in no account")
    elif trained_on > expected > 0 and not any(process.ids for process in processes):
        found.append(f"GPUs: every rank counts as one, that makes {trained_on}, but the trainer has {expected}")
    return tuple(found)


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``node-2/10`` after ``node-2/9``."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in _NUMBERS.split(name))
