# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One NVIDIA GPU or MIG device, read by NVML.

Calls and units: NVML API Reference. A value whose error is "not supported" is omitted. So is one with another error, which is logged once; the
device is unreadable if it is lost, or if nothing of it can be read.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any, Final

from verl_otel.integrations.gpu import xid
from verl_otel.integrations.gpu.device import GENERAL, Library, Unreadable, measure, measure_own
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system.collectors import DeltaCounter

_ABSENT: Final = (
    "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "FUNCTION_NOT_FOUND", "NO_DATA", "NOT_READY",
    "VGPU_ECC_NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED",
)  # fmt: skip
"""Errors of values that this device or driver does not support."""
_GONE: Final = (
    "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH",
)  # fmt: skip
"""Errors of a device that cannot be used, or of a driver that is gone. Others concern one value (SwanLab 773, aim 2420)."""
_ALL_LINKS: Final = 0xFFFFFFFF
_ERRORS: Final = {
    "ecc_corrected": ("NVML_FI_DEV_ECC_SBE_VOL_TOTAL",),
    "ecc_uncorrected": ("NVML_FI_DEV_ECC_DBE_VOL_TOTAL",),
    "link": (
        "NVML_FI_DEV_PCIE_REPLAY_COUNTER", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    ),
}  # fmt: skip
"""Kinds of errors, and the fields whose sum is the count."""
_THROTTLED: Final = {
    "power": "NVML_FI_DEV_PERF_POLICY_POWER",
    "thermal": "NVML_FI_DEV_PERF_POLICY_THERMAL",
    "sync_boost": "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
    "board_limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    "reliability": "NVML_FI_DEV_PERF_POLICY_RELIABILITY",
}
"""Reasons, and the fields that count their nanoseconds."""
_ALWAYS: Final = ("power", "thermal")
_THROTTLING: Final = {
    "power": "SwPowerCap",
    "hw_slowdown": "HwSlowdown",
    "thermal": "SwThermalSlowdown",
    "hw_thermal": "HwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
}
"""Reasons, and the suffixes of the names of their bits."""
_LINKS: Final = {
    "transmit": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "receive": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
}
_MEMORY_TEMPERATURE: Final = "NVML_FI_DEV_MEMORY_TEMP"
_FIELDS: Final = (*(name for names in _ERRORS.values() for name in names), *_THROTTLED.values(), _MEMORY_TEMPERATURE)
_VALUES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of the value union, by value type."""


class DeviceCounters:
    """Counters of a device since the first read."""

    def __init__(self) -> None:
        self.counters = DeltaCounter()
        self.xids: Counter[str] = Counter()


class NvmlDevice:
    """One GPU or MIG device."""

    def __init__(
        self,
        library: Any,
        handle: Any,
        identity: str,
        name: str,
        model: str,
        counters: DeviceCounters,
        parent: str = "",
    ) -> None:
        self.id, self.name, self.model = identity, name, model
        self._library, self._handle, self._parent = library, handle, parent
        self._counters, self._xids = counters.counters, counters.xids
        self._calls = Library(library, library.NVMLError, name_error, _GONE, _ABSENT)
        self._events: Any = None if parent else xid.listen(library, handle)

    def read(self) -> list[Measurement]:
        """Return the measurements of NVML."""
        self._calls.begin()
        measurements = self._read_memory() if self._parent else self._read_all()
        self._calls.check()
        return measurements

    def _read_all(self) -> list[Measurement]:
        """Return what the driver provides for a whole GPU; of a MIG device it knows the memory only."""
        fields = self._read_fields()
        return [
            *self._read_memory(),
            *self._read_load(),
            *self._read_errors(fields),
            *self._read_throttle(fields),
            *self._read_links(),
        ]

    def close(self) -> None:
        """Free the event set."""
        events, self._events = self._events, None
        if events is not None:
            self._call("nvmlEventSetFree", events, handle=False)

    def _call(self, name: str, *arguments: Any, handle: bool = True) -> Any:
        return self._calls.call(self.id, name, *((self._handle,) if handle else ()), *arguments)

    def _read_memory(self) -> list[Measurement]:
        memory = self._call("nvmlDeviceGetMemoryInfo")
        if memory is None:
            return []
        parent = ((attr.HW_PARENT, self._parent),) if self._parent else ()
        return [
            measure(metric_names.HW_GPU_MEMORY_USAGE, self.id, int(memory.used), *parent),
            measure(metric_names.HW_GPU_MEMORY_LIMIT, self.id, int(memory.total), *parent),
        ]

    def _read_load(self) -> list[Measurement]:
        library, measurements = self._library, []
        load = self._call("nvmlDeviceGetUtilizationRates")
        if load is not None:
            measurements.append(measure(metric_names.HW_GPU_UTILIZATION, self.id, load.gpu / 100, *GENERAL))
            measurements.append(measure_own(metric_names.GPU_MEMORY_IO_UTILIZATION, self.id, load.memory / 100))
        milliwatts = self._call("nvmlDeviceGetPowerUsage")
        if milliwatts is not None:
            measurements.append(measure(metric_names.HW_POWER, self.id, milliwatts / 1e3))
        millijoules = self._call("nvmlDeviceGetTotalEnergyConsumption")
        if millijoules is not None:
            measurements.append(
                measure(metric_names.HW_ENERGY, self.id, self._counters.count("energy", millijoules) / 1e3)
            )
        degrees = self._call("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU)
        if degrees is not None:
            measurements.append(measure(metric_names.HW_TEMPERATURE, self.id, degrees, (attr.HW_SENSOR, "gpu")))
        megahertz = self._call("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM)
        if megahertz is not None:
            measurements.append(measure_own(metric_names.GPU_CLOCK, self.id, megahertz * 1e6))
        return measurements

    def _read_fields(self) -> dict[str, float]:
        """Return field values by name, read in one call."""
        names = [name for name in _FIELDS if hasattr(self._library, name)]
        return self._call_fields({name: getattr(self._library, name) for name in names})

    def _call_fields(self, fields: dict[str, Any]) -> dict[str, float]:
        results = self._call("nvmlDeviceGetFieldValues", list(fields.values())) or ()
        values = {}
        for name, result in zip(fields, results, strict=False):
            reason = name_code(self._library, result.nvmlReturn)
            if reason == "success" and result.valueType < len(_VALUES):
                values[name] = float(getattr(result.value, _VALUES[result.valueType]))
            elif reason in ("gpu_is_lost", "reset_required"):
                raise Unreadable(reason)
        return values

    def _read_errors(self, fields: dict[str, float]) -> list[Measurement]:
        measurements = []
        for kind, names in _ERRORS.items():
            counts = [self._counters.count(name, fields[name]) for name in names if name in fields]
            if counts:
                measurements.append(measure(metric_names.HW_ERRORS, self.id, sum(counts), (attr.ERROR_TYPE, kind)))
        if self._events is not None:
            self._xids += xid.count(self._library, self._events, self.id)
            measurements += [
                measure(metric_names.HW_ERRORS, self.id, self._xids[kind], (attr.ERROR_TYPE, kind))
                for kind in xid.KINDS
            ]
        if _MEMORY_TEMPERATURE in fields and fields[_MEMORY_TEMPERATURE] > 0:
            degrees = fields[_MEMORY_TEMPERATURE]
            measurements.append(measure(metric_names.HW_TEMPERATURE, self.id, degrees, (attr.HW_SENSOR, "memory")))
        return measurements

    def _read_throttle(self, fields: dict[str, float]) -> list[Measurement]:
        measurements = []
        for reason, name in _THROTTLED.items():
            if name in fields:
                seconds = self._counters.count(name, fields[name]) / 1e9
                if seconds or reason in _ALWAYS:
                    measurements.append(
                        measure_own(metric_names.GPU_THROTTLED, self.id, seconds, (attr.REASON, reason))
                    )
        bits = self._call("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # a driver before 535
            bits = self._call("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        for reason, name in _THROTTLING.items():
            bit = getattr(self._library, f"nvmlClocksEventReason{name}", None)
            bit = getattr(self._library, f"nvmlClocksThrottleReason{name}", 0) if bit is None else bit
            if bits & bit:
                measurements.append(measure_own(metric_names.GPU_THROTTLING, self.id, 1, (attr.REASON, reason)))
        return measurements

    def _read_links(self) -> list[Measurement]:
        fields = {
            direction: (getattr(self._library, name), _ALL_LINKS)
            for direction, name in _LINKS.items()
            if hasattr(self._library, name)
        }
        kibibytes = self._call_fields(fields) if fields else {}
        return [
            measure_own(
                metric_names.GPU_LINK_IO,
                self.id,
                self._counters.count(direction, size) * 1024,
                (attr.HW_DIRECTION, direction),
            )
            for direction, size in kibibytes.items()
        ]


def name_error(library: Any, error: Any) -> str:
    """Return the name of an error of NVML, such as ``gpu_is_lost``."""
    return name_code(library, getattr(error, "value", None))


def name_code(library: Any, code: Any) -> str:
    """Return the name of a return code of NVML; ``unknown`` for a code that this version does not have."""
    return _name_codes(library).get(code, "unknown")


@functools.cache
def _name_codes(library: Any) -> dict[Any, str]:
    """Return the names of all codes. Cached: the module has thousands of names, and a collection looks up dozens of codes."""
    errors = {name: value for name, value in vars(library).items() if name.startswith("NVML_ERROR_")}
    words = {value: name.removeprefix("NVML_ERROR_").lower() for name, value in errors.items()}
    return {**words, library.NVML_SUCCESS: "success"}
