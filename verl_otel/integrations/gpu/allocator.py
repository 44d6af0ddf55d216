# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.gpu.memory.used`` and ``.reserved``: memory of the framework's allocator in this process.

PyTorch is read only if it is loaded and has initialised its devices; reading never initialises it and never
synchronises a device. The counters are read under a lock of the allocator, while the interpreter lock is held. A thread
that returns memory to the driver may hold the allocator's lock for a long time: a collection that sees such a thread
skips these metrics. The allocator of vLLM's sleep mode calls Python under its lock. To read there could end in a
deadlock, so a process with that allocator has no such metrics.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final, NamedTuple

from verl_otel._internal import thread_frames
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system.collectors import Collector, NodeScope

KINDS: Final = ("cuda", "npu")
"""PyTorch's device modules: NVIDIA and AMD, Ascend."""
MAX_DEVICES: Final = 16
_FREEING_FUNCTIONS: Final = ("empty_cache", "aggressive_empty_cache", "_cuda_emptyCache")
"""Functions that may hold the allocator's lock for a long time."""
_CALLS_PYTHON: Final = ("vllm.device_allocator.cumem", "vllm_ascend.device_allocator.camem")
"""Modules of allocators that take the interpreter lock while they hold their own."""
_DEPTH: Final = 4
"""Innermost frames of each thread that are inspected."""


class AllocatorCollector(Collector):
    """Reads PyTorch's allocators."""

    name = "gpu allocator"
    metrics = (metric_names.GPU_MEMORY_USED, metric_names.GPU_MEMORY_RESERVED)
    once_per_node = False

    def read(self, scope: NodeScope) -> Iterable[Measurement]:  # noqa: ARG002 - see `Collector`
        """Return used and reserved bytes of every device that is visible to this process."""
        return [
            measurement
            for device in _read_devices()
            for labels in [((attr.DEVICE, f"{device.kind}:{device.number}"),)]
            for measurement in (
                (metric_names.GPU_MEMORY_USED, labels, device.used),
                (metric_names.GPU_MEMORY_RESERVED, labels, device.reserved),
            )
        ]


def find_uuids() -> list[str]:
    """Return the UUIDs of the devices on which this process has memory, without a prefix; none where PyTorch does not know them."""
    properties = (device.module.get_device_properties(device.number) for device in _read_devices())
    return [str(one.uuid) for one in properties if getattr(one, "uuid", None)]


class _Used(NamedTuple):
    """A device on which this process has memory."""

    kind: str
    number: int
    used: int
    reserved: int
    module: Any
    """PyTorch's module of its kind."""


def _is_initialized(module: Any) -> bool:
    is_initialized = getattr(module, "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _read_devices() -> list[_Used]:
    if any(name in sys.modules for name in _CALLS_PYTHON):
        return []
    torch = sys.modules.get("torch")
    devices: list[_Used] = []
    for kind in KINDS:
        module = getattr(torch, kind, None)
        if module is None or not _is_initialized(module):
            continue
        for number in range(min(module.device_count(), MAX_DEVICES)):
            if any(_is_in_freeing_function(frame) for frame in thread_frames.read().values()):
                return []
            try:
                used, reserved = module.memory_allocated(number), module.memory_reserved(number)
            except RuntimeError:  # a custom allocator without statistics
                return []
            if reserved:
                devices.append(_Used(kind, number, used, reserved, module))
    return devices


def _is_in_freeing_function(frame: FrameType | None) -> bool:
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name in _FREEING_FUNCTIONS:
            return True
        frame = frame.f_back
    return False
