# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node, read by one of its processes.

A device that cannot be read has no series for as long as that lasts; why, ``verl.gpu.unreadable`` and one line in the log say.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from verl_otel import _guard
from verl_otel.integrations.gpu import amd, ascend, nvml
from verl_otel.integrations.gpu.device import Device, Driver, Unreadable, measure_own
from verl_otel.integrations.gpu.patience import TIMEOUT, Patience
from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.sources import Place

DRIVERS: Final[tuple[Callable[[], Driver | None], ...]] = (nvml.find_driver, amd.find_driver, ascend.find_driver)
"""Each returns its driver, or None where this node has no device of it."""
SEARCH_SECONDS: Final = 60.0
"""Seconds between two searches for devices, while there is none or one of them cannot be read."""
MAX_DEVICES: Final = 64
"""Devices of a node that are read, the parts of shared ones included."""


class GpuSource:
    """Reads the GPUs of a node.

    Args:
        drivers: What finds the drivers.
        patience: Calls them.
    """

    name = "gpu"
    metrics = (
        "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.power", "hw.energy", "hw.temperature",
        "hw.errors", "verl.gpu.clock", "verl.gpu.throttled", "verl.gpu.throttling", "verl.gpu.link.io",
        "verl.gpu.unreadable",
    )  # fmt: skip
    once_per_node = True

    def __init__(
        self, drivers: Sequence[Callable[[], Driver | None]] = DRIVERS, patience: Patience | None = None
    ) -> None:
        self._finders = drivers
        self._patience = patience or Patience()
        self._drivers: list[Driver] = []
        self._devices: list[Device] = []
        self._failures: Counter[tuple[str, str]] = Counter()
        self._search_at = 0.0
        self._written: list[Device] = []
        self._process = 0

    def read(self, place: Place) -> Iterable[Measurement]:
        """Return what every device says, and how often one could not be read."""
        self._process = os.getpid()
        now = time.monotonic()
        if now >= self._search_at:
            self._search_at = now + SEARCH_SECONDS
            self._search()
        elif not self._devices and self._patience.is_stuck:
            self._fail("all", TIMEOUT)
        devices = self._devices
        if devices != self._written and write_devices(place, devices):
            self._written = devices
        found = self._read_devices(devices)
        found += [
            measure_own("verl.gpu.unreadable", each, count, (attr.REASON, reason))
            for (each, reason), count in self._failures.items()
        ]
        return found

    def close(self) -> None:
        """Let go of the drivers. A forked child only forgets them: they are its parent's."""
        drivers, self._drivers, self._devices, self._written = self._drivers, [], [], []
        self._search_at = 0.0
        if self._process == os.getpid() and not self._patience.is_stuck:
            for driver in drivers:
                with _guard.swallowed("close gpu"), contextlib.suppress(Unreadable):
                    self._patience.call("close", driver.close)
        else:
            self._patience = self._patience.renew()
        self._failures.clear()
        self._process = 0

    def _read_devices(self, devices: Sequence[Device]) -> list[Measurement]:
        found: list[Measurement] = []
        for device, answer in self._patience.call_all({each.id: each.read for each in devices}).items():
            if isinstance(answer, BaseException):
                self._fail(device, str(answer) if isinstance(answer, Unreadable) else type(answer).__name__)
            else:
                found += answer
        return found

    def _search(self) -> None:
        """Find devices where there are none, or anew where one failed. What takes long is there at a later collection."""
        self._drivers = self._drivers or [driver for driver in (find() for find in self._finders) if driver is not None]
        if not self._drivers or self._patience.is_stuck:
            return
        try:
            self._patience.call("search", self._find)
        except Unreadable as reason:
            if str(reason) != TIMEOUT:  # drivers take seconds to start
                self._fail("all", str(reason))
        except Exception as error:
            self._fail("all", type(error).__name__)

    def _find(self) -> None:
        devices: list[Device] = []
        for driver in self._drivers:
            driver.close()
            devices += driver.find_devices()
        self._devices = devices[:MAX_DEVICES]
        if devices:
            self._search_at = float("inf")

    def _fail(self, device: str, reason: str) -> None:
        self._failures[device, reason] += 1
        self._search_at = min(self._search_at, time.monotonic() + SEARCH_SECONDS)
        _guard.say(f"gpu {device} {reason}", "verl-otel: GPU %s cannot be read: %s (said once)", device, reason)


def write_devices(place: Place, devices: Sequence[Device]) -> bool:
    """Tell the other processes of this node which device has which number; return whether they are told."""
    path = find_path(place)
    known = {device.name: {"id": device.id, "model": device.model} for device in devices}
    with _guard.swallowed("gpu numbers"):
        try:
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(known), "utf-8")
            temporary.replace(path)
            return True
        except OSError as error:
            _guard.say("gpu numbers", "verl-otel: no verl.gpu.owner: cannot write %s: %s", path, error.strerror)
    return False


def find_path(place: Place) -> Path:
    """Return the file that says which device has which number."""
    return place.folder / f"gpus-{place.node}.json"
