# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs: what the driver says of each, who computes on it, and what the framework's allocator holds.

One module per driver behind one small interface (`device`): NVML (``pip install 'verl-otel[gpu]'``), AMD SMI, Ascend. Where there is no
GPU nothing is imported, started or said. Everything is read at collection.
"""

from typing import Final

from verl_otel.integrations.gpu.allocator import AllocatorSource
from verl_otel.integrations.gpu.owner import OwnerSource
from verl_otel.integrations.gpu.source import GpuSource
from verl_otel.session import sources

SOURCES: Final = (GpuSource, OwnerSource, AllocatorSource)


def install() -> None:
    """Have GPUs read in this process."""
    for source in SOURCES:
        sources.add(source())


def uninstall() -> None:
    """Read no GPU any more."""
    for source in SOURCES:
        sources.remove(source.name)
