# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Keep our own failures out of training: swallow, log each place once, count.

A hook or an exporter that goes wrong may cost detail, never a step. Under pytest the same failure is raised, so that our
bugs are seen where they can be mended.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_logger = logging.getLogger("verl_otel")
_counts: dict[str, int] = {}
_said: set[str] = set()


def report(place: str, error: BaseException) -> None:
    """Count one failure of ours and log it if it is the first at this place.

    Args:
        place: Where it happened, one of few names: it becomes a label.
        error: What was raised.

    Raises:
        BaseException: ``error`` itself, when running under pytest.
    """
    _counts[place] = _counts.get(place, 0) + 1
    say(place, "verl-otel: %s failed and was skipped: %s: %s (said once)", place, type(error).__name__, error)
    if "PYTEST_CURRENT_TEST" in os.environ and "VERL_OTEL_SWALLOW" not in os.environ:
        raise error


def say(key: str, message: str, *values: object) -> None:
    """Log one line, once per process and ``key``."""
    if key in _said:
        return
    _said.add(key)
    _logger.warning(message, *values)


def counts() -> dict[str, int]:
    """Return the number of failures by place, for `verl.otel.errors`."""
    return dict(_counts)


def reset() -> None:
    """Forget what was counted and said. For tests and for a forked child."""
    _counts.clear()
    _said.clear()


@contextmanager
def swallowed(place: str) -> Iterator[None]:
    """Run our own code so that no ordinary exception of it leaves. Not for the hot path."""
    try:
        yield
    except Exception as error:
        report(place, error)


def guarded(place: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate a function of ours: an ordinary exception in it becomes ``None``, a log line and a count."""

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                report(place, error)
                return None

        return wrapper

    return decorate
