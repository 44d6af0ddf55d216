# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The encoded form of attributes whose values come again and again, which is most of them: it is kept, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

Encoded = TypeVar("Encoded", bound="str | bytes")

MAX_PAIRS: Final = 4096
"""Pairs of key and value that are kept; further ones are encoded each time."""
VALUES_OF_KEY: Final = 64
"""Values of one key that are kept: further values of it, such as ids, are not expected to come again."""
MAX_SIZE: Final = 128
"""Characters or bytes of an encoded pair that is kept."""


class KeptPairs(Generic[Encoded]):
    """Encoded pairs of key and value. The value is a string, an integer, or a sequence of one string, of exactly these types.

    Truth values and floats must not be looked up: they may equal integers. The caller checks that without a call for each pair.

    Args:
        encode: Returns the encoded form of a key and a value.
    """

    def __init__(self, encode: Callable[[str, Any], Encoded]) -> None:
        self._encode: Callable[[str, Any], Encoded] = encode
        self._known: dict[tuple[str, Any], Encoded] = {}
        self._counts: dict[str, int] = {}
        self.get: Callable[[tuple[str, Any]], Encoded | None] = self._known.get
        """Returns the encoded form of a pair, or None. Not a method, which would cost a call more."""

    def make(self, pair: tuple[str, Any]) -> Encoded:
        """Return the encoded form of a pair that is not known yet, and keep it unless it is long or its key has had many values."""
        key, value = pair
        encoded = self._encode(key, value)
        count = self._counts.get(key, 0)
        if count < VALUES_OF_KEY and len(encoded) < MAX_SIZE and len(self._known) < MAX_PAIRS:
            self._counts[key] = count + 1
            self._known[pair] = encoded
        return encoded
