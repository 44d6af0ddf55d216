# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the lines of verl-otel to the log of the training, without waiting for the log.

A pipe that is full and that no process reads any more (a stopped ``tee``, a pager, a launcher that is gone) blocks a
writer for good, and a writer below `logging` holds the lock of its handler meanwhile: `logging.shutdown` then waits for
that lock, and the program never ends. So a line is written only if the handler's lock is free and its stream takes the
line. Otherwise it waits, and is tried again with the next line, at each drain, and at the end of the session.

What remains: another process may fill the rest of a shared pipe between the check and the write.
"""

from __future__ import annotations

import fcntl
import logging
import select
import stat
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Iterator
from os import fstat
from typing import Any, Final

from verl_otel._internal import process_state

MAX_WAITING: Final = 256
"""Lines that wait, each for one handler. Beyond that the oldest are lost and counted."""
PREFIX_BYTES: Final = 512
"""Room for what a formatter puts around a message."""
LOOK_SECONDS: Final = 0.02


class _Lines:
    """The lines of this process that wait."""

    waiting: deque[tuple[logging.Handler, logging.LogRecord]] = deque()
    writing = threading.Lock()
    """Held by the thread that writes. No thread waits for it: that thread writes the lines of the others, too."""
    lost = 0


def warn(logger: logging.Logger, message: str, *values: object) -> None:
    """Log a line of level WARNING as ``logger.warning`` does, but write it only where that does not block."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    caller = sys._getframe(1)
    code = caller.f_code
    record = logger.makeRecord(
        logger.name, logging.WARNING, code.co_filename, caller.f_lineno, message, values, None, code.co_name
    )
    filtered = logger.filter(record)  # since Python 3.12 a filter may replace the record
    if logger.disabled or not filtered:
        return
    record = filtered if isinstance(filtered, logging.LogRecord) else record
    for handler in _list_handlers(logger):
        if record.levelno >= handler.level:
            _Lines.waiting.append((handler, record))
    write_waiting()
    while len(_Lines.waiting) > MAX_WAITING and _take() is not None:
        _Lines.lost += 1


def _list_handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers that a record of a logger goes to, as in `logging.Logger.callHandlers`."""
    found: list[logging.Handler] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += current.handlers
        current = current.parent if current.propagate else None
    if not found and logging.lastResort is not None:
        found.append(logging.lastResort)
    return found


def write_waiting() -> None:
    """Write the lines that wait, in their order, as far as their handlers take them now."""
    blocked: list[tuple[logging.Handler, logging.LogRecord]] = []
    while _Lines.waiting and not blocked and _Lines.writing.acquire(blocking=False):
        try:
            while (entry := _take()) is not None:
                is_behind = any(entry[0] is handler for handler, _ in blocked)
                if is_behind or not _write(*entry):
                    blocked.append(entry)
        finally:
            _Lines.waiting.extendleft(reversed(blocked))
            _Lines.writing.release()


def _take() -> tuple[logging.Handler, logging.LogRecord] | None:
    try:
        return _Lines.waiting.popleft()
    except IndexError:
        return None


def write_until(deadline: float) -> None:
    """Write the lines that wait, at the end of the session, until ``deadline`` (`time.monotonic`)."""
    write_waiting()
    while _Lines.waiting and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        write_waiting()


def count_lost() -> int:
    """Return the number of lines that found no room."""
    return _Lines.lost


def _write(handler: logging.Handler, record: logging.LogRecord) -> bool:
    """Pass a record to a handler; return False if that might block."""
    lock = handler.lock
    if lock is not None and not lock.acquire(False):
        return False
    try:
        size = len(record.getMessage().encode("utf-8", "replace")) + PREFIX_BYTES
        if not all(takes(stream, size) for stream in _find_streams(handler)):
            return False
        handler.handle(record)  # its lock is re-entrant
        return True
    finally:
        if lock is not None:
            lock.release()


def _find_streams(handler: logging.Handler) -> Iterator[Any]:
    """Yield the streams that a handler may write to: its own, or if it names none the standard ones."""
    stream = getattr(handler, "stream", None)
    if stream is not None and _find_descriptor(stream) >= 0:
        yield stream
    elif not isinstance(handler, logging.FileHandler):
        yield from (sys.__stderr__, sys.__stdout__)


def _find_descriptor(stream: Any) -> int:
    """Return the file descriptor of a stream; -1 if it has none."""
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError, TypeError):  # no stream, closed, or a stream in memory
        return -1


def takes(stream: Any, size: int) -> bool:
    """Return whether ``size`` bytes can be written now without blocking. A stream without a file descriptor takes all."""
    descriptor = _find_descriptor(stream)
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    # Any event is an answer: writing to a closed descriptor, or to a pipe without a reader, fails at once.
    return bool(poll.poll(0)) and size <= _find_room(descriptor)


def _find_room(descriptor: int) -> float:
    """Return how many bytes a writable descriptor takes at least: of a pipe a page, or all of it if it is empty."""
    try:
        if not stat.S_ISFIFO(fstat(descriptor).st_mode):
            return float("inf")
        (used,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
        return select.PIPE_BUF if used else fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except OSError:
        return float("inf")


def _reset() -> None:
    _Lines.waiting.clear()
    _Lines.lost = 0


def _after_fork() -> None:
    """Forget the lines of the parent, which it writes itself."""
    _reset()
    _Lines.writing = threading.Lock()


process_state.register(reset=_reset, after_fork=_after_fork)
