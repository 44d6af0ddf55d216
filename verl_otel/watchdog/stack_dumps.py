# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks of all threads and asyncio tasks of a process, in ``stacks-….txt``: files and lines, no values.

There are two ways, because neither always works. A live process writes its own stacks on the drain thread, with those of its asyncio
tasks. A frozen process, in which C code holds the interpreter lock, is sent signals (`request_by_signal`): `faulthandler` has
registered a handler that does not need the interpreter, and writes the stack of the thread that gets the signal.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import IO, Any, Final

from verl_otel._internal import error_boundary, own_code, safe_files, thread_frames
from verl_otel.system import procfs
from verl_otel.system.procfs import Process, ThreadState

MAX_BYTES: Final = 1 << 20
"""Size at which the file is truncated."""
MAX_FRAMES: Final = 48
MAX_THREADS: Final = 64
MAX_TASKS: Final = 2000
MAX_GROUPS: Final = 40
"""Largest number of different task stacks that are written."""
MAX_SEARCHED: Final = 64
"""Tasks whose event loop is read."""


class StackFile:
    """The stack file of this process, open as long as it lives: a frozen process cannot open a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.signal = 0
        """The signal at which the stacks are written; 0: no signal was free."""
        self._file: IO[str] | None = None

    def open(self) -> None:
        """Open the file and register the signal handler. Raises `OSError`."""
        self._file = safe_files.open_text(self.path, "a", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        number = procfs.find_free_signal()
        if number:
            faulthandler.register(number, file=self._file, all_threads=False, chain=False)
            self.signal = number

    def write(self) -> None:
        """Write the stacks of all other threads of this process."""
        if self._file is None:
            return
        if self._file.tell() > MAX_BYTES:
            os.ftruncate(self._file.fileno(), 0)
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._file.write("\n".join([f"=== {now}, asked for", *_describe_threads(), *_describe_tasks(), "", ""]))
        self._file.flush()

    def close(self) -> None:
        """Unregister the handler, and remove the file if nothing was written."""
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

    def after_fork(self) -> None:
        """Release the signal handler and the file handle in a forked child; the file belongs to the parent."""
        if self._file is not None:
            if self.signal:
                faulthandler.unregister(self.signal)
            self._file.close()
        self._file, self.signal = None, 0


def format_frame(frame: FrameType) -> str:
    """Return file (`own_code.shorten`), line and function of a frame, as in a traceback; of one of asyncio the function in C that it calls, if it does."""
    function = find_c_function(frame) if is_handle(frame) else None
    name = frame.f_code.co_name if function is None else function.__qualname__
    return f'  File "{own_code.shorten(frame.f_code.co_filename)}", line {frame.f_lineno} in {name}'


def _describe_threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own_thread = threading.get_ident()
    for ident, frame in list(thread_frames.read().items())[:MAX_THREADS]:
        if ident == own_thread:
            continue
        yield f"Thread {ident:#x} [{names.get(ident, '?')}] (most recent call first):"
        yield from map(format_frame, itertools.islice(thread_frames.walk(frame), MAX_FRAMES))


def _describe_tasks() -> Iterator[str]:
    """Yield where asyncio tasks wait, which no thread's stack shows. Equal stacks are counted."""
    stacks: Counter[tuple[str, ...]] = Counter()
    with error_boundary.suppress_errors("asyncio tasks"):
        for task in _find_tasks()[:MAX_TASKS]:
            if not task.done():
                stacks[tuple(_walk_coroutine(task.get_coro()))] += 1
    if stacks:
        yield f"Tasks of asyncio: {sum(stacks.values())}"
    for stack, count in stacks.most_common(MAX_GROUPS):
        yield f"{count} task{'s' * (count > 1)} (most recent await last):"
        yield from stack


def is_handle(frame: FrameType | None) -> bool:
    """Return whether a frame is that in which asyncio's own loop runs a callback."""
    return frame is not None and frame.f_code is asyncio.Handle._run.__code__


def find_callback(top: FrameType, base: FrameType | None) -> list[FrameType]:
    """Return the frames of the callback that an event loop runs, innermost first; none if it runs no callback.

    A callback in C has no frame: that of asyncio which calls it stands for it.

    Args:
        top: The innermost frame of the loop's thread.
        base: The frame that runs the loop, for loops that have no frame for a callback, as uvloop's.
    """
    frames: list[FrameType] = []
    for current in thread_frames.walk(top):
        if is_handle(current):
            return frames or ([current] if find_c_function(current) is not None else [])
        if current is base:
            return frames
        frames.append(current)
    return []


