# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One NVIDIA GPU or MIG device, as NVML says it.

Calls and units: NVML API Reference. Errors that say "not supported" leave a value out; all others make the device unreadable.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from verl_otel.integrations.gpu import xid
from verl_otel.integrations.gpu.device import GENERAL, Unreadable, measure, measure_own
from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.sources import Since

_ABSENT: Final = (
    "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "FUNCTION_NOT_FOUND", "NO_DATA", "NOT_READY",
    "VGPU_ECC_NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED",
)  # fmt: skip
"""Errors that say that this device or driver does not have a value."""
_ALL_LINKS: Final = 0xFFFFFFFF
_ERRORS: Final = {
    "ecc_corrected": ("NVML_FI_DEV_ECC_SBE_VOL_TOTAL",),
    "ecc_uncorrected": ("NVML_FI_DEV_ECC_DBE_VOL_TOTAL",),
    "link": (
        "NVML_FI_DEV_PCIE_REPLAY_COUNTER", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    ),
}  # fmt: skip
"""Kinds of errors and the fields that are added up for each."""
_THROTTLED: Final = {
    "power": "NVML_FI_DEV_PERF_POLICY_POWER",
    "thermal": "NVML_FI_DEV_PERF_POLICY_THERMAL",
    "sync_boost": "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
    "board_limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    "reliability": "NVML_FI_DEV_PERF_POLICY_RELIABILITY",
}
"""Reasons and the fields that count their nanoseconds."""
_ALWAYS: Final = ("power", "thermal")
_THROTTLING: Final = {
    "power": "SwPowerCap",
    "hw_slowdown": "HwSlowdown",
    "thermal": "SwThermalSlowdown",
    "hw_thermal": "HwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
}
"""Reasons and the ends of the names of their bits."""
_LINKS: Final = {
    "transmit": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "receive": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
}
_MEMORY_TEMPERATURE: Final = "NVML_FI_DEV_MEMORY_TEMP"
_FIELDS: Final = (*(name for names in _ERRORS.values() for name in names), *_THROTTLED.values(), _MEMORY_TEMPERATURE)
_VALUES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field's union by its type."""


class Counts:
    """What a device has counted since it is read."""

    def __init__(self) -> None:
        self.since = Since()
        self.xids: Counter[str] = Counter()


