# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Has a frozen process write its stacks, by a signal to single threads of it.

The handler is that of `faulthandler`, which `verl_otel.watchdog.stack_dumps` registers: the thread that gets the signal writes its own stack. It
must not run while that thread executes Python, because the frames change while they are read, and the process dies. A missing heartbeat is
no proof: the drain thread may wait for a file server. So a process is signalled only while the kernel shows that a call into C holds the
interpreter lock, and in it only the threads that compute and those that wait for the lock. What a thread waits for in another system call
would be interrupted.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from verl_otel.system import procfs

if TYPE_CHECKING:
    from verl_otel.system.procfs import Process, ThreadState

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


def request(process: Process, drain_thread: int, number: int) -> bool:
    """Have the threads of a process write their stacks, if a call into C holds its interpreter lock.

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
