# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM during the end of a session. Otherwise signals are left as they are.

There is no handler of ours. A handler of Python runs only once a call into C has returned, so a rank that waits in a
collective would not end by SIGTERM any more (pytorch/pytorch PR 61602), and a handler of the user would be delayed. The
drain is never more than an interval behind; a program whose own handler raises `SystemExit` flushes at its exit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from verl_otel.session import children
from verl_otel.system import procfs


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let a SIGTERM that arrives in this block, whose time must be bounded, take effect after it; in the main thread only.

    For a process with a handler of Python, and for a child of `multiprocessing`: ``Pool.terminate``, at the end of
    ``with Pool()``, first asks its workers to end, and then sends the signal. Every other process dies at once, also if
    the file system or the kernel does not respond.
    """
    before = signal.getsignal(signal.SIGTERM)
    arrived = []
    may_change = threading.current_thread() is threading.main_thread() and (
        callable(before)
        or (
            before is signal.SIG_DFL
            and children.is_child()
            and not procfs.handles_signal(os.getpid(), signal.SIGTERM)  # as C code does, such as `faulthandler`
        )
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
