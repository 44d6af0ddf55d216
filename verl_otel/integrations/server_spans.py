# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Actor methods that are spans in the process of the actor: registered by integrations, opened by that of Ray."""

from __future__ import annotations

from collections.abc import Callable

from verl_otel.recording.span import Span

Opener = Callable[[str], "Span | None"]
"""Takes the class name of the actor; returns the span of one call, not yet entered, or None."""

_openers: dict[str, Opener] = {}


def register_opener(method: str, opener: Opener) -> None:
    """Open a span for every call of an actor method of this name, in any class: users define replicas of their own."""
    _openers[method] = opener


def find_opener(method: str) -> Opener | None:
    """Return the opener of an actor method, or None."""
    return _openers.get(method)


def clear() -> None:
    """Remove all openers."""
    _openers.clear()
