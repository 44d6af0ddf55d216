# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps failures of the library out of the training: suppresses them, logs each place once, and counts them.

A failing hook or exporter may lose telemetry, never a step. An exception that our code did not raise passes: a Python
signal handler (``SIGALRM`` around a grader) or a trace function may interrupt our code, and its exception then
propagates through our frames. The traceback shows it; docs/explanation/decisions/0019-let-foreign-exceptions-pass.md
has the reasons. Every ``except Exception`` that may run in a thread of the user calls `record_internal_error` or
`may_propagate`. Our own tests set `RAISE_INTERNAL_ERRORS`, so that they fail.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, ParamSpec, TypeVar

from verl_otel._internal import log_lines, process_state
from verl_otel._internal.printable import show

MAX_VALUE: Final = 2000
"""Characters of one value in a log line."""
_VARARGS: Final = 0x04
"""Flag of the code of a function with ``*args``."""
P = ParamSpec("P")
R = TypeVar("R")

RAISE_INTERNAL_ERRORS: Final = "VERL_OTEL_RAISE_INTERNAL_ERRORS"
"""Environment variable of our own tests: internal errors are raised."""
_logger = logging.getLogger("verl_otel")
_counts: dict[str, int] = {}
_warned: set[str] = set()


def record_internal_error(place: str, error: BaseException) -> None:
    """Count an internal error, and log the first one at each place. Call in the ``except`` clause.

    Args:
        place: Where it happened. It becomes a metric label, so use few names.
        error: The exception.

    Raises:
        BaseException: ``error`` itself, if our code did not raise it, or if `RAISE_INTERNAL_ERRORS` is set.
    """
    may_propagate(error)
    _counts[place] = _counts.get(place, 0) + 1
    warn_once(place, "verl-otel: %s failed and was skipped: %s: %s (logged once)", place, type(error).__name__, error)
    if os.environ.get(RAISE_INTERNAL_ERRORS):
        raise error


def may_propagate(error: BaseException) -> None:
    """Raise an exception again that our code did not raise. Call in the ``except`` clause that would suppress it.

    Raises:
        BaseException: ``error`` itself.
    """
    if is_foreign(error):
        raise error


def is_foreign(error: BaseException) -> bool:
    """Return whether an exception was raised by code that interrupted ours, and not by ours.

    Such code is a signal handler, or has received the frame below it in the traceback as an argument, as signal
    handlers and trace functions do.

    Args:
        error: The exception, with the traceback that it has in our ``except`` clause.
    """
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    entry, interrupted = error.__traceback__, None
    while entry is not None:
        frame = entry.tb_frame
        if interrupted is not None and (frame.f_code in handlers or _has_received(frame, interrupted)):
            return True
        entry, interrupted = entry.tb_next, frame
    return False


def _has_received(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether a function has another frame as an argument."""
    code = frame.f_code
    has_more = bool(code.co_flags & _VARARGS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + has_more]
    values = [frame.f_locals.get(name) for name in names]
    if has_more and type(values[-1]) is tuple:
        values += values[-1]
    return any(value is interrupted for value in values)


def warn_once(key: str, message: str, *values: object) -> None:
    """Log one line, once per process and ``key``."""
    if key in _warned:
        return
    _warned.add(key)
    log_lines.warn(_logger, message, *map(_to_line, values))


def _to_line(value: object) -> object:
    """Return a value for a log line; the name of its type if it has no text."""
    try:
        return value if isinstance(value, int | float) else show(value, MAX_VALUE)
    except Exception as error:
        may_propagate(error)
        return f"<{type(value).__name__}>"


def counts() -> dict[str, int]:
    """Return the number of internal errors by place, for `verl.otel.errors`."""
    lost = log_lines.count_lost()
    return {**_counts, **({"log line": lost} if lost else {})}


def reset() -> None:
    """Reset counts and logged messages. For tests and for a forked child."""
    _counts.clear()
    _warned.clear()


process_state.register(reset=reset)


class suppress_errors:  # noqa: N801 - used like a function
    """Suppress ordinary exceptions of our own code. Not for the hot path.

    A class and no generator function: the traceback then begins in the frame of the block, as in an ``except`` clause.
    """

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        record_internal_error(self._place, error)
        return True


def never_raises(place: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate one of our functions: an ordinary exception is logged and counted, and the function returns ``None``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                record_internal_error(place, error)
                return None

        return wrapper

    return decorate
