# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The panels of hosts on the board of GPUs: memory, CPU, network and disks. One process of each node reads what is of the node."""

from __future__ import annotations

from typing import Final

from dashboards.parts import panels
from dashboards.parts.panels import Panel
from dashboards.parts.queries import grouped, plain, query


def host_memory() -> Panel:
    """How much memory of the host does each role take?"""
    text = "Resident memory of the processes of a run, by role. Memory that they share is counted for each of them. A steady slope is a leak."
    asked = grouped("sum", "verl_run_id, verl_role", "process_memory_usage_bytes{process}")
    return panels.lines("Host memory, by role", text, "bytes", asked, low=0)


def host_left() -> Panel:
    """How much memory is left?"""
    text = (
        "What processes of a node can still take before the kernel ends one, and the bound (of the container, if it has one). One process "
        "of each node tells it."
    )
    names = {"verl_host_memory_available_bytes": "left", "verl_host_memory_limit_bytes": "bound"}
    asked = plain(names, "instance")
    return panels.lines("Host memory left, by node", text, "bytes", *asked, low=0)


def host_use() -> Panel:
    """What is the memory of each node used for?"""
    text = (
        "Memory of the host by state, as one process of each node reads it, and what verl logs as used on the hosts of its workers. Cached "
        "memory is given back when it is needed."
    )
    asked = [
        query("system_memory_usage_bytes{run}", "{{instance}} {{system_memory_state}}"),
        query("verl_host_memory_used_bytes{run}", "{{verl_run_id}} {{verl_update_role}}, by verl"),
    ]
    return panels.lines("Host memory, by state", text, "bytes", *asked, low=0)


def processor() -> Panel:
    """How many CPUs does each role use?"""
    text = "CPU seconds for a second: 1 is one core. A trainer or an agent loop at 1 may be held by Python's lock."
    asked = grouped("sum", "verl_run_id, verl_role", "rate(process_cpu_time_seconds_total{process}[rate])")
    return panels.lines("CPU, by role", text, "short", asked, low=0)


def host_processor() -> Panel:
    """How busy is each host?"""
    text = "Share of all CPUs of a node that was busy, whoever used them. Waiting for a disk is not busy."
    every = "(sum by (instance) (rate(system_cpu_time_seconds_total{run}[rate])) > 0)"
    free = 'sum by (instance) (rate(system_cpu_time_seconds_total{run, cpu_mode=~"idle|iowait"}[rate]))'
    return panels.lines(
        "CPU, by node", text, "percentunit", query(f"1 - {free} / {every}", "{{instance}}"), low=0, high=1
    )


def network() -> Panel:
    """How much goes over the network?"""
    text = "Bytes for a second over each node's network interfaces and InfiniBand or RoCE ports. NCCL over InfiniBand is in the second only."
    by = "by (instance, network_interface_name, network_io_direction)"
    plain = query(
        f"sum {by} (rate(system_network_io_bytes_total{{run}}[rate]))",
        "{{instance}} {{network_interface_name}} {{network_io_direction}}",
    )
    fabric = grouped("sum", "instance, hw_id, hw_direction", "rate(hw_network_io_bytes_total{run}[rate])")
    return panels.lines("Network", text, "Bps", plain, fabric, low=0)


def disk() -> Panel:
    """How much goes to the disks?"""
    text = "Bytes for a second to and from each node's disks. Network file systems are not disks: look at the network for them."
    by = "by (instance, system_device, disk_io_direction)"
    asked = query(
        f"sum {by} (rate(system_disk_io_bytes_total{{run}}[rate]))",
        "{{instance}} {{system_device}} {{disk_io_direction}}",
    )
    return panels.lines("Disks", text, "Bps", asked, low=0)


PANELS: Final = (host_memory, host_left, host_use, processor, host_processor, network, disk)
