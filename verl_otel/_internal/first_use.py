# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What happens when decorated code arrives in this process, such as the class of a Ray actor. The package sets it; recording calls it.

A module of its own because ``import verl_otel`` loads it, and should load nothing else.
"""

from __future__ import annotations

from collections.abc import Callable


def _nothing() -> None:
    pass


class FirstUse:
    """The function to call before a call site that was pickled is used."""

    start: Callable[[], None] = staticmethod(_nothing)
