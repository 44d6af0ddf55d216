# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Recognizes exceptions that were raised while our code was running, but not by it, such as time-outs of the user.

A Python signal handler (``SIGALRM`` around a grader) or a trace function may interrupt our code, and its exception then propagates through
our frames. So does an exception that another thread has set (``PyThreadState_SetAsyncExc``). The error boundary lets such exceptions
pass. The traceback identifies them; docs/explanation/decisions/0019-let-foreign-exceptions-pass.md has the reasons.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

_OURS: Final = __file__.rpartition(os.sep + "_internal" + os.sep)[0] + os.sep
_GENERATED: Final = "<verl_otel "
"""Prefix of the file names of generated wrappers."""
_STDLIB: Final = os.__file__.rpartition(os.sep)[0] + os.sep
_PACKAGES: Final = ("site-packages", "dist-packages")
_RAISES: Final = frozenset({"RAISE_VARARGS", "RERAISE"})
_MAX_DEPTH: Final = 32
"""Maximum number of wrappers that are followed to the function of a signal handler."""


def is_foreign(error: BaseException) -> bool:
    """Return whether an exception was raised by code that interrupted ours, and not by ours.

    Args:
        error: The exception, with the traceback that it has in our ``except`` clause.
    """
    entries = list(_entries(error.__traceback__))
    if not entries:
        return False
    handlers = None
    caller: FrameType | None = None
    for entry in entries:
        frame = entry.tb_frame
        code = frame.f_code
        if caller is not None and not _is_ours(code):
            if _was_interrupted(frame, caller):
                return True
            handlers = _handlers() if handlers is None else handlers
            if code in handlers:
                return True
        caller = frame
    return _is_asynchronous(error, entries[-1])


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith((_OURS, _GENERATED))


def _was_interrupted(frame: FrameType, caller: FrameType) -> bool:
    """Return whether a function has received the interrupted frame as an argument, as signal handlers and trace functions do."""
    before: Any = None
    for value in _arguments(frame):
        if value is caller or (type(value) is FrameType and isinstance(before, int)):
            return True
        before = value
    return False


def _arguments(frame: FrameType) -> Iterator[Any]:
    """Yield the values of a function's parameters, and those in its ``*args``."""
    code = frame.f_code
    starred = bool(code.co_flags & 0x04)  # inspect.CO_VARARGS
    count = code.co_argcount + code.co_kwonlyargcount
    values = frame.f_locals
    for name in code.co_varnames[:count]:
        yield values.get(name)
    if starred:
        rest = values.get(code.co_varnames[count])
        yield from rest if type(rest) is tuple else ()


def _handlers() -> set[CodeType]:
    """Return the code of the signal handlers of this process: they may have dropped their frame argument."""
    import signal

    codes = set()
    for number in signal.valid_signals():
        function: Any = signal.getsignal(number)
        for _ in range(_MAX_DEPTH):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
            below = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
            if below is None and code is None and callable(function) and not isinstance(function, type):
                below = getattr(type(function), "__call__", None)  # noqa: B004 - the function itself is looked at
            if below is None or below is function:
                break
            function = below
    return codes


def _is_asynchronous(error: BaseException, innermost: TracebackType) -> bool:
    """Return whether an exception was probably set by another thread: it has no frame of its own and no arguments.

    It appears in our code or in the standard library at an instruction that does not raise, and has a type that neither of the two raises
    without a message.
    """
    code = innermost.tb_frame.f_code
    kind = type(error)
    if error.args or not (_is_ours(code) or _is_standard(code)):
        return False
    top = kind.__module__.partition(".")[0]
    is_known = top in sys.stdlib_module_names or top == __name__.partition(".")[0]
    if is_known and kind is not TimeoutError:
        return False
    return _operation(innermost) not in _RAISES


def _is_standard(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith("<frozen ") or (name.startswith(_STDLIB) and not any(part in name for part in _PACKAGES))


def _operation(entry: TracebackType) -> str:
    """Return the name of the instruction at which an exception left a frame."""
    import dis

    return dis.opname[entry.tb_frame.f_code.co_code[entry.tb_lasti]]
