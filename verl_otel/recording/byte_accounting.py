# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of the attributes, events and links of spans, and its limits.

Every span counts as `verl_otel.recording.state.SPAN_BYTES`, which includes a dozen short attributes and a link. Only what goes beyond is
weighed, when it is set, and added to the account of the span and of the process. What exceeds a limit is dropped and counted in the record,
as OpenTelemetry does. A common attribute costs a check of its length.

Limits of one span, besides those of `verl_otel.recording.attribute_values`: 128 attributes, 128 events with 128 attributes each, 128 links,
and 256 KiB of all of them together. Large attributes, events and links of all spans that wait for a drain take no more than half of
``VERL_OTEL_MEMORY_MIB``.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import Any, Final

from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import coerce_attribute, items_of, to_name

MAX_ATTRIBUTES: Final = 128
"""Attributes of one span, event or link, OpenTelemetry's limit. Further ones are dropped and counted."""
MAX_SPAN: Final = 256 << 10
"""Bytes of the attributes, events and links of one span on top of `SPAN_BYTES`."""
FEW: Final = 12
"""Number of small attributes that `SPAN_BYTES` includes."""
SHORT: Final = 40
"""Characters up to which a key or text is small without being weighed; a UUID has 36."""
FREE: Final = 256
"""Bytes up to which an attribute, or the attributes of a link, are small after having been weighed."""
SMALL: Final = 1024
"""Bytes up to which an item may use the reserve: an exception, an outcome."""
RESERVE: Final = 16 << 10
"""Bytes of small items beyond the limit of a span."""
EVENT: Final = 400
LINK: Final = 250
"""Bytes of an event and of a link without attributes."""
ATTRIBUTES, EVENTS, LINKS = range(3)
"""Kinds of dropped items, in the order of `SpanRecord.dropped`."""
_NUMBER: Final = 32
_SLOT: Final = 100
"""Bytes of a dictionary entry, including the reserve of a growing dictionary."""


def weigh(value: AttributeValue) -> int:
    """Return the bytes of an attribute value."""
    if type(value) is str:
        return getsizeof(value)
    if type(value) is tuple:
        return getsizeof(value) + sum(map(getsizeof, value))
    return _NUMBER


def weigh_key(key: str) -> int:
    """Return the bytes of one more key."""
    return getsizeof(key) + _SLOT


def weigh_attributes(attributes: Mapping[str, AttributeValue]) -> int:
    """Return the bytes of attributes."""
    return sum([weigh_key(key) + weigh(value) for key, value in attributes.items()])


def coerce_attributes(attributes: Any) -> dict[str, AttributeValue]:
    """Return the first attributes of a mapping, converted. Never raises."""
    return {to_name(key): coerce_attribute(value) for key, value in items_of(attributes)[:MAX_ATTRIBUTES]}


def count_missing(attributes: Any, kept: dict[str, AttributeValue]) -> int:
    """Return how many attributes of a mapping were not kept. Never raises."""
    if issubclass(type(attributes), dict):
        return max(0, dict.__len__(attributes) - len(kept))
    return max(0, len(items_of(attributes)) - len(kept))
