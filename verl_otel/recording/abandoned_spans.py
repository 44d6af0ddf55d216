# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans whose block was left without running ``__exit__``.

CPython checks for signals before the first instruction of ``__exit__``. An exception that a signal handler raises there leaves the block,
and no ``try`` of the span surrounds it. Such a span is found in the traceback when a span around it ends, or by its reference count: a
``with`` statement, an exit stack and a wrapper each hold a reference to the span that they will end.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from verl_otel.recording.state import RECORDER

if TYPE_CHECKING:
    from types import CodeType

    from verl_otel.recording.span import Span


def _count(obj: object) -> int:
    return sys.getrefcount(obj)


def _calibrate() -> int:
    obj = object()
    return _count(obj)


AT_ONCE: Final = 1024
"""Spans that one drain looks at."""
_HELD: Final = _calibrate() + 2
"""Reference count of an argument that one variable of the caller, the list of begun spans and a context hold."""


def is_abandoned(span: Any) -> bool:
    """Return whether nothing can end a span any more. The caller must hold it in exactly one variable.

    Spans of hooks are excluded: a hook may leave its span to the context only, and end it from there, as the next turn ends a turn.
    """
    return sys.getrefcount(span) <= _HELD and span.start > 0 and not span.stop and not span.site.hook


def end_interrupted(span: Any, error: BaseException, code: CodeType) -> None:
    """End the spans inside ``span`` whose ``__exit__`` was interrupted by an exception at its first instruction.

    Args:
        span: The span that the exception ends.
        error: The exception, with its traceback.
        code: The code of ``__exit__``.
    """
    interrupted: list[Span] = []
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code is code:
            interrupted.append(entry.tb_frame.f_locals["self"])
        entry = entry.tb_next
    for inner in reversed(interrupted):
        if inner is not span and inner.start and not inner.stop:
            inner.finish_interrupted(error)


def drop_abandoned() -> None:
    """Drop abandoned spans, so that they do not count as open and get no children. Called by the drain.

    A drain looks at `AT_ONCE` spans, the next one at those before: with thousands of open spans a look at all takes a millisecond.
    """
    length = len(RECORDER.begun)
    last = _Search.end if 0 < _Search.end < length else length
    first = max(0, last - AT_ONCE)
    _Search.end = first
    for index in range(last - 1, first - 1, -1):  # inner spans first
        try:
            span = RECORDER.begun[index]
        except IndexError:  # another thread has emptied the list
            continue
        if is_abandoned(span):
            span.abandon()


class _Search:
    """Where the next search for abandoned spans ends; 0: at the end of the list."""

    end = 0
