# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""AMD: the library ``amdsmi`` that comes with ROCm.

Calls and units: AMD SMI Python API Reference. Values that a model does not support are ``"N/A"`` or an error.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.gpu.device import (
    GENERAL,
    Device,
    Library,
    MissingDevice,
    Unreadable,
    measure,
    measure_own,
)
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system.collectors import DeltaCounter

PRESENT: Final = ["/dev/kfd"]
"""Device file of ROCm's driver. Without it nothing is imported."""
LIBRARY: Final = "libamd_smi.so"
"""The library that ``amdsmi`` loads at import. If it is missing ``amdsmi`` prints a message, so it is not imported then."""
_MEBIBYTE: Final = 1 << 20
_ABSENT: Final = (
    "NOT_SUPPORTED", "NOT_YET_IMPLEMENTED", "NO_PERM", "NOT_FOUND", "FILE_NOT_FOUND", "NO_DATA", "INVAL",
    "UNEXPECTED_DATA",
)  # fmt: skip
"""Errors of values that this model or driver does not support."""
_GONE: Final = ("NOT_INIT", "DRIVER_NOT_LOADED", "NO_DRV", "AMDGPU_RESTART_ERR")
"""Errors of a driver that is gone or starts again. Others concern one value."""


def load() -> None:
    """Import ``amdsmi`` if the driver is present."""
    if any(map(os.path.exists, PRESENT)):
        _load()


def find_driver() -> AmdDriver | None:
    """Return the driver; None without an AMD driver or without ``amdsmi``."""
    if not any(map(os.path.exists, PRESENT)):
        return None
    library = _load()
    return AmdDriver(library) if library is not None else None


@functools.cache
def _load() -> Any:
    """Return the module ``amdsmi``; None, for the life of this process, if it cannot be loaded."""
    reason = _find_problem()
    if not reason:
        try:
            import amdsmi
        except Exception as error:
            reason = str(error)
        else:
            return amdsmi
    error_boundary.warn_once(
        "amdsmi", "verl-otel: this node has AMD GPUs, and amdsmi of ROCm cannot be loaded: %s", reason
    )
    return None


