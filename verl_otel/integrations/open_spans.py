# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the open spans around a call, in this process."""

from __future__ import annotations

from verl_otel.recording.span import Span, local_span
from verl_otel.recording.span import current as current_span


def find_enclosing(verb: str) -> Span | None:
    """Return the nearest span of a verb around the current place, or None; it may have ended already."""
    span = current_span()
    while span is not None and span.site.spec.verb != verb:
        span = local_span(span.outer)
    return span


def find_open(verb: str) -> Span | None:
    """Return the nearest open span of a verb around the current place, or None."""
    span = find_enclosing(verb)
    return span if span is not None and not span.stop else None
