# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""AMD: the library ``amdsmi`` that comes with ROCm.

Calls and units: AMD SMI Python API Reference. Values that a model does not have are ``"N/A"``, or an error that says so.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.gpu.device import GENERAL, Device, Lost, Unreadable, measure, measure_own
from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.sources import Since

PRESENT: Final = ["/dev/kfd"]
"""Where ROCm reaches the driver. Without it nothing is imported."""
LIBRARY: Final = "libamd_smi.so"
"""What ``amdsmi`` loads when it is imported. Where it does not find it, it prints: it is not imported then."""
_MEBIBYTE: Final = 1 << 20
_ABSENT: Final = (
    "NOT_SUPPORTED",
    "NOT_YET_IMPLEMENTED",
    "NO_PERM",
    "NOT_FOUND",
    "FILE_NOT_FOUND",
    "NO_DATA",
    "INVAL",
    "UNEXPECTED_DATA",
)
"""Errors that say that this model or driver does not have a value."""


def find_driver() -> AmdDriver | None:
    """Return AMD SMI; None where there is no AMD driver, or nothing to reach it with."""
    if not any(map(os.path.exists, PRESENT)):
        return None
    library = _load()
    return AmdDriver(library) if library is not None else None


@functools.cache
def _load() -> Any:
    """Return the module; None, for the life of this process, where it cannot be loaded."""
    reason = _find_fault()
    if not reason:
        try:
            import amdsmi
        except Exception as error:
            reason = str(error)
        else:
            return amdsmi
    _guard.say("amdsmi", "verl-otel: this node has AMD GPUs, and amdsmi of ROCm cannot be loaded: %s", reason)
    return None


