# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether processes do anything, from what the kernel counts of them."""

import pytest

from verl_otel.system.procfs import Activity
from verl_otel.watchdog import stillness
from verl_otel.watchdog.stillness import Stillness

REST = [(second / 50, 0, 0, False) for second in range(20)]
"""CPU seconds, bytes of disks, bytes of files and wait for a device in each second: a fiftieth of a CPU."""


@pytest.mark.parametrize(
    ("worker", "child", "expected"),
    [
        (REST, None, True),
        (REST[:8], None, False),
        ([(second / 5, 0, 0, False) for second in range(20)], None, False),
        ([(0.0, second << 20, 0, False) for second in range(20)], None, False),
        ([(0.0, 0, second << 21, False) for second in range(20)], None, False),
        ([(0.0, 0, second << 18, False) for second in range(20)], None, True),
        ([(0.0, 0, 0, second == 15) for second in range(20)], None, False),
        ([(min(second, 3), 0, 0, False) for second in range(20)], None, True),
        (REST, REST, True),
        (REST, [(second / 5, 0, 0, False) for second in range(20)], False),
    ],
    ids=[
        "at rest",
        "too new",
        "computes",
        "writes",
        "writes to a file that is on no disk",
        "reads what the watchdog reads",
        "waits for a disk",
        "computed before",
        "its child rests",
        "its child computes",
    ],
)
def test_only_who_neither_computes_nor_writes_is_still(monkeypatch, worker, child, expected):
    """A child is looked at once everything else is still."""
    known, second = {1: worker, 2: child or []}, 0
    monkeypatch.setattr(stillness.procfs, "read_activity", lambda pid: Activity(*known[pid][second]))
    monkeypatch.setattr(stillness.procfs, "list_children", lambda parents: [2] if child and 1 in parents else [])
    found, state = Stillness(), False
    for second in range(len(worker)):
        found.sample([1], float(second))
        state = found.is_still(float(second))
    assert state == expected
