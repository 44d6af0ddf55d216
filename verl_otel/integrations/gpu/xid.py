# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""XIDs: the errors that NVIDIA's driver reports, by number.

They arrive as NVML events in a queue of the driver, which each collection empties without waiting. No thread blocks in the driver, and no
permission to read the kernel log is needed, which containers lack. Errors before this process registered for events are not counted.
Numbers: NVIDIA, XID Errors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from verl_otel._internal import error_boundary

KINDS: Final = ("xid", "xid_application")
"""Kinds of `hw.errors`: errors of the hardware or the driver, and errors that a program usually causes."""
_APPLICATION: Final = frozenset((13, 31, 43, 45, 68, 69))
"""Illegal instructions, addresses and states of a program, and errors that follow from them."""
MAX_EVENTS: Final = 64
"""Maximum number of events of one device per collection; the rest is read by the next one."""


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
