# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The panels of hosts on the board of GPUs: memory, CPU, network and disks. One process of each node reads what is of the node."""

from __future__ import annotations

from typing import Final

from dashboards.parts import panels
from dashboards.parts.names import label, legend, metric
from dashboards.parts.panels import Panel
from dashboards.parts.queries import grouped, plain, query


def host_memory() -> Panel:
    """How much memory of the host does each role take?"""
    text = "Resident memory of the processes of a run, by role. Memory that they share is counted for each of them. A steady slope is a leak."
    target = grouped("sum", f"{label.RUN_ID}, {label.ROLE}", f"{metric.PROCESS_MEMORY_USAGE}{{process}}")
    return panels.timeseries("Host memory, by role", text, "bytes", target, low=0)


def host_left() -> Panel:
    """How much memory is left?"""
    text = (
        "What processes of a node can still take before the kernel ends one, and the bound (of the container, if it has one). One process "
        "of each node tells it."
    )
    names = {metric.HOST_MEMORY_AVAILABLE: "left", metric.HOST_MEMORY_LIMIT: "bound"}
    targets = plain(names, "instance")
    return panels.timeseries("Host memory left, by node", text, "bytes", *targets, low=0)


def host_use() -> Panel:
    """What is the memory of each node used for?"""
    text = (
        "Memory of the host by state, as one process of each node reads it, and what verl logs as used on the hosts of its workers. Cached "
        "memory is given back when it is needed."
    )
    targets = [
        query(f"{metric.SYSTEM_MEMORY_USAGE}{{run}}", f"{{{{instance}}}} {legend.MEMORY_STATE}"),
        query(f"{metric.HOST_MEMORY_USED}{{run}}", f"{legend.RUN_ID} {legend.UPDATE_ROLE}, by verl"),
    ]
    return panels.timeseries("Host memory, by state", text, "bytes", *targets, low=0)


def processor() -> Panel:
    """How many CPUs does each role use?"""
    text = "CPU seconds for a second: 1 is one core. A trainer or an agent loop at 1 may be held by Python's lock."
    target = grouped("sum", f"{label.RUN_ID}, {label.ROLE}", f"rate({metric.PROCESS_CPU_TIME}{{process}}[rate])")
    return panels.timeseries("CPU, by role", text, "short", target, low=0)


def host_processor() -> Panel:
    """How busy is each host?"""
    text = "Share of all CPUs of a node that was busy, with all processes. Waiting for a disk is not busy."
    every = f"(sum by (instance) (rate({metric.SYSTEM_CPU_TIME}{{run}}[rate])) > 0)"
    free = f'sum by (instance) (rate({metric.SYSTEM_CPU_TIME}{{run, {label.CPU_MODE}=~"idle|iowait"}}[rate]))'
    return panels.timeseries(
        "CPU, by node", text, "percentunit", query(f"1 - {free} / {every}", "{{instance}}"), low=0, high=1
    )


def network() -> Panel:
    """How much goes over the network?"""
    text = "Bytes for a second over each node's network interfaces and InfiniBand or RoCE ports. NCCL over InfiniBand is in the second only."
    by = f"by (instance, {label.INTERFACE}, {label.NETWORK_DIRECTION})"
    ethernet = query(
        f"sum {by} (rate({metric.SYSTEM_NETWORK_IO}{{run}}[rate]))",
        f"{{{{instance}}}} {legend.INTERFACE} {legend.NETWORK_DIRECTION}",
    )
    infiniband = grouped(
        "sum", f"instance, {label.HW_ID}, {label.HW_DIRECTION}", f"rate({metric.HW_NETWORK_IO}{{run}}[rate])"
    )
    return panels.timeseries("Network", text, "Bps", ethernet, infiniband, low=0)


def disk() -> Panel:
    """How much goes to the disks?"""
    text = (
        "Bytes for a second to and from each node's disks, and what Ray's object store spills, in the seconds in which it does. Network file "
        "systems are not disks: look at the network for them."
    )
    by = f"by (instance, {label.DISK}, {label.DISK_DIRECTION})"
    target = query(
        f"sum {by} (rate({metric.SYSTEM_DISK_IO}{{run}}[rate]))",
        f"{{{{instance}}}} {legend.DISK} {legend.DISK_DIRECTION}",
    )
    time = f"sum by (instance, {label.DISK_DIRECTION}) (rate({metric.RAY_SPILL_TIME}{{run}}[rate])) > 0"
    bytes_ = f"sum by (instance, {label.DISK_DIRECTION}) (rate({metric.RAY_SPILL_IO}{{run}}[rate]))"
    spilled = query(f"{bytes_} / ({time})", f"{{{{instance}}}} Ray's object store {legend.DISK_DIRECTION}")
    return panels.timeseries("Disks", text, "Bps", target, spilled, low=0)


PANELS: Final = (host_memory, host_left, host_use, processor, host_processor, network, disk)