def _find_problem() -> str:
    """Return why the module cannot be loaded, or "". Its library is searched in its folder, in ROCm and in ``LD_LIBRARY_PATH``."""
    module = importlib.util.find_spec("amdsmi")
    if module is None:
        return "No module named 'amdsmi'"
    rocm = [Path(os.environ.get(name) or "/opt/rocm") / "lib" for name in ("ROCM_PATH", "ROCM_HOME")]
    folders = [*(module.submodule_search_locations or ()), *rocm, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    if any(os.path.exists(Path(folder, LIBRARY)) for folder in folders if folder):  # noqa: PTH110 - a folder may be closed
        return ""
    return f"{LIBRARY} is not found"


class AmdDriver:
    """The library from initialisation to shutdown.

    Args:
        library: The module ``amdsmi``.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._open = False
        self._counters: dict[str, DeltaCounter] = {}
        self._ids: dict[int, str] = {}
        """Id of each device by its number, kept for devices that are missing in a later search."""

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
            return self._open_device(handle, number)
        except library.AmdSmiLibraryException as error:
            identity = self._ids.get(number, f"number {number}")
            return MissingDevice(identity, str(number), name_error(library, error))

    def _open_device(self, handle: Any, number: int) -> AmdDevice:
        identity = str(self._library.amdsmi_get_gpu_device_uuid(handle))
        self._ids[number] = identity
        model = str(self._library.amdsmi_get_gpu_asic_info(handle).get("market_name", ""))
        counters = self._counters.setdefault(identity, DeltaCounter())
        return AmdDevice(self._library, handle, identity, str(number), model, counters)


class AmdDevice:
    """One GPU."""

    def __init__(self, library: Any, handle: Any, identity: str, name: str, model: str, counters: DeltaCounter) -> None:
        self.id, self.name, self.model = identity, name, model
        self._library, self._handle, self._counters = library, handle, counters
        self._calls = Library(library, library.AmdSmiLibraryException, name_error, _GONE, _ABSENT)

    def read(self) -> list[Measurement]:
        """Return the measurements of AMD SMI."""
        self._calls.begin()
        measurements = [
            *self._read_load(),
            *self._read_memory(),
            *self._read_power(),
            *self._read_temperature(),
            *self._read_errors(),
        ]
        self._calls.check()
        return measurements

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._calls.call(self.id, name, self._handle, *arguments)

    def _read_load(self) -> list[Measurement]:
        activity, measurements = self._call("amdsmi_get_gpu_activity") or {}, []
        busy, memory = _number(activity.get("gfx_activity")), _number(activity.get("umc_activity"))
        if busy is not None:
            measurements.append(measure(metric_names.HW_GPU_UTILIZATION, self.id, busy / 100, *GENERAL))
        if memory is not None:  # load of the memory controller
            measurements.append(measure_own(metric_names.GPU_MEMORY_IO_UTILIZATION, self.id, memory / 100))
        return measurements

    def _read_memory(self) -> list[Measurement]:
        memory = self._call("amdsmi_get_gpu_vram_usage") or {}
        used, total = _number(memory.get("vram_used")), _number(memory.get("vram_total"))
        measurements = []
        if used is not None:
            measurements.append(measure(metric_names.HW_GPU_MEMORY_USAGE, self.id, used * _MEBIBYTE))
        if total is not None:
            measurements.append(measure(metric_names.HW_GPU_MEMORY_LIMIT, self.id, total * _MEBIBYTE))
        return measurements

    def _read_power(self) -> list[Measurement]:
        power, measurements = self._call("amdsmi_get_power_info") or {}, []
        for name in ("current_socket_power", "average_socket_power", "socket_power"):
            watts = _number(power.get(name))
            if watts:  # a model supports one of them and returns 0 for the others
                measurements.append(measure(metric_names.HW_POWER, self.id, watts))
                break
        energy = self._call("amdsmi_get_energy_count") or {}
        ticks, micro = (_number(energy.get(name)) for name in ("energy_accumulator", "counter_resolution"))
        if ticks is not None and micro:
            measurements.append(
                measure(metric_names.HW_ENERGY, self.id, self._counters.count("energy", ticks) * micro / 1e6)
            )
        return measurements

    def _read_temperature(self) -> list[Measurement]:
        library, measurements = self._library, []
        kinds, current = library.AmdSmiTemperatureType, library.AmdSmiTemperatureMetric.CURRENT
        for sensor, kind in (("gpu", kinds.HOTSPOT), ("memory", kinds.VRAM)):
            degrees = _number(self._call("amdsmi_get_temp_metric", kind, current))
            if degrees:
                measurements.append(measure(metric_names.HW_TEMPERATURE, self.id, degrees, (attr.HW_SENSOR, sensor)))
        clock = self._call("amdsmi_get_clock_info", library.AmdSmiClkType.GFX) or {}
        megahertz = _number(clock.get("clk", clock.get("cur_clk")))  # its name before ROCm 6.2
        if megahertz is not None:
            measurements.append(measure_own(metric_names.GPU_CLOCK, self.id, megahertz * 1e6))
        return measurements

    def _read_errors(self) -> list[Measurement]:
        counts = self._call("amdsmi_get_gpu_total_ecc_count") or {}
        measurements = []
        for kind, name in (("ecc_corrected", "correctable_count"), ("ecc_uncorrected", "uncorrectable_count")):
            errors = _number(counts.get(name))
            if errors is not None:
                measurements.append(
                    measure(
                        metric_names.HW_ERRORS, self.id, self._counters.count(name, errors), (attr.ERROR_TYPE, kind)
                    )
                )
        return measurements


def name_error(library: Any, error: Any) -> str:
    """Return the name of an error of AMD SMI, such as ``not_supported``."""
    constants = vars(library.amdsmi_wrapper)
    code = getattr(error, "err_code", None)
    names = (name for name in constants if name.startswith("AMDSMI_STATUS_") and constants[name] == code)
    return next(names, "AMDSMI_STATUS_UNKNOWN").removeprefix("AMDSMI_STATUS_").lower()


def _number(value: object) -> float | None:
    """Return a number; None for ``"N/A"``."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
