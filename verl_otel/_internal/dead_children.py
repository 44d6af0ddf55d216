# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which child of `multiprocessing` died when a pool of processes or a pipe broke: the exception does not name it."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

BROKEN_POOL = "BrokenProcessPool"
"""Class of the exception."""
PIPES = "multiprocessing.connection"
"""Module of the pipes between processes. What it raises may mean that the process at the other end has died."""
END_SECONDS = 0.02
"""A process that dies closes its pipe before its parent can read how it ended: of 200 deaths 60 were not known at once,
all within this time."""


def describe(error: BaseException) -> str:
    """Return which children of this process died by themselves, in words; empty if unknown, or after other errors.

    A broken pool ends its other processes by SIGTERM: those are not what broke it.

    Example:
        "process 4711 was killed by SIGKILL"
    """
    is_pipe = _find_module(error) == PIPES
    if not is_pipe and not type(error).__name__.endswith(BROKEN_POOL):
        return ""
    limit = time.monotonic() + END_SECONDS
    while not (deaths := [(pid, code) for pid, code in _find_ends() if code not in (0, -signal.SIGTERM)]):
        if not is_pipe or time.monotonic() >= limit:
            break
        time.sleep(0.001)
    return ", ".join(f"process {pid} {_describe_end(code)}" for pid, code in sorted(deaths))


class PoolWorkers:
    """The workers of the pools of this process (`multiprocessing.Pool`), which replaces one that died, and never returns what it worked on."""

    def __init__(self) -> None:
        self._known: set[Any] = set()
        """Handles of those that lived at the last look: a pool forgets one that has died at once."""

    def take_dead(self) -> list[tuple[int, str]]:
        """Return pid and end, in words, of those that have died by themselves since the last call."""
        present: Any = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
        handles = {each._popen for each in list(present) if "PoolWorker" in each.name}
        known, self._known = self._known, {handle for handle in handles if handle.returncode is None}
        ends = [(handle.pid, handle.returncode) for handle in known]
        return [(pid, _describe_end(code)) for pid, code in ends if code not in (None, 0, -signal.SIGTERM)]


def _find_module(error: BaseException) -> str:
    """Return the module whose code raised an error; empty: unknown."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")) if frames else ""


def _find_ends() -> Iterator[tuple[int, int]]:
    """Yield pid and exit code of children that have ended and whose object still exists."""
    made: Any = getattr(sys.modules.get("multiprocessing.process"), "_dangling", ())
    for process in list(made):
        handle = getattr(process, "_popen", None)
        pid, code = getattr(handle, "pid", None), getattr(handle, "returncode", None)
        code = _peek(pid) if code is None and isinstance(pid, int) else code
        if isinstance(pid, int) and isinstance(code, int):
            yield pid, code


def _peek(pid: int) -> int | None:
    """Return the exit code of a child without reaping it, which is left to `multiprocessing`; None: it lives, or is none of ours."""
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except OSError:
        return None
    return None if end is None else end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _describe_end(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"
