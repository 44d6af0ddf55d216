# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Names the work that blocks an event loop, from the stack of its thread: the innermost span of verl-otel, else the function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from verl_otel.recording.span import BareSpan, Span
from verl_otel.recording.state import RECORDER
from verl_otel.recording.wrapper_source import FILE_PREFIX
from verl_otel.semconv import attributes as attr
from verl_otel.watchdog.stack_dumps import format_frame

_OWN: Final = str(Path(__file__).resolve().parent.parent)
"""Folder of the library. Only frames of its wrappers are read: to read the variables of others may keep objects alive."""
RECENT_SPANS: Final = 16
"""Spans that were opened last, among which the one of the blocking work is looked for."""

RECENT_SECONDS: Final = 0.3
"""And how long before the loop did not answer it must have been opened."""


class BlockingWork:
    """What blocks an event loop."""

    __slots__ = ("_callback", "began", "line", "span", "span_name", "tool")

    def __init__(self, callback: FrameType | None, line: str, span: Span | None, began: float) -> None:
        self._callback = callback
        self.line = line
        """``File "...", line N in function``, the innermost one."""
        self.span = span
        self.span_name = span.name if span is not None else ""
        self.tool = str(span.attributes.get(attr.GEN_AI_TOOL, "")) if span is not None else ""
        self.began = began
        """When it began, on the clock of spans; at the latest when the loop was seen to be blocked."""

    def release(self) -> None:
        """Drop the frame of the callback, which would keep its variables alive."""
        self._callback = None

    def is_same(self, stack: Sequence[FrameType]) -> bool:
        """Return whether the same callback still runs."""
        return stack[-1] is self._callback


def describe(stack: Sequence[FrameType], blocked_since: float) -> BlockingWork | None:
    """Return what blocks an event loop; None without a stack.

    Args:
        stack: The frames of the callback that runs, innermost first.
        blocked_since: When the loop was known not to answer.
    """
    if not stack:
        return None
    span = _find_wrapped(stack) or _find_recent(blocked_since)
    return BlockingWork(stack[-1], format_frame(stack[0]).strip(), span, blocked_since if span is None else span.start)


def _find_wrapped(stack: Sequence[FrameType]) -> Span | None:
    """Return the innermost open span that a wrapper on the stack holds."""
    for frame in stack:
        name = frame.f_code.co_filename
        if name.startswith((FILE_PREFIX, _OWN)):
            for value in frame.f_locals.values():
                if type(value) is BareSpan and value.start and not value.stop:
                    return value  # type: ignore[return-value]  # as every span
    return None


def _find_recent(blocked_since: float) -> Span | None:
    """Return the open span that began last before the loop was blocked, if that was just before: it began in the same callback."""
    recent: list[Any] = RECORDER.begun[-RECENT_SPANS:]
    fresh = [
        span for span in recent if span.start and not span.stop and abs(blocked_since - span.start) < RECENT_SECONDS
    ]
    return max(fresh, key=lambda span: span.start, default=None)
