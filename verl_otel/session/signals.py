# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The SIGTERM handler: flushes, then does what the process would have done without it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from verl_otel.session import children
from verl_otel.system import procfs

_previous: Any = None
_installed = False


def install(on_term: Callable[[], None]) -> None:
    """Chain a handler for SIGTERM, in the main thread only (Python allows it nowhere else).

    The handler calls ``on_term``, which must take no lock that the interrupted code may hold, and then the previous handler. If that
    was the default, the process is terminated by the signal. A handler of Python runs only once a call into C has returned. So none is
    set in a child of `multiprocessing` without one: its parent may terminate it just because it hangs in such a call. A handler that C code
    has set, as `faulthandler` does, stays, too.
    """
    global _previous, _installed
    if _installed or threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(signal.SIGTERM)
    if previous is signal.SIG_IGN or previous is None:
        return
    if previous is signal.SIG_DFL and (children.is_child() or procfs.handles_signal(os.getpid(), signal.SIGTERM)):
        return
    _previous, _installed = previous, True

    def handle(number: int, frame: FrameType | None) -> None:
        on_term()
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    handle.verl_otel = True  # type: ignore[attr-defined]  # recognized by `uninstall`
    signal.signal(signal.SIGTERM, handle)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let a SIGTERM that arrives in this block, whose time must be bounded, take effect after it; in the main thread only.

    A child of `multiprocessing`, too: ``Pool.terminate``, at the end of ``with Pool()``, first asks its workers to end, and then sends the signal.
    """
    before = signal.getsignal(signal.SIGTERM)
    arrived = []
    may_change = threading.current_thread() is threading.main_thread() and (
        callable(before) or (before is signal.SIG_DFL and not procfs.handles_signal(os.getpid(), signal.SIGTERM))
    )
    if not may_change:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: arrived.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if arrived:
            os.kill(os.getpid(), signal.SIGTERM)


def after_fork() -> None:
    """Restore the default action in a forked child, if there was no other handler: see `install`."""
    if _installed and _previous is signal.SIG_DFL and _is_ours():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_ours() -> bool:
    return getattr(signal.getsignal(signal.SIGTERM), "verl_otel", False)


def uninstall() -> None:
    """Restore the previous handler, unless another one was set since."""
    global _installed
    if _installed and threading.current_thread() is threading.main_thread():
        if _is_ours():
            signal.signal(signal.SIGTERM, _previous)
        _installed = False
