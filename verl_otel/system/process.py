# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of this process."""

from __future__ import annotations

import os
from collections.abc import Iterable

from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system import procfs
from verl_otel.system.collectors import NodeScope


class ProcessCollector:
    """Reads this process, in every process."""

    name = "process"
    metrics = (metric_names.PROCESS_CPU_TIME, metric_names.PROCESS_MEMORY_USAGE)
    once_per_node = False

    def read(self, scope: NodeScope) -> Iterable[Measurement]:  # noqa: ARG002 - as every collector
        """Return the CPU seconds since the start of the process, and its resident bytes."""
        times = os.times()
        yield metric_names.PROCESS_CPU_TIME, ((attr.CPU_MODE, "user"),), times.user
        yield metric_names.PROCESS_CPU_TIME, ((attr.CPU_MODE, "system"),), times.system
        resident = procfs.read_memory(os.getpid())
        if resident:
            yield metric_names.PROCESS_MEMORY_USAGE, (), resident

    def close(self) -> None:
        """Do nothing: no handle is open."""
