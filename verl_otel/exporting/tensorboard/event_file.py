# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The format of TensorBoard's event files: TFRecords of ``Event`` messages (tensorboard/compat/proto: event, summary).

Written directly, so that neither TensorBoard nor TensorFlow is a dependency.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.exporting.otlp.protobuf import field, text, varint

_POLYNOMIAL: Final = 0x82F63B78
"""CRC-32C (Castagnoli), reversed."""
_MASK: Final = 0xA282EAD8
_BITS: Final = 0xFFFFFFFF
VERSION: Final = "brain.Event:2"
_START: Final = b"\x08\x01"
"""``SessionLog`` with the status START: readers discard the events from its step on."""
_STRING: Final = b"\x08\x07" + field(2, field(2, b"\x08\x01"))
"""``TensorProto`` of one string."""
_TEXT_PLUGIN: Final = field(1, field(1, text("text"))) + b"\x20\x02"
"""``SummaryMetadata`` of a tensor for TensorBoard's page of texts."""
_double = struct.Struct("<d").pack
_float = struct.Struct("<f").pack
_length = struct.Struct("<Q").pack
_checksum = struct.Struct("<I").pack
_LARGEST: Final = 3.4028234e38
"""Largest finite number of 32 bits."""


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE: Final = _make_table()


class Distribution(NamedTuple):
    """A histogram: ``counts`` has one entry for each upper bound of ``limits``."""

    limits: Sequence[float]
    counts: Sequence[float]
    minimum: float
    maximum: float
    total: float
    squares: float
    """Sum of the squares of the values."""


def make_distribution(values: Sequence[float], bins: int = 16) -> Distribution:
    """Return the histogram of finite values.

    Args:
        values: At least one.
        bins: Number of bins of equal width.
    """
    low, high = min(values), max(values)
    width = (high - low) / bins
    limits = [low + width * number for number in range(1, bins)] + [high] if width else [high]
    counts = [0.0] * len(limits)
    for value in values:
        place = min(int((value - low) / width), bins - 1) if width else 0
        counts[place] += 1
    return Distribution(limits, counts, low, high, sum(values), sum(value * value for value in values))


def encode_start(wall_time: float, step: int | None = None) -> bytes:
    """Return the first record of a file; with a step, also the record that makes readers discard what they have from that step on."""
    version = _record(b"\x09" + _double(wall_time) + field(3, text(VERSION)))
    if step is None:
        return version
    return version + encode_restart(wall_time, step)


def encode_restart(wall_time: float, step: int) -> bytes:
    """Return the record of a training that goes back to a step."""
    return _record(_head(wall_time, step) + field(7, _START))


def encode_step(
    wall_time: float, step: int, scalars: Mapping[str, float], distributions: Mapping[str, Distribution] | None = None
) -> bytes:
    """Return the record of one step.

    Args:
        wall_time: Seconds since 1970.
        step: Number of the step, not negative.
        scalars: Values by tag.
        distributions: Histograms by tag.
    """
    values = [field(1, field(1, text(tag)) + b"\x15" + _float(_fit(value))) for tag, value in scalars.items()]
    for tag, histogram in (distributions or {}).items():
        values.append(field(1, field(1, text(tag)) + field(5, _encode_distribution(histogram))))
    return _record(_head(wall_time, step) + field(5, b"".join(values)))


def encode_texts(wall_time: float, step: int, texts: Mapping[str, str]) -> bytes:
    """Return the record of texts of one step.

    Args:
        wall_time: Seconds since 1970.
        step: Number of the step, not negative.
        texts: Texts in Markdown by tag.
    """
    values = [
        field(1, field(1, text(tag)) + field(8, _STRING + field(8, text(content))) + field(9, _TEXT_PLUGIN))
        for tag, content in texts.items()
    ]
    return _record(_head(wall_time, step) + field(5, b"".join(values)))


def _fit(value: float) -> float:
    """Return a number that 32 bits can hold; beyond them it is infinite."""
    return value if abs(value) <= _LARGEST or value != value else float("inf") * (1 if value > 0 else -1)


def _head(wall_time: float, step: int) -> bytes:
    return b"\x09" + _double(wall_time) + b"\x10" + varint(max(0, step))


def _encode_distribution(histogram: Distribution) -> bytes:
    numbers = (histogram.minimum, histogram.maximum, sum(histogram.counts), histogram.total, histogram.squares)
    out = b"".join(bytes((number << 3 | 1,)) + _double(value) for number, value in enumerate(numbers, 1))
    out += field(6, b"".join(map(_double, histogram.limits)))
    return out + field(7, b"".join(map(_double, histogram.counts)))


def _record(event: bytes) -> bytes:
    length = _length(len(event))
    return length + _masked(length) + event + _masked(event)


def _masked(data: bytes) -> bytes:
    crc, table = _BITS, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= _BITS
    return _checksum(((crc >> 15 | crc << 17) + _MASK) & _BITS)
