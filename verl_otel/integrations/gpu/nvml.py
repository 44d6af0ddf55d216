# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA: the management library (NVML) through ``nvidia-ml-py``, imported as ``pynvml``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections import Counter
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.gpu.device import GENERAL, Device, Library, MissingDevice, Unreadable, measure, measure_own
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system.collectors import DeltaCounter

# -- XIDs: the errors that NVIDIA's driver reports, by number (NVIDIA, XID Errors) --
# They arrive as NVML events in a queue of the driver, which each read empties without waiting. No thread blocks in the driver, and no
# permission to read the kernel log is needed, which containers lack. Errors before this process registered for events are not counted.

KINDS: Final = ("xid", "xid_application")
"""Kinds of `hw.errors`: errors of the hardware or the driver, and errors that a program usually causes."""
_APPLICATION: Final = frozenset((13, 31, 43, 45, 68, 69))
"""Illegal instructions, addresses and states of a program, and errors that follow from them."""
MAX_EVENTS: Final = 64
"""Maximum number of events of one device per read; the rest is read by the next one."""


def listen(library: Any, handle: Any) -> Any:
    """Return an event set for the XIDs of one device; None if the driver does not support it, as under MIG or in a virtual machine."""
    try:
        events = library.nvmlEventSetCreate()
    except library.NVMLError:
        return None
    try:
        library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
    except library.NVMLError:
        library.nvmlEventSetFree(events)
        return None
    return events


def count(library: Any, events: Any, device: str) -> Counter[str]:
    """Return the number of XIDs since the last call, by kind, and log each XID number once."""
    counts: Counter[str] = Counter()
    for _ in range(MAX_EVENTS):
        try:
            event = library.nvmlEventSetWait(events, 0)
        except library.NVMLError:  # no more events, or the device is lost, which the next read reports
            break
        number = int(event.eventData)
        counts[KINDS[number in _APPLICATION]] += 1
        error_boundary.warn_once(f"xid {device} {number}", "verl-otel: GPU %s: XID %d (logged once)", device, number)
    return counts


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
        self._events: Any = None if parent else listen(library, handle)

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
            self._xids += count(self._library, self._events, self.id)
            measurements += [
                measure(metric_names.HW_ERRORS, self.id, self._xids[kind], (attr.ERROR_TYPE, kind)) for kind in KINDS
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


def read_processes() -> dict[str, dict[int, int]]:
    """Return the bytes that processes hold on each GPU of this node, by its id and by theirs; nothing without the driver.

    Raises:
        Unreadable: The driver does not respond.
    """
    library: Any = sys.modules.get("pynvml")  # see `load`
    if library is None:
        return {}
    try:
        library.nvmlInit()
        try:
            devices = [library.nvmlDeviceGetHandleByIndex(number) for number in range(library.nvmlDeviceGetCount())]
            return {
                _text(library.nvmlDeviceGetUUID(device)): {
                    int(process.pid): int(process.usedGpuMemory or 0)
                    for process in library.nvmlDeviceGetComputeRunningProcesses(device)
                }
                for device in devices
            }
        finally:
            library.nvmlShutdown()
    except library.NVMLError as error:
        raise Unreadable(name_error(library, error)) from error
