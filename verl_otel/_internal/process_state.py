# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Registry of the state that a process holds in module-level objects.

Each module with such state registers here what clears it and what a fork does to it. There is one handler for each direction of a fork, so
that the order of the callbacks is known: ``before_fork`` in reverse order of registration, the others in order of registration, as
`os.register_at_fork` does. The handler is registered when this module is imported, which is before anything that starts a session: state
is renewed before a session restarts in a forked child.

Callbacks of a forked child must not wait for a lock that a thread of the parent may hold: that thread does not exist in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

Callback = Callable[[], None]


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
