# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of this process."""

from __future__ import annotations

import os
from collections.abc import Iterable

from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.black_box import processes
from verl_otel.session.sources import Place


class ProcessSource:
    """Reads this process, in every process."""

    name = "process"
    metrics = ("process.cpu.time", "process.memory.usage")
    once_per_node = False

    def read(self, place: Place) -> Iterable[Measurement]:  # noqa: ARG002 - as every source
        """Return CPU seconds since the process began, and its resident bytes."""
        times = os.times()
        yield "process.cpu.time", ((attr.CPU_MODE, "user"),), times.user
        yield "process.cpu.time", ((attr.CPU_MODE, "system"),), times.system
        resident = processes.read_memory(os.getpid())
        if resident:
            yield "process.memory.usage", (), resident

    def close(self) -> None:
        """Nothing is open."""
