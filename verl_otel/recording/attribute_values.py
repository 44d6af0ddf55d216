# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion of arbitrary values to attribute values, names and numbers.

Text, numbers, enums, dates and paths are recorded by their value, as are lists, tuples and dictionaries of them. Everything else is
described by its type: no code of the object runs, and no array is read. The only exception
are numpy arrays and CPU tensors of one element, which are numbers.

Classes are compared by ``issubclass(type(value), ...)``: ``isinstance`` reads the ``__class__`` of the object, which may raise.
"""

from __future__ import annotations

import enum
import errno
import re
import sys
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from verl_otel._internal import error_boundary, own_code
from verl_otel.model import AttributeValue, fit_64_bits

# -- objects that are not plain values: type and, if cheap, size; content is never read --
# ``str()`` of a tensor on an accelerator waits for the device and contains token ids; that of other objects may do anything. So no code of
# the object runs: no ``__str__``, ``__repr__``, ``__len__`` or ``__getattr__``. Only ``shape``, ``dtype`` and ``device`` of array types are
# read, which describe memory and not its content.

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
        return f"<{kind.__name__}{_size(kind, value) or _layout(kind, value)}>"
    except Exception as error:  # a metaclass may raise
        error_boundary.may_propagate(error)
        return "?"


def describe_value(value: object) -> str | None:
    """Return the text of an enum or of a short value of the standard library (a date, a path, a UUID), None for other types."""
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{value._name_}"  # type: ignore[attr-defined]  # all members have it
    return str(value) if root_of(kind) in _STANDARD else None


def root_of(kind: type) -> str:
    """Return the top-level package or module of a class."""
    return kind.__module__.partition(".")[0]


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


# -- attribute values, names and numbers --

MAX_TEXT: Final = 4096
"""Characters of a text attribute."""
MAX_ITEMS: Final = 128
"""Items of a sequence attribute."""
MAX_SEQUENCE: Final = 4 * MAX_TEXT
"""Characters of all texts of a sequence attribute together."""
MAX_NAME: Final = 256
"""Characters of a name: of a span, an event, an attribute, an exception class."""
MAX_INNER: Final = 256
"""Characters of a text inside a nested sequence or a dictionary."""
OTHER_NAME: Final = "_OTHER"
"""OpenTelemetry's value for a name outside a known set."""
_OF_RAY: Final = "ray.exceptions"
"""Module of the exceptions that stand for one in another process, which is their ``cause``."""
_CANCELLED: Final = ("CancelledError", "TaskCancelledError")
_ERROR_NAME: Final = re.compile(r"[\w.<>]{1,256}")


def coerce_attribute(value: object) -> AttributeValue:
    """Return ``value`` as an attribute value. Never raises, and never reads an array.

    Numpy scalars and CPU tensors of one element become numbers, sequences of one kind become tuples, everything else becomes text.
    """
    kind = type(value)
    if kind is str:
        return value[:MAX_TEXT]  # type: ignore[index,no-any-return]  # checked by its type
    number = to_number(value)
    if number is not None:
        return number
    if issubclass(kind, (list, tuple)):
        try:
            return _coerce_sequence(value)
        except Exception as error:  # another thread changed it
            error_boundary.may_propagate(error)
            return describe(value)
    return to_text(value)


def _coerce_sequence(values: Any) -> AttributeValue:
    items = [coerce_attribute(item) if not _is_container(item) else to_text(item) for item in _first_items(values)]
    kinds = {type(item) for item in items}
    if kinds == {int, float}:
        return tuple(float(item) for item in items)  # type: ignore[arg-type]  # both are numbers
    if len(kinds) == 1 and str not in kinds:
        return tuple(items)  # type: ignore[arg-type]  # one kind of primitive
    return _fit_texts([item if type(item) is str else to_text(item) for item in items])


def _fit_texts(texts: list[str]) -> tuple[str, ...]:
    """Return the texts that fit into `MAX_SEQUENCE`, the last one truncated."""
    room, kept = MAX_SEQUENCE, []
    for text in texts:
        kept.append(text[:room])
        room -= len(text)
        if room <= 0:
            break
    return tuple(kept)


