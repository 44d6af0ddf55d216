# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ascend NPUs: the tables of ``npu-smi info``, and a command that is slow, hangs or fails."""

import os

import pytest

from verl_otel.integrations.gpu import ascend
from verl_otel.integrations.gpu.ascend import AscendDriver, Chip, find_driver, parse
from verl_otel.integrations.gpu.device import Unreadable

MIB = 1 << 20
HBM = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 95.6        41                0    / 0             |
| 0                         | 0000:C1:00.0  | 87          0    / 0          30240/ 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Warning       | 310.2       63                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3390 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 1234          | python                   | 30000                   |
+===========================+===============+====================================================+
"""
TWO_CHIPS = """\
| NPU     Name              | Health        | Power(W)     Temp(C)           Hugepages-Usage(page)           |
| Chip    Device            | Bus-Id        | AICore(%)    Memory-Usage(MB)                                  |
+===========================+===============+===============================================================+
| 0       Ascend910         | OK            | 160.8        40                0    / 0                        |
| 0       0                 | 0000:9D:00.0  | 5            1024 / 32768                                      |
+---------------------------+---------------+---------------------------------------------------------------+
| 0       Ascend910         | OK            | -            39                0    / 0                        |
| 1       1                 | 0000:9F:00.0  | NA           0    / 32768                                      |
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put an ``npu-smi`` on the path that does what it is told in shell."""

    def make(script):
        path, fresh = tmp_path / "npu-smi", tmp_path / "new"
        fresh.write_text(f"#!/bin/sh\n{script}\n")
        fresh.chmod(0o755)
        fresh.replace(path)  # a shell may be reading the one before
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setattr(ascend, "PRESENT", [str(path)])

    return make


def test_a_table_with_hbm():
    """The load, and of two pairs of memory that of the HBM; the table of processes below is none of devices."""
    assert list(parse(HBM).values()) == [
        Chip("0000:C1:00.0", "910B3", "OK", 95.6, 41, 87, 30240 * MIB, 65536 * MIB),
        Chip("0000:01:00.0", "910B3", "Warning", 310.2, 63, 0, 3390 * MIB, 65536 * MIB),
    ]


def test_a_card_with_two_chips():
    """Each chip is a device; power is said once for the card, and what is not known is None."""
    assert list(parse(TWO_CHIPS).values()) == [
        Chip("0000:9D:00.0", "Ascend910", "OK", 160.8, 40, 5, 1024 * MIB, 32768 * MIB),
        Chip("0000:9F:00.0", "Ascend910", "OK", None, 39, None, 0, 32768 * MIB),
    ]


@pytest.mark.parametrize("text", ["", "dcmi module initialize failed. ret is -8005", HBM[:700]])
def test_no_table_is_no_device(text):
    """Errors and half tables do not raise."""
    assert parse(text) == {}


@pytest.mark.full
def test_devices_are_read_from_the_command(command, values, wait_for):
    """The command is run once for all, and what it printed later is what a device says later."""
    command(f"cat <<'END'\n{HBM}END")
    driver = find_driver()
    first, second = driver.find_devices()
    assert (first.id, first.name, second.name) == ("0000:C1:00.0", "0", "1")
    assert values(first.read()) == {
        ("hw.gpu.utilization", first.id): 0.87,
        ("hw.gpu.memory.usage", first.id): 30240 * MIB,
        ("hw.gpu.memory.limit", first.id): 65536 * MIB,
        ("hw.power", first.id): 95.6,
        ("hw.temperature", first.id, "gpu"): 41,
    }
    command(f"cat <<'END'\n{HBM.replace('| 87 ', '| 12 ')}END")
    wait_for(lambda: values(first.read())["hw.gpu.utilization", first.id] == 0.12)
    driver.close()


@pytest.mark.full
def test_a_command_that_hangs_is_ended_and_makes_devices_unreadable(command, monkeypatch, wait_for):
    """What an earlier command has said is not said for ever."""
    command(f"cat <<'END'\n{HBM}END")
    driver = find_driver()
    device, _ = driver.find_devices()
    command("exec sleep 1000")
    monkeypatch.setattr(ascend, "SECONDS", 0.2)

    def is_unreadable():
        try:
            device.read()
        except Unreadable as reason:
            return str(reason) == "npu-smi does not answer"
        return False

    wait_for(is_unreadable)
    driver.close()
    assert driver._process is None


@pytest.mark.full
def test_a_chip_in_alarm_and_one_that_is_gone_are_unreadable(command, wait_for):
    """The health in the table is heeded."""
    command(f"cat <<'END'\n{HBM.replace('Warning', 'Alarm  ')}END")
    driver = find_driver()
    _, second = driver.find_devices()
    with pytest.raises(Unreadable, match="health alarm"):
        second.read()
    with pytest.raises(Unreadable, match="not in the table"):
        driver.find_chip("0000:FF:00.0")
    driver.close()


def test_without_driver_or_command_there_is_nothing(monkeypatch, tmp_path):
    """Nothing is started where there is no device, and where the command is missing."""
    monkeypatch.setattr(ascend, "PRESENT", [])
    assert find_driver() is None
    monkeypatch.setattr(ascend, "PRESENT", [str(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_driver() is None


@pytest.mark.full
def test_a_command_that_fails_finds_no_device(command):
    """An exit code is heeded; the search comes to an end."""
    command("echo broken; exit 1")
    driver = AscendDriver()
    assert driver.find_devices() == []
    driver.close()
