# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The host: what the kernel says of this process, and, read once per node, of CPU, memory, disks and networks."""

from verl_otel.session import sources
from verl_otel.session.host.node import NodeSource
from verl_otel.session.host.process import ProcessSource


def install() -> None:
    """Have the host read in this process."""
    sources.add(ProcessSource())
    sources.add(NodeSource())
