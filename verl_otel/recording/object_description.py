# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Descriptions of objects that are not plain values: type and, if cheap, size. Content is never read.

``str()`` of a tensor on an accelerator waits for the device and contains token ids; that of other objects may do anything. So no code of
the object runs: no ``__str__``, ``__repr__``, ``__len__`` or ``__getattr__``. Only ``shape``, ``dtype`` and ``device`` of array types are
read, which describe memory and not its content.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, Final

from verl_otel._internal import error_boundary

MAX_FACT: Final = 64
"""Characters of a shape, a dtype or a device."""
_SIZED: Final[tuple[Any, ...]] = (bytes, bytearray, dict, list, tuple, set, frozenset, deque, range)
"""Types with a cheap ``__len__``."""
_BATCHES: Final = ("verl", "tensordict")
"""Packages whose batches have a cheap ``__len__``."""
_LIBRARIES: Final = frozenset({"numpy", "torch"})
"""Packages whose dtypes and devices may be converted to text."""
_STANDARD: Final = frozenset({"datetime", "decimal", "fractions", "ipaddress", "pathlib", "uuid", "zoneinfo"})
"""Modules of the standard library whose objects have a short text."""


def describe(value: object) -> str:
    """Return type and size of any object. Never raises.

    Example:
        describe(torch.zeros(2, 3, device="cuda")) == "<Tensor shape=(2, 3) dtype=torch.float32 device=cuda:0>"
    """
    kind = type(value)
    try:
        name = kind.__name__
        facts = _size(kind, value) or _layout(kind, value)
    except Exception as error:  # a metaclass may raise
        error_boundary.may_propagate(error)
        name, facts = _name(kind), ""
    return f"<{name}{facts}>"


def describe_value(value: object) -> str | None:
    """Return the text of an enum or of a short value of the standard library (a date, a path, a UUID), None for other types."""
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{value._name_}"  # type: ignore[attr-defined]  # all members have it
    return str(value) if root_of(kind) in _STANDARD else None


def root_of(kind: type) -> str:
    """Return the top-level package or module of a class."""
    return kind.__module__.partition(".")[0]


def _name(kind: type) -> str:
    try:
        return str(type.__getattribute__(kind, "__name__"))
    except Exception as error:
        error_boundary.may_propagate(error)
        return "object"


def _size(kind: type, value: Any) -> str:
    for base in _SIZED:
        if issubclass(kind, base):
            return f" len={base.__len__(value)}"
    if root_of(kind) in _BATCHES and "__len__" in vars(kind):
        return f" len={len(value)}"
    return ""


def _layout(kind: type, value: Any) -> str:
    """Return shape, dtype and device if the class defines them, so that no ``__getattr__`` is called."""
    if not _defines(kind, "shape") or not _defines(kind, "dtype"):
        return ""
    dimensions = ", ".join(repr(size) if type(size) is int else "?" for size in tuple(value.shape)[:8])
    layout = f" shape=({dimensions})"
    for name in ("dtype", "device"):
        fact = getattr(value, name) if _defines(kind, name) else None
        if fact is not None and (type(fact) is str or root_of(type(fact)) in _LIBRARIES):
            layout += f" {name}={str(fact)[:MAX_FACT]}"
    return layout


def _defines(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__)
