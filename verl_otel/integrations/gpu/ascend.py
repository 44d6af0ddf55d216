# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ascend NPUs: the table that ``npu-smi info`` prints.

There is no reliable Python binding, and the command takes seconds. Each collection reads the output of the command that an earlier
collection started, and starts the next one. No collection waits for the command.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from typing import IO, Final, NamedTuple

from verl_otel.integrations.gpu.device import GENERAL, Device, Unreadable, measure
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

PRESENT: Final = ["/dev/davinci_manager"]
"""Device file of the driver. Without it no command is started."""
COMMAND: Final = ("npu-smi", "info")
SECONDS: Final = 30.0
"""Seconds after which a running command is killed; a table older than twice this is stale."""
END_SECONDS: Final = 0.5
"""Seconds to wait for a killed command to exit."""
POLL: Final = 0.05
_MEBIBYTE: Final = 1 << 20
_CARD: Final = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*(\S+)\s*\|\s*([\d.]+|-|NA)\s+([\d.]+|-|NA)\s")
_CHIP: Final = re.compile(r"^\|\s*\d+(?:\s+\S+)?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+)\s*\|\s*(\d+|-|NA)\s+(.*)\|\s*$")
_PAIR: Final = re.compile(r"(\d+)\s*/\s*(\d+)")


class Chip(NamedTuple):
    """One chip in the table, which programs see as one device."""

    bus: str
    model: str
    health: str
    watts: float | None
    """Power of its card, given for the card's first chip only."""
    degrees: float | None
    percent: float | None
    used: int
    """Used bytes of its memory: of the HBM if it has one."""
    total: int


def find_driver() -> AscendDriver | None:
    """Return the driver; None without an Ascend driver or without ``npu-smi``."""
    if not any(map(os.path.exists, PRESENT)) or shutil.which(COMMAND[0]) is None:
        return None
    return AscendDriver()


class AscendDriver:
    """Runs the command repeatedly, one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._started = self._read_at = 0.0
        self._chips: dict[str, Chip] = {}

    def find_devices(self) -> list[Device]:
        """Return every chip in the order of the table. Waits for the first command."""
        self.refresh()
        while not self._chips and self._process is not None:
            time.sleep(POLL)
            self.refresh(again=False)
        return [AscendDevice(self, chip, str(number)) for number, chip in enumerate(self._chips.values())]

    def find_chip(self, bus: str) -> Chip:
        """Return a chip of the latest table.

        Raises:
            Unreadable: The chip is not in the table, or the command does not finish.
        """
        self.refresh()
        if time.monotonic() - self._read_at > 2 * SECONDS:
            raise Unreadable("npu-smi does not answer")
        if bus not in self._chips:
            raise Unreadable("not in the table of npu-smi")
        return self._chips[bus]

    def refresh(self, *, again: bool = True) -> None:
        """Read the table if the command has finished, kill it if it hangs, and start the next one."""
        process = self._process
        if process is not None and process.poll() is None:
            if time.monotonic() - self._started > SECONDS:
                self.close()
            return
        if process is not None:
            self._process = None
            output: IO[str] | None = process.stdout
            if output is not None:
                with output:
                    text = output.read()
                if process.returncode == 0:
                    self._chips, self._read_at = parse(text), time.monotonic()
        if again:
            self._started = time.monotonic()
            # the table of a node fits into the pipe
            self._process = subprocess.Popen(  # noqa: S603 - the command is constant
                COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )

    def close(self) -> None:
        """Kill the command."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the driver
                process.wait(END_SECONDS)


class AscendDevice:
    """One chip."""

    def __init__(self, driver: AscendDriver, chip: Chip, name: str) -> None:
        self.id, self.name, self.model = chip.bus, name, chip.model
        self._driver = driver

    def read(self) -> list[Measurement]:
        """Return the measurements of the table."""
        chip = self._driver.find_chip(self.id)
        if chip.health in ("Alarm", "Critical"):
            raise Unreadable(f"health {chip.health.lower()}")
        measurements = []
        if chip.percent is not None:
            measurements.append(measure(metric_names.HW_GPU_UTILIZATION, self.id, chip.percent / 100, *GENERAL))
        if chip.total:
            measurements.append(measure(metric_names.HW_GPU_MEMORY_USAGE, self.id, chip.used))
            measurements.append(measure(metric_names.HW_GPU_MEMORY_LIMIT, self.id, chip.total))
        if chip.watts is not None:
            measurements.append(measure(metric_names.HW_POWER, self.id, chip.watts))
        if chip.degrees is not None:
            measurements.append(measure(metric_names.HW_TEMPERATURE, self.id, chip.degrees, (attr.HW_SENSOR, "gpu")))
        return measurements


def parse(text: str) -> dict[str, Chip]:
    """Return the chips of a table by their bus address.

    A chip has two lines: number, model, health, power and temperature of its card; then its address, load and memory. If there are several
    pairs of memory, the last one is the HBM.

    Args:
        text: Output of the command.
    """
    chips: dict[str, Chip] = {}
    card: tuple[str, str, float | None, float | None] | None = None
    for line in text.splitlines():
        chip = _CHIP.match(line)
        if chip is not None and card is not None:
            pairs = [(int(used), int(total)) for used, total in _PAIR.findall(chip[3])]
            used, total = next((pair for pair in reversed(pairs) if pair[1]), (0, 0))
            chips[chip[1]] = Chip(chip[1], *card, _number(chip[2]), used * _MEBIBYTE, total * _MEBIBYTE)
            card = None
            continue
        card_match = _CARD.match(line)
        if card_match is not None:
            card = card_match[2], card_match[3], _number(card_match[4]), _number(card_match[5])
    return chips


def _number(text: str) -> float | None:
    """Return a number; None for a placeholder such as ``NA``."""
    try:
        return float(text)
    except ValueError:
        return None