def find_c_function(handle: FrameType) -> BuiltinFunctionType | None:
    """Return the function in C that a frame of asyncio calls; None if it calls no such one, or a step of a task."""
    function = getattr(handle.f_locals.get("self"), "_callback", None)
    is_own = isinstance(function, BuiltinFunctionType) and not isinstance(function.__self__, asyncio.Future)
    return function if is_own else None


def find_own(stack: Sequence[FrameType]) -> FrameType:
    """Return the innermost frame of code that is neither of the standard library nor installed; the innermost of all if there is none.

    A user who calls ``subprocess.run`` in a coroutine knows the line of the call, not the one at which `subprocess` waits.
    """
    return next((frame for frame in stack if own_code.is_own(frame.f_code.co_filename)), stack[0])


def find_running_loops() -> dict[Any, int]:
    """Return the event loops that run in this process, each with the id of its thread; 0 where that is not known."""
    loops = _find_loops()
    if "uvloop" in sys.modules:  # its loops have no frame
        for tasks in _find_task_sets():
            for task in _copy(lambda tasks=tasks: list(itertools.islice(tasks, MAX_SEARCHED))):  # type: ignore[misc]  # the default binds it
                loops.setdefault(task.get_loop(), 0)
    return loops


def _find_tasks() -> list[Any]:
    """Return the tasks of all event loops. Their sets may change meanwhile: this is another thread."""
    tasks_by_id: dict[int, Any] = {}
    for loop in _find_loops():
        for task in _copy(lambda loop=loop: asyncio.all_tasks(loop)):  # type: ignore[misc]  # the default binds it
            tasks_by_id[id(task)] = task
    for tasks in _find_task_sets():
        tasks_by_id.update((id(task), task) for task in _copy(lambda tasks=tasks: list(tasks)))  # type: ignore[misc]
    return list(tasks_by_id.values())


def _find_task_sets() -> Iterator[Any]:
    """Yield the sets of all tasks, which also have those of a loop that runs outside of Python, as uvloop's does."""
    for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks"):
        tasks = getattr(asyncio.tasks, name, None)
        if tasks is not None:
            yield tasks


def _copy(read: Any) -> list[Any]:
    for _ in range(10):
        try:
            return list(read())
        except RuntimeError:  # changed while it was read
            continue
    return []


def _find_loops() -> dict[Any, int]:
    """Return asyncio's own loops that run, each with the id of its thread."""
    loops: dict[Any, int] = {}
    for ident, frame in thread_frames.read().items():
        for current in thread_frames.walk(frame):
            if current.f_code.co_name == "run_forever":
                loop = current.f_locals.get("self")
                if isinstance(loop, asyncio.AbstractEventLoop):
                    loops[loop] = ident
    return loops


def _walk_coroutine(coroutine: Any) -> Iterator[str]:
    """Yield the lines at which a coroutine and the coroutines that it awaits are suspended, and last what is no coroutine."""
    for inner in _walk(coroutine):
        frame = _find_frame(inner)
        yield (
            format_frame(frame)
            if frame is not None
            else f"  awaits {type(inner).__module__}.{type(inner).__qualname__}"
        )