def _find_fault() -> str:
    """Return what is missing for the module; its library is looked for beside it, in ROCm, and where the loader does."""
    module = importlib.util.find_spec("amdsmi")
    if module is None:
        return "No module named 'amdsmi'"
    rocm = [Path(os.environ.get(name) or "/opt/rocm") / "lib" for name in ("ROCM_PATH", "ROCM_HOME")]
    folders = [*(module.submodule_search_locations or ()), *rocm, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    if any(Path(folder, LIBRARY).exists() for folder in folders if folder):
        return ""
    return f"{LIBRARY} is not found"


class AmdDriver:
    """The library, from its start to its end.

    Args:
        library: The module ``amdsmi``.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._open = False
        self._known: dict[str, Since] = {}
        self._ids: dict[int, str] = {}
        """Id of each device by its number: they outlive a search."""

    def find_devices(self) -> list[Device]:
        """Return every GPU."""
        library = self._library
        try:
            library.amdsmi_init()
            self._open = True
            handles = library.amdsmi_get_processor_handles()
        except library.AmdSmiLibraryException as error:
            raise Unreadable(name_error(library, error)) from error
        return [self._find_device(handle, number) for number, handle in enumerate(handles)]

    def close(self) -> None:
        """Shut the library down."""
        if self._open:
            self._open = False
            self._library.amdsmi_shut_down()

    def _find_device(self, handle: Any, number: int) -> Device:
        library = self._library
        try:
            return self._make(handle, number)
        except library.AmdSmiLibraryException as error:
            identity = self._ids.get(number, f"number {number}")
            return Lost(identity, str(number), name_error(library, error))

    def _make(self, handle: Any, number: int) -> AmdDevice:
        identity = str(self._library.amdsmi_get_gpu_device_uuid(handle))
        self._ids[number] = identity
        model = str(self._library.amdsmi_get_gpu_asic_info(handle).get("market_name", ""))
        since = self._known.setdefault(identity, Since())
        return AmdDevice(self._library, handle, identity, str(number), model, since)


class AmdDevice:
    """One GPU."""

    def __init__(self, library: Any, handle: Any, identity: str, name: str, model: str, since: Since) -> None:
        self.id, self.name, self.model = identity, name, model
        self._library, self._handle, self._since = library, handle, since

    def read(self) -> list[Measurement]:
        """Return what AMD SMI says of it."""
        return [*self._read_load(), *self._read_memory(), *self._read_power(), *self._read_heat(), *self._read_errors()]

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return what a function says; None if this model or driver does not know it."""
        library = self._library
        function: Callable[..., Any] | None = getattr(library, name, None)
        if function is None:
            return None
        try:
            return function(self._handle, *arguments)
        except library.AmdSmiLibraryException as error:
            reason = name_error(library, error)
            if reason.upper() in _ABSENT:
                return None
            raise Unreadable(reason) from error

    def _read_load(self) -> list[Measurement]:
        percent = _number((self._ask("amdsmi_get_gpu_activity") or {}).get("gfx_activity"))
        return [] if percent is None else [measure("hw.gpu.utilization", self.id, percent / 100, *GENERAL)]

    def _read_memory(self) -> list[Measurement]:
        memory = self._ask("amdsmi_get_gpu_vram_usage") or {}
        used, total = _number(memory.get("vram_used")), _number(memory.get("vram_total"))
        found = []
        if used is not None:
            found.append(measure("hw.gpu.memory.usage", self.id, used * _MEBIBYTE))
        if total is not None:
            found.append(measure("hw.gpu.memory.limit", self.id, total * _MEBIBYTE))
        return found

    def _read_power(self) -> list[Measurement]:
        power, found = self._ask("amdsmi_get_power_info") or {}, []
        for name in ("current_socket_power", "average_socket_power", "socket_power"):
            watts = _number(power.get(name))
            if watts:  # models have one of them, and 0 for the others
                found.append(measure("hw.power", self.id, watts))
                break
        energy = self._ask("amdsmi_get_energy_count") or {}
        ticks, micro = (_number(energy.get(name)) for name in ("energy_accumulator", "counter_resolution"))
        if ticks is not None and micro:
            found.append(measure("hw.energy", self.id, self._since.count("energy", ticks) * micro / 1e6))
        return found

    def _read_heat(self) -> list[Measurement]:
        library, found = self._library, []
        kinds, current = library.AmdSmiTemperatureType, library.AmdSmiTemperatureMetric.CURRENT
        for sensor, kind in (("gpu", kinds.HOTSPOT), ("memory", kinds.VRAM)):
            degrees = _number(self._ask("amdsmi_get_temp_metric", kind, current))
            if degrees:
                found.append(measure("hw.temperature", self.id, degrees, (attr.HW_SENSOR, sensor)))
        clock = self._ask("amdsmi_get_clock_info", library.AmdSmiClkType.GFX) or {}
        megahertz = _number(clock.get("clk", clock.get("cur_clk")))  # its name before ROCm 6.2
        if megahertz is not None:
            found.append(measure_own("verl.gpu.clock", self.id, megahertz * 1e6))
        return found

    def _read_errors(self) -> list[Measurement]:
        counts = self._ask("amdsmi_get_gpu_total_ecc_count") or {}
        found = []
        for kind, name in (("ecc_corrected", "correctable_count"), ("ecc_uncorrected", "uncorrectable_count")):
            errors = _number(counts.get(name))
            if errors is not None:
                found.append(measure("hw.errors", self.id, self._since.count(name, errors), (attr.ERROR_TYPE, kind)))
        return found


def name_error(library: Any, error: Any) -> str:
    """Return an error of AMD SMI in a word, such as ``not_supported``."""
    constants = vars(library.amdsmi_wrapper)
    code = getattr(error, "err_code", None)
    names = (name for name in constants if name.startswith("AMDSMI_STATUS_") and constants[name] == code)
    return next(names, "AMDSMI_STATUS_UNKNOWN").removeprefix("AMDSMI_STATUS_").lower()


def _number(value: object) -> float | None:
    """Return a number; None for ``"N/A"``."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
