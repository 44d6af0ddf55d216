# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the GPUs of a run, and the processes that compute on each.

A process reports the ids of its GPUs (`verl.gpu.ids`): a worker those that Ray reserved for it, an LLM server those that verl made
visible to it. A device is then (host, id), whichever processes share it, in every attempt. Where no ids are reported, each process with a rank
stands for one device, and servers are assigned to these: a standalone replica to its own ranks, the others to the actor's ranks in
order, as verl itself places them (``RolloutReplica.init_hybrid``). A process of an own loop reports its GPUs as a metric (`verl.gpu.owner`), because
it has them only after its start; it trains and generates on them itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from verl_otel.analysis.io.run_files import read_count
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import GPU_OWNER

_SERVER: Final = "llm_server"
OWN: Final = "process"
"""Role of the processes of own loops."""
_PURPOSE: Final = re.compile(r"llm_server-(reward|teacher)-")
_METRICS: Final = "hw.gpu."
"""Prefix of the metrics of GPUs that a driver reports."""
UNKNOWN_GPUS: Final = "GPUs: no process reports which it uses; there is no account of their time"
MAX_DIGITS: Final = 19
_NUMBERS: Final = re.compile(r"(\d+)")


class Device(NamedTuple):
    """One GPU."""

    name: str
    """``<host>/<id>``; the process that stands for it where no ids are known."""
    trains: bool = False
    """True: a worker of the trainer computes on it."""
    serves: str = ""
    """Purpose of an LLM server on it: ``rollout``, ``reward`` or ``teacher``; empty: there is none."""

    @property
    def lane(self) -> str:
        """Its use, which determines why it can be idle: ``train``, ``hybrid``, ``rollout``, ``reward`` or ``other``."""
        if self.trains:
            return "hybrid" if self.serves in ("rollout", "teacher") else "train"
        return {"rollout": "rollout", "teacher": "rollout", "reward": "reward"}.get(self.serves, "other")


class Devices(NamedTuple):
    """The GPUs of an attempt of a run, in a natural order of their names."""

    gpus: tuple[Device, ...]
    users: Mapping[str, tuple[int, ...]]
    """Indexes of the devices that a process computes on, by its instance."""
    problems: tuple[str, ...] = ()
    """Messages about missing GPUs."""
    own: frozenset[str] = frozenset()
    """Processes of own loops that generate on their GPUs themselves."""

    @property
    def replicas(self) -> int:
        """Number of LLM servers that generate rollouts."""
        return sum(instance.startswith(_SERVER) and not _PURPOSE.match(instance) for instance in self.users)


class _Process(NamedTuple):
    instance: str
    role: str
    rank: int | None
    mode: str
    ids: tuple[str, ...]
    place: tuple[str, str]
    """Host and node of Ray."""


