# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Copies records of Python's ``logging``, of level WARNING and above, to the run log, with their trace, step and phase.

The record factory is used, not a handler: a handler of the root logger would change what `logging.basicConfig` and
`logging.lastResort` do. A message may quote a prompt. It is copied if ``VERL_OTEL_CAPTURE_CONTENT`` is on or if its
text is a constant of the code; what is inserted into the constant is left out, but for reports of the watchdog.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.model import AttributeValue, LogRecord, cut
from verl_otel.recording import run_log
from verl_otel.recording.attribute_values import error_name
from verl_otel.recording.span import current_span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs

MAX_MESSAGE: Final = 2_000
"""Bytes of a message."""
FIRST_RECORDS: Final = 3
"""Records of one place in the code that are copied; further ones are counted."""
REPEAT_SECONDS: Final = 60.0
"""Seconds after which one more record of such a place is copied, with the number of those in between."""
MAX_PLACES: Final = 1_000
"""Places that are counted; beyond that all counts begin again at 0."""
MAX_FRAMES: Final = 16
"""Frames between the factory and the call of the logger."""


class _Installed:
    """The record factory that was installed, and the one before it."""

    ours: Any = None
    previous: Any = None
    places: dict[tuple[str, int], list[float]] = {}
    """By file and line: number of copied records, of those since the last one that were not, and the time of the last one."""
    busy = threading.local()
    """Whether records of this thread are not copied: while another one is copied, and within `not_copied`."""


def install() -> None:
    """Copy records from now on."""
    if _Installed.ours is not None:
        return
    _Installed.places.clear()
    previous = _Installed.previous = logging.getLogRecordFactory()

    def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = previous(*args, **kwargs)
        if record.levelno >= logging.WARNING and RECORDER.on:
            _copy(record, sys._getframe(1))
        return record

    _Installed.ours = make_record
    logging.setLogRecordFactory(make_record)


def uninstall() -> None:
    """End copying. A factory that was installed after ours stays and calls ours, which then does nothing."""
    if _Installed.ours is not None and logging.getLogRecordFactory() is _Installed.ours:
        logging.setLogRecordFactory(_Installed.previous)
        _Installed.ours = None


@contextlib.contextmanager
def not_copied() -> Iterator[None]:
    """Copy no record that this thread logs within the block: the run log has an event with the same content."""
    before = getattr(_Installed.busy, "value", False)
    _Installed.busy.value = True
    try:
        yield
    finally:
        _Installed.busy.value = before


def _copy(record: logging.LogRecord, frame: FrameType | None) -> None:
    level = logs.CRITICAL if record.levelno >= logging.CRITICAL else logs.ERROR
    level = logs.WARNING if record.levelno < logging.ERROR else level
    if not run_log.is_enabled(level) or getattr(_Installed.busy, "value", False):
        return
    _Installed.busy.value = True
    try:
        with error_boundary.suppress_errors("logging"):
            repeated = _count(str(record.pathname), int(record.lineno))
            if repeated is None:
                return
            span = current_span()
            phase = run_log.find_phase(span)
            fields = {**_describe(record, frame), **({"phase": phase} if phase else {})}
            if repeated:
                fields["repeated"] = repeated
            ids = run_log.find_ids(span)
            step = run_log.find_step(span)
            run_log.add(LogRecord(time.time_ns(), level, logs.PYTHON, step, fields, *ids), wanted=False)
    finally:
        _Installed.busy.value = False


def _count(path: str, line: int) -> int | None:
    """Return how many records of a place were not copied since the last one; None if this one is not copied either."""
    if len(_Installed.places) >= MAX_PLACES:
        _Installed.places.clear()
    place = _Installed.places.setdefault((path, line), [0, 0, 0.0])
    now = time.monotonic()
    if place[0] >= FIRST_RECORDS and now - place[2] < REPEAT_SECONDS:
        place[1] += 1
        return None
    repeated = int(place[1])
    place[:] = [place[0] + 1, 0, now]
    return repeated


def _describe(record: logging.LogRecord, frame: FrameType | None) -> dict[str, AttributeValue]:
    fields: dict[str, AttributeValue] = {"logger": str(record.name)[:256]}
    message = _read_message(record, frame)
    if message:
        fields["message"] = cut(message, MAX_MESSAGE)
    fields["code.file.path"], fields["code.line.number"] = str(record.pathname)[-256:], int(record.lineno)
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None:
        fields[attr.EXCEPTION_TYPE] = error_name(error)
    return fields


def _read_message(record: logging.LogRecord, frame: FrameType | None) -> str:
    if RECORDER.capture_content:
        return record.getMessage()
    if type(record.msg) is not str or not _is_constant(record, frame):
        return ""
    return record.getMessage() if record.name == logs.REPORTS else record.msg


def _is_constant(record: logging.LogRecord, frame: FrameType | None) -> bool:
    """Return whether the message, before its arguments are inserted, is a constant of the function that logs it."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_filename == record.pathname and frame.f_code.co_name == record.funcName:
            return record.msg in frame.f_code.co_consts
        frame = frame.f_back
    return False