def _is_container(value: object) -> bool:
    return issubclass(type(value), (list, tuple, dict))


def _first_items(values: Any) -> list[Any]:
    base: Any = list if issubclass(type(values), list) else tuple
    return list(islice(base.__iter__(values), MAX_ITEMS))


_NO_NUMBERS: Final = frozenset({type(None), str, dict, list, tuple})
"""Common types without a number."""


def to_number(value: object) -> int | float | bool | None:
    """Return the number that a value is, else None. Never raises, and never waits for a device.

    Numbers are Python's (their subclasses and enums, ``Decimal`` and ``Fraction``, too), numpy's scalars, and numpy arrays and CPU tensors
    of one element. A tensor on an accelerator gives None: reading it would make the host wait. An integer beyond 64 bits becomes a float,
    infinite beyond all floats.
    """
    kind = type(value)
    if kind is float or kind is bool:
        return value  # type: ignore[return-value]  # checked by its type
    if kind is int:
        return value if -1 << 62 < value < 1 << 62 else fit_64_bits(value)  # type: ignore[arg-type,operator,return-value]  # checked by its type
    if kind in _NO_NUMBERS:
        return None
    try:
        return _read_number(kind, value)
    except Exception as error:
        error_boundary.may_propagate(error)
        return None


def _read_number(kind: type, value: Any) -> int | float | bool | None:
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, int):  # also an enum, such as HTTPStatus
        return fit_64_bits(int.__int__(value))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    array, scalar, tensor = (
        getattr(numpy, "ndarray", None),
        getattr(numpy, "generic", None),
        getattr(torch, "Tensor", None),
    )
    number: Any = None
    if scalar is not None and issubclass(kind, scalar):
        number = scalar.item(value)
    elif array is not None and issubclass(kind, array):
        number = array.item(value) if value.size == 1 else None
    elif tensor is not None and issubclass(kind, tensor):
        number = value.item() if value.is_cpu and value.numel() == 1 else None
    elif root_of(kind) in ("decimal", "fractions"):
        number = float(value)
    return fit_64_bits(number) if type(number) in (bool, int, float) else None


def is_host_array(value: object) -> bool:
    """Return whether something is a numpy array or a tensor in the memory of the host, which may be read without waiting."""
    kind = type(value)
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if array is not None and issubclass(kind, array):
        return True
    return tensor is not None and issubclass(kind, tensor) and bool(value.is_cpu)  # type: ignore[attr-defined]  # a tensor's


def to_text(value: object) -> str:
    """Return any value as bounded text: plain values, enums, dates and paths as such, other objects by their type. Never raises."""
    kind = type(value)
    if kind is str:
        return value[:MAX_TEXT]  # type: ignore[index,no-any-return]  # checked by its type
    try:
        for convert in (_plain_text, _container_text):
            text = convert(kind, value)
            if text is not None:
                return text
    except Exception as error:  # another thread changed it, or a metaclass that raises
        error_boundary.may_propagate(error)
        return describe(value)
    return describe(value)


def _plain_text(kind: type, value: Any) -> str | None:
    if value is None or kind is bool:
        return repr(value)
    if issubclass(kind, str):
        return str.__getitem__(value, slice(MAX_TEXT))  # an enum's own text would be the name of its class
    if issubclass(kind, int):
        return repr(fit_64_bits(int.__int__(value)))
    if issubclass(kind, float):
        return repr(float.__float__(value))
    text = describe_value(value)
    return None if text is None else text[:MAX_TEXT]


def _container_text(kind: type, value: Any) -> str | None:
    """Return the text of a list, tuple or dictionary: nothing is followed deeper."""
    if issubclass(kind, dict):
        pairs = islice(dict.items(value), MAX_ITEMS)
        return repr({_to_inner(key): _to_inner(item) for key, item in pairs})[:MAX_TEXT]
    if issubclass(kind, (list, tuple)):
        return repr(tuple(map(_to_inner, _first_items(value))))[:MAX_TEXT]
    return None


