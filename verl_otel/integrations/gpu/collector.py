# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node, read by one of its processes.

A device that cannot be read has no series meanwhile; ``verl.gpu.unreadable`` and one log line give the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary, safe_files
from verl_otel.integrations.gpu import amd, ascend, nvml, sleeping_engines
from verl_otel.integrations.gpu.allocator import AllocatorCollector, find_uuids
from verl_otel.integrations.gpu.device import Device, Driver, Unreadable, measure_own
from verl_otel.integrations.patch import register
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.session import current_session
from verl_otel.system import collectors
from verl_otel.system.collectors import Collector, NodeScope

DRIVERS: Final[tuple[Callable[[], Driver | None], ...]] = (nvml.find_driver, amd.find_driver, ascend.find_driver)
"""Each returns a driver, or None if this node has no device of this kind."""
SEARCH_SECONDS: Final = 60.0
"""Seconds between two searches for devices, while there is none or one cannot be read."""
MAX_DEVICES: Final = 64
"""Maximum number of devices of a node, MIG devices included."""


_ALL: Final = "all"
"""Stands for the id of a device while the devices are searched for."""


class GpuCollector(Collector):
    """Reads the GPUs of a node.

    Args:
        drivers: Functions that find the drivers.
    """

    name = "gpu"
    metrics = (
        metric_names.HW_GPU_UTILIZATION,
        metric_names.HW_GPU_MEMORY_USAGE,
        metric_names.HW_GPU_MEMORY_LIMIT,
        metric_names.HW_POWER,
        metric_names.HW_ENERGY,
        metric_names.HW_TEMPERATURE,
        metric_names.HW_ERRORS,
        metric_names.GPU_CLOCK,
        metric_names.GPU_THROTTLED,
        metric_names.GPU_THROTTLING,
        metric_names.GPU_LINK_IO,
        metric_names.GPU_MEMORY_IO_UTILIZATION,
        metric_names.GPU_UNREADABLE,
    )
    once_per_node = True

    def __init__(self, drivers: Sequence[Callable[[], Driver | None]] = DRIVERS) -> None:
        self._finders = drivers
        self._drivers: list[Driver] = []
        self._devices: list[Device] = []
        self._failures: Counter[tuple[str, str]] = Counter()
        self._search_at = 0.0
        self._written: list[Device] = []
        self._process = 0
        self._device = _ALL
        """The id of the device that is being read."""

    def read(self, scope: NodeScope) -> Iterable[Measurement]:
        """Return the measurements of every device, and the failures to read one."""
        self._process = os.getpid()
        now = time.monotonic()
        if now >= self._search_at:
            self._search_at = now + SEARCH_SECONDS
            self._search()
        devices = self._devices
        if devices != self._written and write_devices(scope, devices):
            self._written = devices
        measurements: list[Measurement] = []
        for device in devices:
            self._device = device.id
            try:
                measurements += device.read()
            except Exception as error:
                self._fail(device.id, _find_reason(error))
        return [*measurements, *self._list_failures()]

    def read_late(self) -> Iterable[Measurement]:
        """Count that the driver does not answer for a device. Values of the other devices are missing meanwhile."""
        self._fail(self._device, "timeout")
        return self._list_failures()

    def close(self) -> None:
        """Shut the drivers down. A forked child only drops its references: the drivers belong to its parent."""
        drivers, self._drivers, self._devices, self._written = self._drivers, [], [], []
        self._search_at = 0.0
        if self._process == os.getpid():
            for driver in drivers:
                with error_boundary.suppress_errors("close gpu"), contextlib.suppress(Unreadable):
                    driver.close()
        self._failures.clear()
        self._process = 0

    def _search(self) -> None:
        """Find devices if there are none or one has failed."""
        self._device = _ALL
        self._drivers = self._drivers or [driver for driver in (find() for find in self._finders) if driver is not None]
        try:
            self._find()
        except Exception as error:
            self._fail(_ALL, _find_reason(error))

    def _find(self) -> None:
        devices: list[Device] = []
        for driver in self._drivers:
            driver.close()
            devices += driver.find_devices()
        self._devices = devices[:MAX_DEVICES]
        if devices:
            self._search_at = float("inf")

    def _list_failures(self) -> list[Measurement]:
        return [
            measure_own(metric_names.GPU_UNREADABLE, device_id, count, (attr.REASON, reason))
            for (device_id, reason), count in list(self._failures.items())
        ]

    def _fail(self, device: str, reason: str) -> None:
        self._failures[device, reason] += 1
        self._search_at = min(self._search_at, time.monotonic() + SEARCH_SECONDS)
        error_boundary.warn_once(
            f"gpu {device} {reason}", "verl-otel: GPU %s cannot be read: %s (logged once)", device, reason
        )


