# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which actor methods are spans in the process that runs them: said by one integration, read by Ray's carrier."""

from __future__ import annotations

from collections.abc import Callable

from verl_otel.recording.span import Span

Opener = Callable[[str], "Span | None"]
"""Takes the actor's class name and returns the span of one call, not yet entered, or None."""

_openers: dict[str, Opener] = {}


def open_for(method: str, opener: Opener) -> None:
    """Have every actor method of this name opened as a span, whatever the class: a user's own replica too."""
    _openers[method] = opener


def find_opener(method: str) -> Opener | None:
    """Return what opens the span of an actor method, or None."""
    return _openers.get(method)


def clear() -> None:
    """Forget every opener."""
    _openers.clear()
