# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs: the metrics of each device from its driver, the processes that use it, and the memory of the framework's allocator.

There is one module per driver behind a small interface (`device`): NVML, AMD SMI, Ascend. Without a
GPU nothing is imported, started or logged. Everything is read at collection.
"""

from typing import Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.gpu import amd, nvml
from verl_otel.integrations.gpu.allocator import AllocatorCollector
from verl_otel.integrations.gpu.collector import GpuCollector, OwnerCollector
from verl_otel.system.collectors import add as add_collector
from verl_otel.system.collectors import remove as remove_collector

COLLECTORS: Final = (GpuCollector, OwnerCollector, AllocatorCollector)


def install() -> None:
    """Register the collectors of this process. Drivers are imported here, because the thread that collects must not import."""
    for driver in (nvml, amd):
        with error_boundary.suppress_errors("gpu import"):
            driver.load()
    for collector in COLLECTORS:
        add_collector(collector())


def uninstall() -> None:
    """Unregister the collectors."""
    for collector in COLLECTORS:
        remove_collector(collector.name)
