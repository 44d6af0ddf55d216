# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Children of `multiprocessing`: a spawned one finds the run of its parent (a forked one has it), and all end without `atexit`.

A forked child has the run of its parent in memory. One that is started by ``spawn`` or ``forkserver`` begins with
nothing but the environment, in which the parent leaves its process id, its attempt and its run. By the id a child
differs from any other program that inherits the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from verl_otel.config import Config
from verl_otel.system import procfs

VARIABLE: Final = "_VERL_OTEL_PARENT"
"""Not ``VERL_OTEL_...``: those are forwarded to other machines, where the process id means nothing."""
PACKAGES: Final = ("multiprocessing", "multiprocess")
_CHILD: Final = "--multiprocessing-fork"
"""On the command line of a process that was started by ``spawn``."""
_SERVER: Final = "forkserver import main"
"""On the command line of a server that forks children."""
_FIRST, _LAST = 1000, -1000
"""Priorities of a finalizer that multiprocessing calls first or last."""


class InheritedRun(NamedTuple):
    """The run of the parent."""

    run_id: str
    attempt: int


def publish(config: Config) -> None:
    """Leave the run of this process to the children that it will start."""
    os.environ[VARIABLE] = f"{os.getpid()} {config.run_attempt} {config.run_id}"


def withdraw() -> None:
    """Leave no run to children any more."""
    os.environ.pop(VARIABLE, None)


def find_inherited_run() -> InheritedRun | None:
    """Return the run of the process that has started this one by ``spawn`` or ``forkserver``; None in every other process."""
    parent, _, rest = os.environ.get(VARIABLE, "").partition(" ")
    attempt, _, run_id = rest.partition(" ")
    if not (run_id and parent.isdigit() and attempt.isdigit()) or int(parent) not in _find_starters():
        return None
    return InheritedRun(run_id, int(attempt))


def _is_started() -> bool:
    """Return whether the command line is that of a spawned child, or of the server of ``forkserver`` and its children, which share it."""
    return _CHILD in sys.orig_argv or any(_SERVER in argument for argument in sys.orig_argv)


def _find_starters() -> set[int]:
    """Return the ids of processes that may have started this one by ``spawn`` or ``forkserver``: its parent, and that of the server."""
    parent = os.getppid()
    starters = {parent} if _is_started() else set()
    if _SERVER in procfs.read_command(parent):
        starters |= {parent, procfs.read_parent(parent)}
    return starters


def is_child() -> bool:
    """Return whether `multiprocessing` has started this process, by whatever method. Does not import it."""
    if _is_started():  # `parent_process` does not know it before the main module is imported
        return True
    packages = (getattr(sys.modules.get(f"{name}.process"), "parent_process", None) for name in PACKAGES)
    return any(find_parent is not None and find_parent() is not None for find_parent in packages)


def register_finalizer(shutdown: Callable[[], None]) -> None:
    """Have `multiprocessing`, where it is imported, call ``shutdown`` at the end of this process.

    In a child before everything else: ``Pool.terminate`` asks the workers to end, and sends SIGTERM at once.
    """
    for util in _find_utils():
        util.Finalize(None, shutdown, exitpriority=_FIRST if is_child() else _LAST)


def register_finalizer_in_child(shutdown: Callable[[], None]) -> None:
    """Do the same in a forked child of `multiprocessing`, which discards the finalizers of its parent after the fork."""
    for util in _find_utils():
        util.register_after_fork(register_finalizer, lambda _: register_finalizer(shutdown))


def _find_utils() -> list[Any]:
    modules = [sys.modules.get(f"{name}.util") for name in PACKAGES]
    return [module for module in modules if hasattr(module, "Finalize") and hasattr(module, "register_after_fork")]
