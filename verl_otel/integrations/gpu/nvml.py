# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA: the management library (NVML) through ``nvidia-ml-py``, imported as ``pynvml``."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.gpu.device import Device, MissingDevice, Unreadable
from verl_otel.integrations.gpu.nvml_device import DeviceCounters, NvmlDevice, name_error

PRESENT: Final = ["/dev/nvidiactl", "/dev/dxg"]
"""Device files of the driver on Linux and on WSL. Without one of them nothing is imported."""


def load() -> None:
    """Import ``pynvml`` if the driver is present; `find_driver` reports if it is missing."""
    if any(map(os.path.exists, PRESENT)):
        with contextlib.suppress(ImportError):
            importlib.import_module("pynvml")


def find_driver() -> NvmlDriver | None:
    """Return the driver; None without an NVIDIA driver or without ``pynvml``."""
    if not any(map(os.path.exists, PRESENT)):
        return None
    try:
        import pynvml
    except ImportError:
        error_boundary.warn_once(
            "pynvml", "verl-otel: this node has NVIDIA GPUs, and nothing to read them with: pip install nvidia-ml-py"
        )
        return None
    return NvmlDriver(pynvml)


class NvmlDriver:
    """The library from initialisation to shutdown.

    Args:
        library: The module ``pynvml``.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._open = False
        self._devices: list[NvmlDevice] = []
        self._counters_by_name: dict[str, tuple[str, DeviceCounters]] = {}
        """Id and counters of each device by its name, kept across searches."""

    def find_devices(self) -> list[Device]:
        """Return every GPU, each followed by its MIG devices."""
        library = self._library
        devices: list[Device] = []
        try:
            library.nvmlInit()
            self._open = True
            for number in range(library.nvmlDeviceGetCount()):
                devices += self._find_device(number)
        except library.NVMLError as error:
            if name_error(library, error) in ("library_not_found", "driver_not_loaded"):
                return []  # a container without a GPU
            raise Unreadable(name_error(library, error)) from error
        return devices

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
            device = self._open_device(handle, str(number))
        except library.NVMLError as error:
            identity = (
                self._counters_by_name[str(number)][0] if str(number) in self._counters_by_name else f"number {number}"
            )
            return [MissingDevice(identity, str(number), name_error(library, error))]
        mig_devices: list[Device] = []
        for mig_index in range(self._count_mig_devices(handle)):
            try:
                mig_handle = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, mig_index)
                mig_devices.append(self._open_device(mig_handle, f"{number}:{mig_index}", device.id))
            except library.NVMLError:  # an unused slot
                continue
        return [device, *mig_devices]

    def _open_device(self, handle: Any, name: str, parent: str = "") -> NvmlDevice:
        library = self._library
        identity, model = _text(library.nvmlDeviceGetUUID(handle)), _text(library.nvmlDeviceGetName(handle))
        previous = self._counters_by_name.get(name)
        counters = previous[1] if previous is not None and previous[0] == identity else DeviceCounters()
        self._counters_by_name[name] = identity, counters
        device = NvmlDevice(library, handle, identity, name, model, counters, parent)
        self._devices.append(device)
        return device

    def _count_mig_devices(self, handle: Any) -> int:
        library = self._library
        try:
            enabled = library.nvmlDeviceGetMigMode(handle)[0] == 1
            return int(library.nvmlDeviceGetMaxMigDeviceCount(handle)) if enabled else 0
        except library.NVMLError:
            return 0


def _text(value: str | bytes) -> str:
    """Return text; old versions of ``pynvml`` return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
