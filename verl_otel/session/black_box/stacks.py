# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Where every thread and every task of a process stands, in ``stacks-….txt``: files and lines, no values.

Two ways, because neither works always. A process that answers writes its own stacks, on the drain thread, with those of its asyncio
tasks. One that does not, because a thread holds the interpreter inside of C, is sent a signal: `faulthandler` has a handler in
place that needs no interpreter.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from verl_otel import _guard
from verl_otel.session.black_box import processes

MAX_BYTES: Final = 1 << 20
"""Size from which on the file begins anew."""
MAX_FRAMES: Final = 48
MAX_THREADS: Final = 64
MAX_TASKS: Final = 2000
MAX_GROUPS: Final = 40
"""Different stacks of tasks that are written."""
BLOCKED_SECONDS: Final = 0.2
"""Seconds that a callback of an event loop runs, at least, when the loop is said to be blocked."""


class StackFile:
    """The file of this process, open as long as it lives: somebody who is frozen cannot open one.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.signal = 0
        """The signal that has the stacks written; 0: none was free."""
        self._file: IO[str] | None = None

    def open(self) -> None:
        """Open the file and register the signal handler. Raises `OSError`."""
        self._file = self.path.open("a", encoding="utf-8", errors="backslashreplace")
        number = processes.find_free_signal()
        if number:
            faulthandler.register(number, file=self._file, all_threads=True, chain=False)
            self.signal = number

    def write(self) -> None:
        """Write the stacks of this process, from whatever thread this is."""
        if self._file is None:
            return
        if self._file.tell() > MAX_BYTES:
            os.ftruncate(self._file.fileno(), 0)
        self._file.write("\n".join([f"=== {_now()}, asked for", *_describe_threads(), *_describe_tasks(), "", ""]))
        self._file.flush()

    def close(self) -> None:
        """Take the handler away, and the file if nothing was written."""
        if self._file is None:
            return
        if self.signal:
            faulthandler.unregister(self.signal)
            self.signal = 0
        empty = not os.fstat(self._file.fileno()).st_size
        self._file.close()
        self._file = None
        if empty:
            self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Let go of the handler and the handle in a forked child; the file is its parent's."""
        if self._file is not None:
            if self.signal:
                faulthandler.unregister(self.signal)
            self._file.close()
        self._file, self.signal = None, 0


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()) + " UTC"


def _line(frame: FrameType) -> str:
    return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'


def _describe_threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    mine = threading.get_ident()
    for ident, frame in list(sys._current_frames().items())[:MAX_THREADS]:
        if ident == mine:
            continue
        yield f"Thread {ident:#x} [{names.get(ident, '?')}] (most recent call first):"
        walked: FrameType | None = frame
        for _ in range(MAX_FRAMES):
            if walked is None:
                break
            yield _line(walked)
            walked = walked.f_back


def _describe_tasks() -> Iterator[str]:
    """Say where the tasks of asyncio wait: that is on no thread's stack. Equal stacks are counted."""
    found: Counter[tuple[str, ...]] = Counter()
    with _guard.swallowed("asyncio tasks"):
        for task in _find_tasks()[:MAX_TASKS]:
            if not task.done():
                found[tuple(_walk(task.get_coro()))] += 1
    if found:
        yield f"Tasks of asyncio: {sum(found.values())}"
    for stack, count in found.most_common(MAX_GROUPS):
        yield f"{count} task{'s' * (count > 1)} (most recent await last):"
        yield from stack


def find_blocked() -> str:
    """Return where a thread stands that should run an event loop and is held by one of its callbacks; empty if there is none."""
    before = _find_steps()
    if not before:
        return ""
    time.sleep(BLOCKED_SECONDS)
    after = _find_steps()
    for ident, step in before.items():
        if after.get(ident) is step:
            top = sys._current_frames().get(ident)
            return _line(top).strip() if top is not None else ""
    return ""


def _find_steps() -> dict[int, FrameType]:
    """Return the frame that a callback of each event loop has begun, by thread: the one inside of ``Handle._run``."""
    found: dict[int, FrameType] = {}
    for ident, frame in sys._current_frames().items():
        inner: FrameType | None = None
        walked: FrameType | None = frame
        while walked is not None:
            if inner is not None and walked.f_code is asyncio.Handle._run.__code__:
                found[ident] = inner
            inner, walked = walked, walked.f_back
    return found


def _find_tasks() -> list[Any]:
    """Return the tasks of all event loops. Asked from another thread than theirs, their sets may change meanwhile."""
    found: dict[int, Any] = {}
    for loop in _find_loops():
        for task in _copy(lambda loop=loop: asyncio.all_tasks(loop)):  # type: ignore[misc]  # the default binds it
            found[id(task)] = task
    for name in (
        "_all_tasks",
        "_scheduled_tasks",
        "_eager_tasks",
    ):  # where a loop runs outside of Python, as uvloop's does
        tasks = getattr(asyncio.tasks, name, None)
        if tasks is not None:
            found.update((id(task), task) for task in _copy(lambda tasks=tasks: list(tasks)))  # type: ignore[misc]
    return list(found.values())


def _copy(read: Any) -> list[Any]:
    for _ in range(10):
        try:
            return list(read())
        except RuntimeError:  # changed while it was read
            continue
    return []


def _find_loops() -> list[Any]:
    found = {}
    for frame in sys._current_frames().values():
        walked: FrameType | None = frame
        while walked is not None:
            if walked.f_code.co_name == "run_forever":
                loop = walked.f_locals.get("self")
                if isinstance(loop, asyncio.AbstractEventLoop):
                    found[id(loop)] = loop
            walked = walked.f_back
    return list(found.values())


def _walk(coroutine: Any) -> Iterator[str]:
    """Yield the lines at which a coroutine and what it awaits stand, down to what is no coroutine."""
    for _ in range(MAX_FRAMES):
        frame = next(
            (
                found
                for name in ("cr_frame", "ag_frame", "gi_frame")
                if (found := getattr(coroutine, name, None)) is not None
            ),
            None,
        )
        if frame is None:
            if coroutine is not None:
                yield f"  awaits {type(coroutine).__module__}.{type(coroutine).__qualname__}"
            return
        yield _line(frame)
        coroutine = next(
            (
                found
                for name in ("cr_await", "ag_await", "gi_yieldfrom")
                if (found := getattr(coroutine, name, None)) is not None
            ),
            None,
        )
