# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The frames of all threads, read without the deadlock that CPython 3.11 has."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Final

_CAN_DEADLOCK: Final = sys.version_info[:2] == (3, 11)
"""Whether `sys._current_frames` makes objects while it holds the lock of the list of threads."""


def read() -> dict[int, FrameType]:
    """Return the innermost frame of every thread, by the thread's id.

    On CPython 3.11 a garbage collection that begins in `sys._current_frames` ends in a deadlock of the whole process if it frees a
    `threading.local`, or if one of its finalizers lets another thread start or end (https://github.com/python/cpython/issues/106883).
    None begins there while the collector is switched off.
    """
    if not _CAN_DEADLOCK or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def walk(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back