def find_devices(
    resources: Iterable[Resource],
    manifest: Mapping[str, Any],
    owners: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Devices:
    """Return the GPUs of an attempt of a run.

    Args:
        resources: The resources of all its processes.
        manifest: The run's manifest: how many GPUs the trainer has.
        owners: Ids of the GPUs that a process reports as a metric, by its instance.
    """
    read = [_read(resource) for resource in resources]
    own = {
        process.instance for process in read if not process.ids and process.role == OWN and owners.get(process.instance)
    }
    read = [
        process._replace(ids=tuple(owners[process.instance])) if process.instance in own else process
        for process in read
    ]
    processes = sorted(read, key=lambda process: (natural(process.instance), process.place))
    used = _assign_workers(processes)
    _assign_servers(processes, used)
    trains = {
        name
        for process in processes
        if _is_trainer(process) or process.instance in own
        for name in used.get(process.instance, ())
    }
    serves: dict[str, str] = {}
    for process in processes:
        if process.role == _SERVER:
            purpose = _PURPOSE.match(process.instance)
            for name in used.get(process.instance, ()):
                if serves.get(name) != "rollout":  # a reward model may share the GPUs of the rollout
                    serves[name] = purpose[1] if purpose else "rollout"
    if any(process.role == _SERVER for process in processes):
        own = set()
    serves |= {name: "rollout" for instance in own for name in used[instance]}
    names = sorted({name for device_names in used.values() for name in device_names}, key=natural)
    index = {name: number for number, name in enumerate(names)}
    devices = tuple(Device(name, name in trains, serves.get(name, "")) for name in names)
    users = {
        instance: tuple(sorted(index[name] for name in set(device_names))) for instance, device_names in used.items()
    }
    return Devices(devices, users, _find_problems(processes, devices, manifest), frozenset(own))


def find_owners(series: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> dict[str, list[str]]:
    """Return the GPUs that processes report as a metric: numbers, or ids where the numbers are not known, by instance.

    Args:
        series: Name and labels of the run's metrics.
    """
    owners: dict[str, list[str]] = {}
    for name, labels in series:
        values = dict(labels)
        if name == GPU_OWNER and "instance" in values:
            owners.setdefault(values["instance"], []).append(values.get(attr.HW_NAME) or values.get(attr.HW_ID, ""))
    return owners


def has_gpu(resources: Iterable[Resource], metrics: Iterable[str], manifest: Mapping[str, Any]) -> bool:
    """Return whether a run has GPUs; without any, a device is a process with a rank on a CPU.

    Args:
        resources: The resources of all its processes.
        metrics: Names of its metrics.
        manifest: Its manifest. A training with ``trainer.device=cpu`` uses no GPU, whatever Ray reserves.
    """
    if manifest.get(attr.TRAINER_DEVICE) == "cpu":
        return False
    return any(resource.attributes.get(attr.GPU_IDS) for resource in resources) or any(
        name.startswith(_METRICS) for name in metrics
    )


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


def _assign_workers(processes: list[_Process]) -> dict[str, list[str]]:
    """Return device names by instance, for every process that reports its GPUs or stands for one."""
    nodes: dict[str, dict[str, int]] = defaultdict(dict)
    for process in processes:
        if process.ids:
            host, node = process.place
            nodes[host].setdefault(node, len(nodes[host]))
    used: dict[str, list[str]] = defaultdict(list)
    for process in processes:
        host, node = process.place
        # Several nodes of Ray on one host are a test's cluster. They are numbered: their ids are other ones in each attempt.
        where = f"{host}-{nodes[host][node]}" if process.ids and len(nodes[host]) > 1 else host
        used[process.instance] += [f"{where}/{gpu_id}" for gpu_id in process.ids]
        if not process.ids and process.rank is not None and process.role != _SERVER:
            used[process.instance].append(process.instance)
    return {instance: names for instance, names in used.items() if names}


def _assign_servers(processes: list[_Process], used: dict[str, list[str]]) -> None:
    """Assign devices to the LLM servers that do not report their GPUs."""
    silent = {
        process.instance: process for process in processes if process.role == _SERVER and process.instance not in used
    }
    hybrid = []
    for instance, server in silent.items():
        own = f"rollout-{instance.removeprefix(_SERVER + '-')}-"
        ranks = [
            name for process in processes if process.instance.startswith(own) for name in used.get(process.instance, ())
        ]
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
    ranked = sorted((process for process in processes if _is_trainer(process)), key=lambda process: process.rank or 0)
    actors = [process for process in ranked if process.role.startswith("actor")] or ranked
    return list(dict.fromkeys(name for actor in actors for name in used.get(actor.instance, ())))


def _find_problems(
    processes: list[_Process], devices: tuple[Device, ...], manifest: Mapping[str, Any]
) -> tuple[str, ...]:
    expected = read_count(manifest, attr.GPUS) * (read_count(manifest, attr.NODES) or 1)
    problems = []
    trained_on = sum(device.trains for device in devices)
    if not devices:
        if expected:
            problems.append(UNKNOWN_GPUS)
    elif trained_on < expected:
        problems.append(f"GPUs: {trained_on} of the trainer's {expected} are known; the others are in no account")
    elif trained_on > expected > 0 and not any(process.ids for process in processes):
        problems.append(f"GPUs: every rank counts as one, that makes {trained_on}, but the trainer has {expected}")
    return tuple(problems)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``node-2/10`` after ``node-2/9``."""
    parts = _NUMBERS.split(name)
    return tuple((int(part), "") if part.isdecimal() and len(part) < MAX_DIGITS else (-1, part) for part in parts)
