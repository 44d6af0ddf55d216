# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The state that a process holds in module-level objects: what a session and a fork renew, and a signal-safe event.

Each module with such state registers here what clears it and what a fork does to it. There is one handler for each direction of a fork, so
that the order of the callbacks is known: ``before_fork`` in reverse order of registration, the others in order of registration, as
`os.register_at_fork` does. The handler is registered when this module is imported, which is before anything that starts a session: state
is renewed before a session restarts in a forked child.

Callbacks of a forked child must not wait for a lock that a thread of the parent may hold: that thread does not exist in the child.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - see logging
import contextlib
import logging  # noqa: F401 - its fork hooks are to be first: a fork that waits here must not hold its lock, which an import may want
import os
import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

Callback = Callable[[], None]


class SignalSafeEvent:
    """An event that may be set from a signal handler, whatever the interrupted thread was doing.

    `threading.Event.set` holds a lock. A signal handler that interrupts it and calls it again deadlocks. Here the lock is the event:
    releasing it is atomic and never blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that waits."""
        with contextlib.suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, timeout: float) -> bool:
        """Wait until the event is set, and clear it; return whether it was set within ``timeout`` seconds."""
        return self._lock.acquire(timeout=timeout)


# -- sessions, tests and forks --


class _Holder(NamedTuple):
    clear: Callback | None
    reset: Callback | None
    before_fork: Callback | None
    after_fork_in_parent: Callback | None
    after_fork: Callback | None


_holders: Final[list[_Holder]] = []


def register(
    *,
    clear: Callback | None = None,
    reset: Callback | None = None,
    before_fork: Callback | None = None,
    after_fork_in_parent: Callback | None = None,
    after_fork: Callback | None = None,
) -> None:
    """Register one holder of state. Call at import.

    Args:
        clear: Discards what was recorded. Called when a session begins, also while other threads record.
        reset: Discards what outlives a session, such as caches and messages that are logged once. Called by tests.
        before_fork: Called before a fork, in the process that forks.
        after_fork_in_parent: Called after a fork, in the parent.
        after_fork: Called after a fork, in the child.
    """
    _holders.append(_Holder(clear, reset, before_fork, after_fork_in_parent, after_fork))


def clear_records() -> None:
    """Discard what was recorded in this process: a session or a capture begins."""
    _run([holder.clear for holder in tuple(_holders)])


def reset_all() -> None:
    """Discard what was recorded and what outlives a session. For tests."""
    clear_records()
    _run([holder.reset for holder in tuple(_holders)])


def _run(callbacks: Iterable[Callback | None]) -> None:
    """Call every callback, also after one has raised.

    Raises:
        BaseException: What the first of them raised. Of a fork handler the interpreter reports it and goes on.
    """
    failure: BaseException | None = None
    for callback in callbacks:
        if callback is not None:
            try:
                callback()
            except BaseException as error:
                failure = failure or error
    if failure is not None:
        raise failure


def _before_fork() -> None:
    _run([holder.before_fork for holder in reversed(tuple(_holders))])


def _after_fork_in_parent() -> None:
    _run([holder.after_fork_in_parent for holder in tuple(_holders)])


def _after_fork_in_child() -> None:
    _run([holder.after_fork for holder in tuple(_holders)])


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
