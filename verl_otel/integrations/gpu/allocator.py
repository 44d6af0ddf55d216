# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.gpu.memory.used`` and ``.reserved``: what the framework's allocator holds in this process.

PyTorch is asked only where it is loaded and has begun to use its devices: it is never made to, and never waits for a device. Its counters are
read under a lock of the allocator, with the interpreter held; a thread that gives memory back to the driver may hold this lock for as
long as the driver takes. Where one is seen to do so, this collection leaves the memory out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final

from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.sources import Place

KINDS: Final = ("cuda", "npu")
"""PyTorch's modules for devices: NVIDIA and AMD, Ascend."""
MAX_DEVICES: Final = 16
_GIVES_BACK: Final = ("empty_cache", "aggressive_empty_cache", "_cuda_emptyCache")
"""Functions that hold the allocator's lock for long."""
_DEPTH: Final = 4
"""Innermost calls of a thread that are looked at."""


class AllocatorSource:
    """Asks PyTorch's allocators."""

    name = "gpu allocator"
    metrics = ("verl.gpu.memory.used", "verl.gpu.memory.reserved")
    once_per_node = False

    def read(self, place: Place) -> Iterable[Measurement]:  # noqa: ARG002 - as every source
        """Return bytes in use and held, of every device that this process sees."""
        torch = sys.modules.get("torch")
        found: list[Measurement] = []
        for kind in KINDS:
            module = getattr(torch, kind, None)
            if module is not None and _is_begun(module):
                found += _read_devices(kind, module)
        return found

    def close(self) -> None:
        """Nothing is open."""


def _is_begun(module: Any) -> bool:
    asked = getattr(module, "is_initialized", None)
    return asked is not None and bool(asked())


def _read_devices(kind: str, module: Any) -> list[Measurement]:
    found: list[Measurement] = []
    for number in range(min(module.device_count(), MAX_DEVICES)):
        if _is_giving_back():
            return []
        try:
            used, reserved = module.memory_allocated(number), module.memory_reserved(number)
        except RuntimeError:  # an allocator of the user's own that does not count
            return []
        if reserved:
            labels = ((attr.DEVICE, f"{kind}:{number}"),)
            found += [("verl.gpu.memory.used", labels, used), ("verl.gpu.memory.reserved", labels, reserved)]
    return found


def _is_giving_back() -> bool:
    return any(_gives_back(frame) for frame in sys._current_frames().values())


def _gives_back(frame: FrameType | None) -> bool:
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name in _GIVES_BACK:
            return True
        frame = frame.f_back
    return False
