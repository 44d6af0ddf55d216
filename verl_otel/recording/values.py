# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Turn what users and frameworks hand us into what OpenTelemetry may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verl_otel.model import AttributeValue, in_64_bits, to_float

MAX_TEXT: Final = 4096
"""Characters of a text attribute."""
MAX_ITEMS: Final = 128
"""Items of a sequence attribute."""

_PLAIN: Final = frozenset({str, bool, int, float})


def clean(value: object) -> AttributeValue:
    """Return ``value`` as an attribute value. Never raises.

    Numpy scalars and 0-dim tensors become numbers, sequences of one kind become tuples, everything else becomes text.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value[:MAX_TEXT] if isinstance(value, str) else value  # type: ignore[return-value]  # checked by its type
    try:
        if isinstance(value, str):
            return str.__str__(value)[:MAX_TEXT]  # an enum's own would be the name of its class
        if isinstance(value, (list, tuple)):
            return _clean_sequence(value)
        number = to_number(value)
    except Exception:  # a proxy of what is gone or not there yet fails at everything, even at its class
        return to_text(value)
    return to_text(value) if number is None else number


def _clean_sequence(values: list[Any] | tuple[Any, ...]) -> AttributeValue:
    items = [to_text(_flat(item)) if isinstance(item, (list, tuple)) else clean(item) for item in values[:MAX_ITEMS]]
    kinds = {type(item) for item in items}
    if kinds == {int, float}:
        return tuple(float(item) for item in items)  # type: ignore[arg-type]  # both are numbers
    if len(kinds) <= 1:
        return tuple(items)  # type: ignore[arg-type,return-value]  # one kind of primitive
    return tuple(to_text(item) for item in items)


def _flat(values: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a sequence inside a sequence with what is in it as text: nothing is followed deeper."""
    return tuple(item if type(item) in _PLAIN else to_text(item) for item in values[:MAX_ITEMS])


def to_number(value: object) -> int | float | bool | None:
    """Return a number for anything that is one (numpy scalars and 0-dim tensors too), else None. Never raises.

    A tensor on an accelerator is None: reading it would make the host wait for the device. An integer beyond 64 bits becomes a
    float, infinite beyond all floats.
    """
    if type(value) in (int, float, bool):
        return _fit(value)  # type: ignore[arg-type]  # checked by its type
    try:
        if value is None or isinstance(value, (str, bytes)) or getattr(value, "is_cpu", True) is False:
            return None
        if isinstance(value, int):  # an enum's, a status of HTTP
            return _fit(int(value))
        item = getattr(value, "item", None)
        if callable(item):
            found = item()
            return _fit(found) if isinstance(found, (bool, int, float)) else None
        return float(value)  # type: ignore[arg-type]  # whatever has __float__
    except Exception:
        return None


def _fit(number: float) -> float:
    return number if not isinstance(number, int) or in_64_bits(number) else to_float(number)


def to_text(value: object) -> str:
    """Return any value as bounded text. Never raises."""
    try:
        return str(value)[:MAX_TEXT]
    except Exception:
        return f"<{type(value).__name__}>"


def error_name(error: BaseException) -> str:
    """Return the qualified class name of an exception, as ``error.type`` wants it (builtins without a module)."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_cancellation(error: BaseException) -> bool:
    """Return whether an exception only says that work was cancelled. Known by name: asyncio may never be loaded."""
    return isinstance(error, GeneratorExit) or any(
        kind.__name__ == "CancelledError" and kind.__module__.startswith(("asyncio.", "concurrent.futures."))
        for kind in type(error).__mro__
    )


def first(mapping: Mapping[str, Any], *names: str) -> Any:
    """Return the first present and not-None value under one of several names, else None."""
    for name in names:
        value = mapping.get(name)
        if value is not None:
            return value
    return None