def walk_frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of the coroutines that it awaits, the innermost last."""
    return (frame for frame in map(_find_frame, _walk(coroutine)) if frame is not None)


def _walk(coroutine: Any) -> Iterator[Any]:
    for _ in range(MAX_FRAMES):
        if coroutine is None:
            return
        yield coroutine
        if _find_frame(coroutine) is None:
            return
        coroutine = _find_attribute(coroutine, "cr_await", "ag_await", "gi_yieldfrom")


def _find_frame(coroutine: Any) -> FrameType | None:
    frame: FrameType | None = _find_attribute(coroutine, "cr_frame", "ag_frame", "gi_frame")
    return frame


def _find_attribute(thing: Any, *names: str) -> Any:
    """Return the first attribute that is there and not None; None if none is."""
    for name in names:
        value = getattr(thing, name, None)
        if value is not None:
            return value
    return None


# -- stacks of another process, which is frozen --

LOOK_SECONDS: Final = 0.2
"""Time in which wake-ups are counted."""
MAX_CPU_NS_PER_WAKE: Final = 100_000
"""CPU time between two waits of a thread that waits for the lock. Measured: 10 to 26 microseconds; threads that took turns in Python had 2,600 to
4,200 on two cores of their own, and 270 to 2,300 with five processes like theirs."""
MIN_CPU_NS: Final = 2_000_000
"""CPU time of a thread in the time of the look below which it does not count: threads of C libraries wake up, too."""
MIN_WAKES: Final = 20
"""Times that a thread that waits for the interpreter lock wakes up in that time; 40 are usual (`sys.getswitchinterval`: 5 ms)."""
PAUSE_SECONDS: Final = 0.02
"""Time between two signals. `faulthandler` writes nothing for a thread while another one writes."""
MAX_RUNNING: Final = 4
MAX_WAITING: Final = 6


def request_by_signal(process: Process, drain_thread: int, number: int) -> bool:
    """Have the threads of a frozen process write their stacks, if a call into C holds its interpreter lock.

    The thread that gets the signal writes its own stack. The handler must not run while that thread executes Python, because the frames change
    while they are read, and the process dies. A missing heartbeat is no proof: the drain thread may wait for a file server. So a process is
    signalled only while the kernel shows that a call into C holds the interpreter lock, and in it only the threads that compute and those
    that wait for the lock. What a thread waits for in another system call would be interrupted.

    Args:
        process: The process.
        drain_thread: The kernel's id of its drain thread, which needs the lock once a second.
        number: The signal for which the process has a handler; 0: none.

    Returns:
        Whether a thread was signalled.
    """
    if number <= 0 or process.pid == os.getpid():  # Python runs here
        return False
    before = procfs.read_threads(process.pid)
    time.sleep(LOOK_SECONDS)
    after = procfs.read_threads(process.pid)
    waiting = [thread for thread in after if _waits_for_lock(process, thread, before, after)]
    if drain_thread not in waiting or any(
        _takes_turns(before.get(thread), state) or _has_not_run(before.get(thread), state)
        for thread, state in after.items()
    ):
        return False
    running = [
        thread for thread, state in after.items() if state.is_running and _has_not_waited(before.get(thread), state)
    ]
    running, waiting = (_order(process, after, threads, number) for threads in (running, waiting))
    sent = False
    for thread in [*running[:MAX_RUNNING], *waiting[:MAX_WAITING]]:
        wakes = _count_wakes(process, drain_thread)
        sent |= procfs.send_signal(process, number, thread)
        time.sleep(PAUSE_SECONDS)
        if _count_wakes(process, drain_thread) == wakes:  # it no longer waits for the lock
            break
    return sent


def _waits_for_lock(
    process: Process, thread: int, before: dict[int, ThreadState], after: dict[int, ThreadState]
) -> bool:
    wakes = after[thread].wakes - before[thread].wakes if thread in before else 0
    if wakes < MIN_WAKES:
        return False
    channel = procfs.read_wait_channel(process.pid, thread)
    return not channel or channel.startswith("futex")


def _order(process: Process, states: dict[int, ThreadState], threads: list[int], number: int) -> list[int]:
    """Return the threads that can be sent a signal, the main thread first. A signal that its thread blocks would reach another one."""
    free = [thread for thread in threads if not states[thread].held >> (number - 1) & 1]
    return sorted(free, key=lambda thread: thread != process.pid)


def _has_not_waited(earlier: ThreadState | None, later: ThreadState) -> bool:
    return earlier is not None and earlier.is_running and earlier.wakes == later.wakes


def _has_not_run(earlier: ThreadState | None, later: ThreadState) -> bool:
    """Return whether a runnable thread got no CPU, so that it is not known whether it executes Python."""
    return earlier is not None and _has_not_waited(earlier, later) and later.cpu_ns - earlier.cpu_ns < MIN_CPU_NS


def _takes_turns(earlier: ThreadState | None, later: ThreadState) -> bool:
    """Return whether a thread has computed between waits, as one that executes Python does: it gives the lock up while others wait for it."""
    if earlier is None:
        return False
    wakes, cpu_ns = later.wakes - earlier.wakes, later.cpu_ns - earlier.cpu_ns
    return wakes > 0 and cpu_ns > max(MIN_CPU_NS, MAX_CPU_NS_PER_WAKE * wakes)


def _count_wakes(process: Process, thread: int) -> int:
    state = procfs.read_thread(process.pid, thread)
    return state.wakes if state is not None else 0
