# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""NVML without a GPU: the functions, constants and structures of ``nvidia-ml-py`` that are used, as ``nvml.json`` has recorded them.

Put into ``sys.modules`` as ``pynvml`` it serves whole processes too.
"""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

RECORDED = json.loads(Path(__file__).with_name("nvml.json").read_text("utf-8"))
CONSTANTS = RECORDED["constants"]
NAMES = {value: name for name, value in CONSTANTS.items() if name.startswith("NVML_FI_")}
GIB = 1 << 30
UNSIGNED_LONG_LONG = 3


class NVMLError(Exception):
    """What every function raises: a code in ``value``."""

    def __init__(self, value):
        super().__init__(value)
        self.value = value


class FakeGpu:
    """One GPU: what it says, and what it does not."""

    def __init__(self, number, parent=None):
        self.number, self.parent = number, parent
        self.uuid = f"{'MIG' if parent else 'GPU'}-{number:08x}-0000-0000-0000-000000000000"
        self.name = "NVIDIA H100 80GB HBM3"
        self.used, self.total = (10 + number) * GIB, 80 * GIB
        self.load, self.milliwatts, self.millijoules, self.degrees, self.megahertz = 87, 512_345, 9_000_000, 61, 1755
        self.bits = 0
        self.fields = {
            "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": 4,
            "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
            "NVML_FI_DEV_PCIE_REPLAY_COUNTER": 7,
            "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 1,
            "NVML_FI_DEV_PERF_POLICY_POWER": 5_000_000_000,
            "NVML_FI_DEV_PERF_POLICY_THERMAL": 0,
            "NVML_FI_DEV_PERF_POLICY_RELIABILITY": 0,
            "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 1000,
            "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 2000,
            "NVML_FI_DEV_MEMORY_TEMP": 72,
        }
        self.xids = []
        self.processes = {}
        """Bytes by process id; None: the driver does not know them."""
        self.parts = []
        self.fails = {}
        """Names of functions and the errors, by name, that they end with; ``*`` for all that take this GPU."""
        self.hangs = ()
        """Names of functions that do not return before they are released."""


class FakeNvml:
    """The module."""

    def __init__(self, count=1):
        self.NVMLError = NVMLError
        for name, value in CONSTANTS.items():
            setattr(self, name, value)
        self.gpus = [FakeGpu(number) for number in range(count)]
        self.inits = self.open_sets = 0
        self.started = True
        self.calls = []
        self.released = threading.Event()

    def fail(self, name):
        raise NVMLError(CONSTANTS[f"NVML_ERROR_{name.upper()}"])

    def enter(self, function, gpu=None):
        """Take part in a call: it is counted, hangs or fails as it is to."""
        self.calls.append(function)
        if not self.inits and function != "nvmlInit":
            self.fail("uninitialized")
        if gpu is not None:
            if function in gpu.hangs:
                self.released.wait()
            name = gpu.fails.get(function) or gpu.fails.get("*")
            if name:
                self.fail(name)
            if gpu.parent is not None and function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"):
                self.fail("not_supported")

    def nvmlInit(self):
        self.enter("nvmlInit")
        if not self.started:
            self.fail("driver_not_loaded")
        self.inits += 1

    def nvmlShutdown(self):
        self.enter("nvmlShutdown")
        self.inits -= 1

    def nvmlDeviceGetCount(self):
        self.enter("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        self.enter("nvmlDeviceGetHandleByIndex", self.gpus[index])
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle):
        self.enter("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle):
        self.enter("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetMigMode(self, device):
        self.enter("nvmlDeviceGetMigMode", device)
        return [int(bool(device.parts)), int(bool(device.parts))]

    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        self.enter("nvmlDeviceGetMaxMigDeviceCount", device)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        self.enter("nvmlDeviceGetMigDeviceHandleByIndex", device)
        if index >= len(device.parts) or device.parts[index] is None:
            self.fail("not_found")
        return device.parts[index]

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        self.enter("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(total=handle.total, free=handle.total - handle.used, used=handle.used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        self.enter("nvmlDeviceGetComputeRunningProcesses", handle)
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in handle.processes.items()]

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.enter("nvmlDeviceGetUtilizationRates", handle)
        return SimpleNamespace(gpu=handle.load, memory=33)

    def nvmlDeviceGetPowerUsage(self, handle):
        self.enter("nvmlDeviceGetPowerUsage", handle)
        return handle.milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self.enter("nvmlDeviceGetTotalEnergyConsumption", handle)
        return handle.millijoules

    def nvmlDeviceGetTemperature(self, handle, sensor):
        self.enter("nvmlDeviceGetTemperature", handle)
        return handle.degrees if sensor == CONSTANTS["NVML_TEMPERATURE_GPU"] else self.fail("invalid_argument")

    def nvmlDeviceGetClockInfo(self, handle, type):  # noqa: A002 - its real name
        self.enter("nvmlDeviceGetClockInfo", handle)
        return handle.megahertz if type == CONSTANTS["NVML_CLOCK_SM"] else self.fail("invalid_argument")

    def nvmlDeviceGetFieldValues(self, handle, fieldIds):
        self.enter("nvmlDeviceGetFieldValues", handle)
        found = []
        for each in fieldIds:
            field, scope = each if isinstance(each, tuple) else (each, 0)
            known = NAMES.get(field) in handle.fields
            code = 0 if known else CONSTANTS["NVML_ERROR_NOT_SUPPORTED"]
            value = SimpleNamespace(ullVal=handle.fields[NAMES[field]] if known else 0)
            found.append(
                SimpleNamespace(
                    fieldId=field, scopeId=scope, nvmlReturn=code, valueType=UNSIGNED_LONG_LONG, value=value
                )
            )
        return found

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        self.enter("nvmlDeviceGetCurrentClocksEventReasons", handle)
        return handle.bits

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        self.enter("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return handle.bits

    def nvmlEventSetCreate(self):
        self.enter("nvmlEventSetCreate")
        self.open_sets += 1
        return SimpleNamespace(gpu=None)

    def nvmlDeviceRegisterEvents(self, handle, eventTypes, eventSet):
        self.enter("nvmlDeviceRegisterEvents", handle)
        if eventTypes != CONSTANTS["nvmlEventTypeXidCriticalError"]:
            self.fail("invalid_argument")
        eventSet.gpu = handle

    def nvmlEventSetWait(self, eventSet, timeoutms):
        self.enter("nvmlEventSetWait", eventSet.gpu)
        if timeoutms:
            raise AssertionError("a collection waits for nothing")
        if not eventSet.gpu.xids:
            self.fail("timeout")
        return SimpleNamespace(device=eventSet.gpu, eventType=8, eventData=eventSet.gpu.xids.pop(0))

    def nvmlEventSetFree(self, eventSet):
        self.enter("nvmlEventSetFree")
        self.open_sets -= 1
