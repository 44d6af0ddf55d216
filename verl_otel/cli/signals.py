# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that end a command which runs until it is stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def catch_signals() -> Iterator[threading.Event]:
    """Have SIGINT, SIGTERM and SIGHUP set an event. Children do not inherit this: they start with the usual handlers.

    SIGHUP comes when the terminal is closed; under ``nohup`` it is ignored, and stays so.
    """
    ended = threading.Event()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
