# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ascend NPUs: the table that ``npu-smi info`` prints.

There is no binding that can be relied on, and the command takes seconds: each collection takes the table of the command that an earlier
one has started, and starts the next. Nobody waits for it.
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
from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr

PRESENT: Final = ["/dev/davinci_manager"]
"""Where the driver can be reached. Without it nothing is started."""
COMMAND: Final = ("npu-smi", "info")
SECONDS: Final = 30.0
"""After how long a command that has not ended is ended, and a table is too old."""
END_SECONDS: Final = 0.5
"""For how long the end of a command that is ended is waited for."""
POLL: Final = 0.05
_MEBIBYTE: Final = 1 << 20
_CARD: Final = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*(\S+)\s*\|\s*([\d.]+|-|NA)\s+([\d.]+|-|NA)\s")
_CHIP: Final = re.compile(r"^\|\s*\d+(?:\s+\S+)?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+)\s*\|\s*(\d+|-|NA)\s+(.*)\|\s*$")
_PAIR: Final = re.compile(r"(\d+)\s*/\s*(\d+)")


class Chip(NamedTuple):
    """One chip in the table: a device to its programs."""

    bus: str
    model: str
    health: str
    watts: float | None
    """Of its card, said for the card's first chip only."""
    degrees: float | None
    percent: float | None
    used: int
    """Bytes in use of its memory: of the HBM where it has such."""
    total: int


def find_driver() -> AscendDriver | None:
    """Return the command; None where there is no Ascend driver or no command."""
    if not any(map(os.path.exists, PRESENT)) or shutil.which(COMMAND[0]) is None:
        return None
    return AscendDriver()


class AscendDriver:
    """Runs the command again and again, one at a time."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[str] | None = None
        self._started = self._read_at = 0.0
        self._chips: dict[str, Chip] = {}

    def find_devices(self) -> list[Device]:
        """Return every chip, in the order of the table; waits for the command."""
        self.refresh()
        while not self._chips and self._running is not None:
            time.sleep(POLL)
            self.refresh(again=False)
        return [AscendDevice(self, chip, str(number)) for number, chip in enumerate(self._chips.values())]

    def find_chip(self, bus: str) -> Chip:
        """Return what the latest table says of a chip.

        Raises:
            Unreadable: It is not in it, or the command does not answer.
        """
        self.refresh()
        if time.monotonic() - self._read_at > 2 * SECONDS:
            raise Unreadable("npu-smi does not answer")
        if bus not in self._chips:
            raise Unreadable("not in the table of npu-smi")
        return self._chips[bus]

    def refresh(self, *, again: bool = True) -> None:
        """Take the table if it is there, end a command that hangs, and start the next one."""
        running = self._running
        if running is not None and running.poll() is None:
            if time.monotonic() - self._started > SECONDS:
                self.close()
            return
        if running is not None:
            self._running = None
            output: IO[str] | None = running.stdout
            if output is not None:
                with output:
                    text = output.read()
                if running.returncode == 0:
                    self._chips, self._read_at = parse(text), time.monotonic()
        if again:
            self._started = time.monotonic()
            self._running = subprocess.Popen(  # noqa: S603 - no part of the command is anybody's input
                COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )  # the table of a node is far smaller than what a pipe holds

    def close(self) -> None:
        """End the command."""
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            if running.stdout is not None:
                running.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may be inside of the driver
                running.wait(END_SECONDS)


class AscendDevice:
    """One chip."""

    def __init__(self, driver: AscendDriver, chip: Chip, name: str) -> None:
        self.id, self.name, self.model = chip.bus, name, chip.model
        self._driver = driver

    def read(self) -> list[Measurement]:
        """Return what the table says of it."""
        chip = self._driver.find_chip(self.id)
        if chip.health in ("Alarm", "Critical"):
            raise Unreadable(f"health {chip.health.lower()}")
        found = []
        if chip.percent is not None:
            found.append(measure("hw.gpu.utilization", self.id, chip.percent / 100, *GENERAL))
        if chip.total:
            found.append(measure("hw.gpu.memory.usage", self.id, chip.used))
            found.append(measure("hw.gpu.memory.limit", self.id, chip.total))
        if chip.watts is not None:
            found.append(measure("hw.power", self.id, chip.watts))
        if chip.degrees is not None:
            found.append(measure("hw.temperature", self.id, chip.degrees, (attr.HW_SENSOR, "gpu")))
        return found


def parse(text: str) -> dict[str, Chip]:
    """Return the chips of a table by the address of their bus.

    A chip has two lines: its card's number, model, health, power and temperature; its address, load and memory. Where there are several
    pairs of memory the last is the HBM.

    Args:
        text: What the command printed.
    """
    found: dict[str, Chip] = {}
    card: tuple[str, str, float | None, float | None] | None = None
    for line in text.splitlines():
        chip = _CHIP.match(line)
        if chip is not None and card is not None:
            pairs = [(int(used), int(total)) for used, total in _PAIR.findall(chip[3])]
            used, total = next((pair for pair in reversed(pairs) if pair[1]), (0, 0))
            found[chip[1]] = Chip(chip[1], *card, _number(chip[2]), used * _MEBIBYTE, total * _MEBIBYTE)
            card = None
            continue
        first = _CARD.match(line)
        if first is not None:
            card = first[2], first[3], _number(first[4]), _number(first[5])
    return found


def _number(text: str) -> float | None:
    """Return a number; None for what the table has instead of one."""
    try:
        return float(text)
    except ValueError:
        return None
