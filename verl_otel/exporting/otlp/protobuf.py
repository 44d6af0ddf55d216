# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Protobuf's wire format, and OTLP's attributes in it: what spans and metrics are made of.

Lengths below 128 take one byte, and nearly all lengths are that small: such bytes are looked up and not made. The bytes of a
key are kept, since a program has few of them, and so are those of values that come again (see `kept_pairs`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from verl_otel.exporting.otlp.kept_pairs import KeptPairs
from verl_otel.model import in_64_bits

SHORT: Final = 0x80
"""Numbers below fit into one byte of a varint; the bit says that another byte follows."""
MAX_KEYS: Final = 4096
"""Keys and names whose bytes are kept; further ones are encoded each time."""
_LOW: Final = (1 << 64) - 1
_TOO_LARGE: Final = 1 << 63
_number = struct.Struct("<3sd").pack
_double = struct.Struct("<d").pack


def varint(number: int) -> bytes:
    """Return an unsigned integer in protobuf's variable-length form."""
    if number < SHORT:
        return BYTES[number]
    if number < SHORT * SHORT:
        return bytes((number & 0x7F | SHORT, number >> 7))
    out = bytearray()
    while number >= SHORT:
        out.append(number & 0xFF | SHORT)
        number >>= 7
    out.append(number)
    return bytes(out)


BYTES: Final = tuple(bytes((number,)) for number in range(SHORT))


def field(number: int, payload: bytes) -> bytes:
    """Return a length-delimited field: text, bytes or a message."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def text(value: str) -> bytes:
    """Return text as protobuf may hold it: lone surrogates become question marks."""
    try:
        return value.encode()  # a third of the cost of naming what to do with errors
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace")


class Names:
    """The bytes of names that come again and again, each as a field."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._known: dict[str, bytes] = {}
        self.get = self._known.get

    def make(self, name: str) -> bytes:
        """Return the bytes of a name that is not known yet, and keep them while there is room."""
        encoded = field(self._number, text(name))
        if len(self._known) < MAX_KEYS:
            self._known[name] = encoded
        return encoded


_keys: Final = Names(1)
_SHORT_TEXT: Final = tuple(b"\x12" + bytes((size + 2,)) + b"\x0a" + bytes((size,)) for size in range(SHORT - 2))
"""What is before the text of a ``KeyValue``'s value, by the length of the text: field 2 with an ``AnyValue``, whose field 1 it is."""
_INTEGER: Final = tuple(b"\x12" + bytes((size + 1,)) + b"\x18" for size in range(11))
"""What is before a number's varint, by the length of that."""
_TRUTH: Final = (b"\x12\x02\x10\x00", b"\x12\x02\x10\x01")


def any_value(value: Any) -> bytes:
    """Return an ``AnyValue`` message."""
    if isinstance(value, str):
        return field(1, text(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value & _LOW) if in_64_bits(value) else field(1, str(value).encode())
    if isinstance(value, float):
        return b"\x21" + _double(value)
    if isinstance(value, (list, tuple)):
        return field(5, b"".join([field(1, any_value(item)) for item in value]))
    return _rare_value(value)


def _rare_value(value: Any) -> bytes:
    """Return what newer SDKs allow in the attributes of a user's own spans."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return field(7, value)
    if isinstance(value, Mapping):
        return field(6, key_values(1, [(str(key), item) for key, item in value.items()]))
    return field(1, text(str(value)))


def _value_field(value: Any) -> bytes:
    """Return field 2 of a ``KeyValue``; the frequent kinds of values without a detour."""
    kind = type(value)
    if kind is str:
        body = text(value)
        size = len(body)
        return _SHORT_TEXT[size] + body if size < SHORT - 2 else field(2, field(1, body))
    if kind is float:
        return _number(b"\x12\x09\x21", value)
    if kind is bool:
        return _TRUTH[bool(value)]
    if kind is int and 0 <= value < _TOO_LARGE:
        number = varint(value)
        return _INTEGER[len(number)] + number
    return field(2, any_value(value))


def _sized(key: str, value: Any) -> bytes:
    """Return a ``KeyValue`` message after its length."""
    pair = (_keys.get(key) or _keys.make(key)) + _value_field(value)
    size = len(pair)
    return (BYTES[size] if size < SHORT else varint(size)) + pair


_pairs: Final = KeptPairs(_sized)


def key_values(number: int, pairs: Iterable[tuple[str, Any]]) -> bytes:
    """Return attributes or labels as ``KeyValue`` messages in a repeated field.

    Args:
        number: Of the field, below 16.
        pairs: Keys and values.
    """
    tag = BYTES[number << 3 | 2]
    get = _pairs.get
    parts: list[bytes] = []
    for pair in pairs:
        key, value = pair
        kind = type(value)
        # see `KeptPairs`
        if kind is str or kind is int or (kind is tuple and len(value) == 1 and type(value[0]) is str):
            parts += tag, get(pair) or _pairs.make(pair)
        else:
            parts += tag, _sized(key, value)
    return b"".join(parts)
