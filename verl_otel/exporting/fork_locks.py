# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces locks in objects of other libraries in a forked child.

OpenTelemetry's instruments and ``prometheus_client``'s registries keep their locks across a fork. One that a collection or a scrape of the
parent held stays locked in the child, and the next measurement of the child would never return.
"""

from __future__ import annotations

import threading
from collections import deque
from types import MethodType
from typing import Any, Final

LOCKS: Final = {type(make()): make for make in (threading.Lock, threading.RLock)}
"""Constructor by type of lock."""
PACKAGES: Final = ("opentelemetry.", "prometheus_client.", "verl_otel.exporting.")
"""Packages whose objects are searched."""
MAX_OBJECTS: Final = 200_000
"""Limit of searched objects: ten times as many as 2,000 series have."""
_CONTAINERS: Final = (list, tuple, set, frozenset, deque)


def renew(*roots: object) -> None:
    """Replace every lock that is reachable from some objects. Only for a forked child, which has no other thread.

    Args:
        *roots: Start of the search, such as a meter provider. It follows attributes, containers and bound methods.
    """
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    while waiting and len(seen) < MAX_OBJECTS:
        obj = waiting.pop()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if isinstance(obj, dict):
            waiting += list(obj.values())
        elif isinstance(obj, _CONTAINERS):
            waiting += list(obj)
        elif isinstance(obj, MethodType):
            waiting.append(obj.__self__)
        elif not isinstance(obj, type) and _is_searched(type(obj)):
            waiting += _renew_own(obj)


def _is_searched(kind: type) -> bool:
    return any(base.__module__.startswith(PACKAGES) for base in kind.__mro__)


def _renew_own(obj: Any) -> list[Any]:
    """Replace the locks of one object and of its classes; return its other attributes."""
    for kind in type(obj).__mro__:
        if kind.__module__.startswith(PACKAGES):
            _replace(kind, dict(vars(kind)))
    return _replace(obj, dict(getattr(obj, "__dict__", ())))


def _replace(owner: Any, attributes: dict[str, Any]) -> list[Any]:
    others = []
    for name, value in attributes.items():
        make = LOCKS.get(type(value))
        if make is not None:
            setattr(owner, name, make())
        else:
            others.append(value)
    return others
