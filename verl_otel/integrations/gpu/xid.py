# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""XIDs: the errors that NVIDIA's driver reports, by number.

They come as NVML's events, which wait in a queue of the driver and are taken from it at collection, without waiting: no thread sits in the
driver for them, and no right to read the kernel's log is needed, which containers do not have. What happened before this process began to
listen is not seen. Numbers: NVIDIA, XID Errors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from verl_otel import _guard

KINDS: Final = ("xid", "xid_application")
"""Kinds of `hw.errors`: of the hardware or the driver, and of the program that ran on it as a rule."""
_APPLICATION: Final = frozenset((13, 31, 43, 45, 68, 69))
"""Illegal instructions, addresses and states of a program, and what is ended because of them."""
MAX_EVENTS: Final = 64
"""Events of one device that a collection takes; the rest waits for the next one."""


def listen(library: Any, handle: Any) -> Any:
    """Return a set of events that gets the XIDs of one device; None where its driver has none, as under MIG or in a virtual machine."""
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
    """Return how many XIDs there were since the last call, by kind, and say each number once in the log."""
    found: Counter[str] = Counter()
    for _ in range(MAX_EVENTS):
        try:
            event = library.nvmlEventSetWait(events, 0)
        except library.NVMLError:  # there are no more, or the device is lost, as what is read next will say
            break
        number = int(event.eventData)
        found[KINDS[number in _APPLICATION]] += 1
        _guard.say(f"xid {device} {number}", "verl-otel: GPU %s: XID %d (said once)", device, number)
    return found
