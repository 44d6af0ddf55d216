# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""System metrics: CPU and memory of this process, and, once per node, CPU, memory, disks and networks."""

from verl_otel.system import collectors
from verl_otel.system.node import NodeCollector, ProcessCollector


def install() -> None:
    """Add the collectors of this process and of its node."""
    collectors.add(ProcessCollector())
    collectors.add(NodeCollector())