class _Bare(str):
    """Text whose ``repr`` has no quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def _to_inner(value: object) -> Any:
    number = to_number(value)
    if number is not None or value is None:
        return number
    if issubclass(type(value), str):
        return to_text(value)[:MAX_INNER]
    return _Bare(describe(value) if _is_container(value) else to_text(value)[:MAX_INNER])


def to_name(value: object) -> str:
    """Return any value as a name: text of bounded length. Never raises."""
    if type(value) is str and len(value) <= MAX_NAME:
        return value
    return to_text(value)[:MAX_NAME]


def to_message(error: BaseException) -> str:
    """Return the message of an exception, without reading an array among its arguments. Never raises.

    If all arguments are plain values, ``__str__`` of the class is used, as in a traceback.
    """
    try:
        arguments = error.args
        if all(type(argument) in _PLAIN or argument is None for argument in arguments):
            return str.__getitem__(str(error), slice(MAX_TEXT))
        return to_text(arguments[0] if len(arguments) == 1 else arguments)
    except Exception as failure:
        error_boundary.may_propagate(failure)
        return describe(error)


_PLAIN: Final = frozenset({str, bool, int, float})


def items_of(mapping: Any) -> list[tuple[Any, Any]]:
    """Return the first `MAX_ITEMS` + 1 pairs of a mapping; none if it is not a mapping. Never raises."""
    if mapping is None:
        return []
    if type(mapping) is dict and len(mapping) <= MAX_ITEMS:
        return list(mapping.items())  # atomic: another thread may change it
    try:
        pairs = dict.items(mapping) if issubclass(type(mapping), dict) else mapping.items()
        return [(key, value) for key, value in islice(pairs, MAX_ITEMS + 1)]
    except Exception as error:
        error_boundary.may_propagate(error)
        return []


def error_name(error: BaseException) -> str:
    """Return the qualified class name of an exception, as ``error.type`` wants it (builtins without a module).

    Names that are too long or not identifiers become ``_OTHER``: code that a model wrote may define classes, and the name becomes a label.
    A group of exceptions is named by the first one, and what Ray raises for an exception in another process by that exception. An error of the
    system without a class of its own, such as a full disk, is named by its code. Never raises.
    """
    try:
        error = own_code.find_first(error)
        if any(base.__module__ == _OF_RAY for base in type(error).__mro__):
            cause = getattr(error, "cause", None)
            error = cause if issubclass(type(cause), BaseException) else error  # type: ignore[assignment]  # as just seen
        kind = type(error)
        module, name = kind.__module__, kind.__qualname__
        full_name = name if module == "builtins" else f"{module}.{name}"
        if type(error) is OSError and (code := errno.errorcode.get(error.errno or 0)):
            full_name = f"{name}.{code}"
        return full_name if _ERROR_NAME.fullmatch(full_name) else OTHER_NAME
    except Exception as failure:
        error_boundary.may_propagate(failure)
        return OTHER_NAME


def is_cancellation(error: BaseException) -> bool:
    """Return whether an exception is a cancellation, or the end of the program by ``sys.exit(0)``, as a handler of SIGTERM calls it.

    Those of asyncio and Ray are compared by name: neither may be loaded.
    """
    try:
        if isinstance(error, SystemExit):
            return error.code in (None, 0)
        return issubclass(type(error), GeneratorExit) or any(
            kind.__name__ in _CANCELLED and kind.__module__.startswith(("asyncio.", "concurrent.futures.", _OF_RAY))
            for kind in type(error).__mro__
        )
    except Exception as failure:  # the module of the class is not text
        error_boundary.may_propagate(failure)
        return False


def first(mapping: Mapping[str, Any], *names: str) -> Any:
    """Return the first value under one of several names that is not None, else None."""
    for name in names:
        value = mapping.get(name)
        if value is not None:
            return value
    return None
