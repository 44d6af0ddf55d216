# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA: the management library (NVML) through ``nvidia-ml-py``, which imports as ``pynvml``: its start, its devices, its end."""

from __future__ import annotations

import os
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.gpu.device import Device, Lost, Unreadable
from verl_otel.integrations.gpu.nvml_device import Counts, NvmlDevice, name_error

PRESENT: Final = ["/dev/nvidiactl", "/dev/dxg"]
"""Where the driver can be reached: Linux, and Linux under Windows. Without one of them nothing is imported."""


def find_driver() -> NvmlDriver | None:
    """Return NVML; None where there is no NVIDIA driver, or nothing to reach it with."""
    if not any(map(os.path.exists, PRESENT)):
        return None
    try:
        import pynvml
    except ImportError:
        _guard.say(
            "pynvml", "verl-otel: this node has NVIDIA GPUs, and nothing to read them with: pip install nvidia-ml-py"
        )
        return None
    return NvmlDriver(pynvml)


class NvmlDriver:
    """The library, from its start to its end.

    Args:
        library: The module ``pynvml``.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._open = False
        self._devices: list[NvmlDevice] = []
        self._known: dict[str, tuple[str, Counts]] = {}
        """Id and counts of each device by its name: they outlive a search."""

    def find_devices(self) -> list[Device]:
        """Return every GPU, and every MIG device behind the one that it is a part of."""
        library = self._library
        found: list[Device] = []
        try:
            library.nvmlInit()
            self._open = True
            for number in range(library.nvmlDeviceGetCount()):
                found += self._find_device(number)
        except library.NVMLError as error:
            if name_error(library, error) in ("library_not_found", "driver_not_loaded"):
                return []  # a container that was given no GPU
            raise Unreadable(name_error(library, error)) from error
        return found

    def close(self) -> None:
        """Shut the library down."""
        for device in self._devices:
            device.close()
        self._devices = []
        if self._open:
            self._open = False
            self._library.nvmlShutdown()

    def _find_device(self, number: int) -> list[Device]:
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(number)
            device = self._make(handle, str(number))
        except library.NVMLError as error:
            identity = self._known[str(number)][0] if str(number) in self._known else f"number {number}"
            return [Lost(identity, str(number), name_error(library, error))]
        parts: list[Device] = []
        for part in range(self._count_parts(handle)):
            try:
                inner = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, part)
                parts.append(self._make(inner, f"{number}:{part}", device.id))
            except library.NVMLError:  # a place that is not taken
                continue
        return [device, *parts]

    def _make(self, handle: Any, name: str, parent: str = "") -> NvmlDevice:
        library = self._library
        identity, model = _text(library.nvmlDeviceGetUUID(handle)), _text(library.nvmlDeviceGetName(handle))
        known = self._known.get(name)
        counts = known[1] if known is not None and known[0] == identity else Counts()
        self._known[name] = identity, counts
        device = NvmlDevice(library, handle, identity, name, model, counts, parent)
        self._devices.append(device)
        return device

    def _count_parts(self, handle: Any) -> int:
        library = self._library
        try:
            enabled = library.nvmlDeviceGetMigMode(handle)[0] == 1
            return int(library.nvmlDeviceGetMaxMigDeviceCount(handle)) if enabled else 0
        except library.NVMLError:
            return 0


def _text(value: str | bytes) -> str:
    """Return text; old versions of the module return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