class NvmlDevice:
    """One GPU or MIG device."""

    def __init__(
        self, library: Any, handle: Any, identity: str, name: str, model: str, counts: Counts, parent: str = ""
    ) -> None:
        self.id, self.name, self.model = identity, name, model
        self._library, self._handle, self._parent = library, handle, parent
        self._since, self._xids = counts.since, counts.xids
        self._events: Any = None if parent else xid.listen(library, handle)

    def read(self) -> list[Measurement]:
        """Return what NVML says of it."""
        if self._parent:  # the driver counts everything else for the whole GPU
            return self._read_memory()
        fields = self._read_fields()
        return [
            *self._read_memory(),
            *self._read_load(),
            *self._read_errors(fields),
            *self._read_throttle(fields),
            *self._read_links(),
        ]

    def close(self) -> None:
        """Let go of what waits for events."""
        events, self._events = self._events, None
        if events is not None:
            self._ask("nvmlEventSetFree", events, handle=False)

    def _ask(self, name: str, *arguments: Any, handle: bool = True) -> Any:
        """Return what a function of NVML says; None if this device or driver does not know it."""
        library = self._library
        function: Callable[..., Any] | None = getattr(library, name, None)
        if function is None:
            return None
        try:
            return function(*((self._handle,) if handle else ()), *arguments)
        except library.NVMLError as error:
            reason = name_error(library, error)
            if reason.upper() in _ABSENT:
                return None
            raise Unreadable(reason) from error

    def _read_memory(self) -> list[Measurement]:
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        if memory is None:
            return []
        parent = ((attr.HW_PARENT, self._parent),) if self._parent else ()
        return [
            measure("hw.gpu.memory.usage", self.id, int(memory.used), *parent),
            measure("hw.gpu.memory.limit", self.id, int(memory.total), *parent),
        ]

    def _read_load(self) -> list[Measurement]:
        library, found = self._library, []
        load = self._ask("nvmlDeviceGetUtilizationRates")
        if load is not None:
            found.append(measure("hw.gpu.utilization", self.id, load.gpu / 100, *GENERAL))
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        if milliwatts is not None:
            found.append(measure("hw.power", self.id, milliwatts / 1e3))
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if millijoules is not None:
            found.append(measure("hw.energy", self.id, self._since.count("energy", millijoules) / 1e3))
        degrees = self._ask("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU)
        if degrees is not None:
            found.append(measure("hw.temperature", self.id, degrees, (attr.HW_SENSOR, "gpu")))
        megahertz = self._ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM)
        if megahertz is not None:
            found.append(measure_own("verl.gpu.clock", self.id, megahertz * 1e6))
        return found

    def _read_fields(self) -> dict[str, float]:
        """Return fields by name, all of them asked for at once."""
        names = [name for name in _FIELDS if hasattr(self._library, name)]
        return self._ask_fields({name: getattr(self._library, name) for name in names})

    def _ask_fields(self, wanted: dict[str, Any]) -> dict[str, float]:
        answers = self._ask("nvmlDeviceGetFieldValues", list(wanted.values())) or ()
        found = {}
        for name, answer in zip(wanted, answers, strict=False):
            reason = name_code(self._library, answer.nvmlReturn)
            if reason == "success" and answer.valueType < len(_VALUES):
                found[name] = float(getattr(answer.value, _VALUES[answer.valueType]))
            elif reason in ("gpu_is_lost", "reset_required"):
                raise Unreadable(reason)
        return found

    def _read_errors(self, fields: dict[str, float]) -> list[Measurement]:
        found = []
        for kind, names in _ERRORS.items():
            counts = [self._since.count(name, fields[name]) for name in names if name in fields]
            if counts:
                found.append(measure("hw.errors", self.id, sum(counts), (attr.ERROR_TYPE, kind)))
        if self._events is not None:
            self._xids += xid.count(self._library, self._events, self.id)
            found += [measure("hw.errors", self.id, self._xids[kind], (attr.ERROR_TYPE, kind)) for kind in xid.KINDS]
        if _MEMORY_TEMPERATURE in fields and fields[_MEMORY_TEMPERATURE] > 0:
            degrees = fields[_MEMORY_TEMPERATURE]
            found.append(measure("hw.temperature", self.id, degrees, (attr.HW_SENSOR, "memory")))
        return found

    def _read_throttle(self, fields: dict[str, float]) -> list[Measurement]:
        found = []
        for reason, name in _THROTTLED.items():
            if name in fields:
                seconds = self._since.count(name, fields[name]) / 1e9
                if seconds or reason in _ALWAYS:
                    found.append(measure_own("verl.gpu.throttled", self.id, seconds, (attr.REASON, reason)))
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # a driver before 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        for reason, name in _THROTTLING.items():
            bit = getattr(self._library, f"nvmlClocksEventReason{name}", None)
            bit = getattr(self._library, f"nvmlClocksThrottleReason{name}", 0) if bit is None else bit
            if bits & bit:
                found.append(measure_own("verl.gpu.throttling", self.id, 1, (attr.REASON, reason)))
        return found

    def _read_links(self) -> list[Measurement]:
        wanted = {
            direction: (getattr(self._library, name), _ALL_LINKS)
            for direction, name in _LINKS.items()
            if hasattr(self._library, name)
        }
        kibibytes = self._ask_fields(wanted) if wanted else {}
        return [
            measure_own(
                "verl.gpu.link.io", self.id, self._since.count(direction, size) * 1024, (attr.HW_DIRECTION, direction)
            )
            for direction, size in kibibytes.items()
        ]


def name_error(library: Any, error: Any) -> str:
    """Return an error of NVML in a word, such as ``gpu_is_lost``."""
    return name_code(library, getattr(error, "value", None))


def name_code(library: Any, code: Any) -> str:
    """Return what NVML calls a return code; ``unknown`` for one that this version of it does not have."""
    return _name_codes(library).get(code, "unknown")


@functools.cache
def _name_codes(library: Any) -> dict[Any, str]:
    """Return the words of all codes: the module has thousands of names, and a collection asks for dozens of codes."""
    errors = {name: value for name, value in vars(library).items() if name.startswith("NVML_ERROR_")}
    words = {value: name.removeprefix("NVML_ERROR_").lower() for name, value in errors.items()}
    return {**words, library.NVML_SUCCESS: "success"}
