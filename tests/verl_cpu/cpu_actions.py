# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a planted fault does where it is reached (`cpu_plant`). Every action takes the seconds for which it lasts."""

import asyncio
import contextlib
import errno
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

HEAP = 6_000_000
"""Containers that a slow collection goes through."""
_heap = []
HOGS = 6
"""Programs that take the CPU, on two cores."""


def sleep(seconds):
    """Block the thread."""
    time.sleep(seconds)


def until_released(seconds):
    """Block the thread until a test has made the file ``released`` in the folder of the bed's log, at most for these seconds."""
    deadline = time.monotonic() + seconds
    released = pathlib.Path(os.environ["CPU_BED_LOG"]) / "released"
    while time.monotonic() < deadline and not released.exists():
        time.sleep(0.1)


def stop(seconds):
    """Stop this process by a signal, and have it continued."""
    _stop(os.getpid(), seconds)


def storage(seconds):
    """Stop the storage of TransferQueue, which is another process of this training."""
    _stop_others("SimpleStorageUnit", seconds)


def raylet(seconds):
    """Stop Ray's own process of this node."""
    _stop(os.getppid(), seconds)


def kill(seconds):
    """End this process as the kernel's out-of-memory killer does."""
    del seconds
    os.kill(os.getpid(), signal.SIGKILL)


def kill_storage(seconds):
    """End the storage of TransferQueue."""
    del seconds
    for process in _find_others("SimpleStorageUnit"):
        process.kill()


def fail(seconds):
    """Raise an exception as a mistake in the code does."""
    del seconds
    raise RuntimeError("broken on purpose")


def full(seconds):
    """Raise what a full disk raises."""
    del seconds
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def memory(seconds):
    """Raise what torch raises when a GPU has no memory left."""
    del seconds
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (on purpose)")


def prepare_collect():
    """Make the heap before the training, where the collector leaves it alone."""
    _heap.extend([] for _ in range(HEAP))
    gc.freeze()


def collect(seconds):
    """Have the garbage collector go through a large heap, over and over."""
    gc.unfreeze()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        gc.collect()
    gc.freeze()


def lock(seconds):
    """Have another thread hold the interpreter lock, in a call into C that does not give it up."""
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        sum(range(1_000_000))
        taken.append(time.perf_counter() - begin)
    count = round(1_000_000 * seconds / min(taken))
    threading.Thread(target=lambda: sum(range(count)), daemon=True).start()


def threads(seconds):
    """Fill the default executor of the running event loop."""
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, time.sleep, seconds)
    for _ in range(loop._default_executor._max_workers):
        loop.run_in_executor(None, time.sleep, seconds)


def hog(seconds):
    """Start programs that take the CPU of this node."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    for _ in range(HOGS):
        subprocess.Popen([sys.executable, "-S", "-c", code])


def _stop(pid, seconds):
    text = f"kill -STOP {pid}; sleep {seconds}; kill -CONT {pid}"
    subprocess.Popen(["/bin/sh", "-c", text], start_new_session=True)
    if pid == os.getpid():
        time.sleep(0.2)  # until it is stopped


def _stop_others(title, seconds):
    for process in _find_others(title):
        _stop(process.pid, seconds)
    time.sleep(0.1)


def _find_others(title):
    """Return the processes of this training whose title has a text: the other workers of its raylet."""
    import psutil

    found = []
    for process in psutil.Process(os.getppid()).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found