def _find_reason(error: BaseException) -> str:
    """Return a reason of low cardinality."""
    return str(error) if isinstance(error, Unreadable) else type(error).__name__


def write_devices(scope: NodeScope, devices: Sequence[Device]) -> bool:
    """Write a file that maps numbers to devices for the other processes of this node; return whether it was written."""
    path = find_path(scope)
    entries = {device.name: {"id": device.id, "model": device.model} for device in devices}
    with error_boundary.suppress_errors("gpu numbers"):
        try:
            safe_files.write_atomically(path, json.dumps(entries))
            return True
        except OSError as error:
            error_boundary.warn_once(
                "gpu numbers", f"verl-otel: no {metric_names.GPU_OWNER}: cannot write %s: %s", path, error.strerror
            )
    return False


def find_path(scope: NodeScope) -> Path:
    """Return the path of the file that maps numbers to devices."""
    return scope.folder / f"gpus-{scope.node}.json"


# -- ``verl.gpu.owner``: the GPUs that this process uses, to join the series of a GPU with those of a role or rank --
# A process knows the numbers of its GPUs (`verl.gpu.ids`) from Ray. Without Ray it has those on which PyTorch has
# memory. The process that reads the GPUs of the node writes a file that maps numbers to devices, so that other
# processes do not open the driver.

_IDENTITIES: Final = ("GPU-", "MIG-")
"""Prefixes of the ids that CUDA accepts in place of numbers."""


class OwnerCollector(Collector):
    """Reports the GPUs of this process."""

    name = "gpu owner"
    metrics = (metric_names.GPU_OWNER,)
    once_per_node = False

    def __init__(self) -> None:
        self._version = (0, 0)
        self._devices: dict[str, Any] = {}

    def read(self, scope: NodeScope) -> Iterable[Measurement]:
        """Return 1 for each GPU of this process whose device is known."""
        session = current_session()
        ids = session.outputs.resource.attributes.get(attr.GPU_IDS, ()) if session is not None else ()
        if isinstance(ids, tuple) and ids:
            self._load(find_path(scope))
            found = [self._label(str(number)) for number in ids]
        elif uuids := find_uuids():
            self._load(find_path(scope))
            found = [self._find_label(end=uuid) for uuid in uuids]
        else:
            return []
        return [(metric_names.GPU_OWNER, labels, 1) for labels in found if labels]

    def close(self) -> None:
        """Drop the mapping."""
        self._version, self._devices = (0, 0), {}

    def _load(self, path: Path) -> None:
        try:
            status = path.stat()
            version = status.st_ino, status.st_mtime_ns
            if version != self._version:
                content = safe_files.read_json(path, 1 << 20, follow=False)
                self._devices = content if isinstance(content, dict) else {}
                self._version = version
        except (OSError, ValueError):  # the file is not written yet
            return

    def _label(self, number: str) -> tuple[tuple[str, str], ...]:
        device = self._devices.get(number)
        if isinstance(device, Mapping):
            return (
                (attr.HW_ID, str(device.get("id"))),
                (attr.HW_NAME, number),
                (attr.HW_MODEL, str(device.get("model"))),
            )
        if not number.startswith(_IDENTITIES):
            return ()
        return self._find_label(begin=number) or ((attr.HW_ID, number),)

    def _find_label(self, begin: str = "", end: str = "") -> tuple[tuple[str, str], ...]:
        """Return the labels of the device whose id begins and ends so; empty if there is none."""
        for name, entry in self._devices.items():
            identity = str(entry.get("id", "")) if isinstance(entry, Mapping) else ""
            if identity.startswith(begin) and identity.endswith(end):
                return self._label(name)
        return ()


# -- The collectors of this process --

COLLECTORS: Final = (GpuCollector, OwnerCollector, AllocatorCollector)


def install() -> None:
    """Add the collectors, and the hooks of engines. Drivers are imported here, because the threads that read them must not import."""
    for driver in (nvml, amd):
        with error_boundary.suppress_errors("gpu import"):
            driver.load()
    for collector in COLLECTORS:
        collectors.add(collector())
    register(sleeping_engines.HOOKS)


def uninstall() -> None:
    """Remove the collectors."""
    for collector in COLLECTORS:
        collectors.remove(collector.name)
