# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans as OTLP bytes, the part that costs: a kept span is encoded once, and there may be a hundred thousand of them a step.

Most spans are plain: no event, no link, no status. Such a span is four pieces. What all spans of one place share (name, kind and
attributes) is encoded once and kept with their attributes; what all children of a span share, once a request; times are packed
at once. Fields may stand in any order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from verl_otel.exporting.otlp.protobuf import Names, field, key_values, text, varint
from verl_otel.model import NONE_DROPPED, REMOTE, Attributes, EventRecord, LinkRecord, SharedAttributes, SpanRecord

_REMOTE_KNOWN: Final = 0x100
"""Span flag that says that the "is remote" bit is known; the SDK writes these two bits and no others."""
_fixed64 = struct.Struct("<Q").pack
_fixed32 = struct.Struct("<I").pack
_id = struct.Struct(">Q").pack  # ids are big-endian, all else is little-endian
_tail = struct.Struct("<cQcQ8s").pack
_PREFIXES: Final = tuple(b"\x12" + varint(size) for size in range(1024))
"""Tag and length of a span, by its length."""
_LOCAL: Final = b"\x85\x01" + _fixed32(_REMOTE_KNOWN) + b"\x12\x08"
_REMOTE: Final = b"\x85\x01" + _fixed32(_REMOTE_KNOWN | REMOTE) + b"\x12\x08"
"""Flags of a span, by where its parent lives, and what is before its id."""
_root = struct.Struct(">2sQQ").pack
_child = struct.Struct(">2sQQ2sQ").pack
_LOW: Final = (1 << 64) - 1
_names: Final = Names(5)
_states: Final = Names(3)


def _event(event: EventRecord) -> bytes:
    out = b"\x09" + _fixed64(event.time_ns) + field(2, text(event.name)) + key_values(3, event.attributes.items())
    return out + b"\x20" + varint(event.dropped) if event.dropped else out


def _link(link: LinkRecord) -> bytes:
    out = field(1, link.trace_id.to_bytes(16, "big")) + field(2, link.span_id.to_bytes(8, "big"))
    if link.trace_state:
        out += field(3, text(link.trace_state))
    out += key_values(4, link.attributes.items())
    if link.dropped:
        out += b"\x28" + varint(link.dropped)
    return out + b"\x35" + _fixed32(_REMOTE_KNOWN | link.flags & REMOTE)


def _extras(span: SpanRecord) -> bytes:
    """Return what most spans do not have."""
    out = b"".join([field(11, _event(event)) for event in span.events])
    out += b"".join([field(13, _link(link)) for link in span.links])
    if span.status or span.message:
        message = field(2, text(span.message)) if span.message else b""
        out += field(15, message + (b"\x18" + varint(span.status) if span.status else b""))
    for tag, count in zip((b"\x50", b"\x60", b"\x70"), span.dropped, strict=True):
        out += tag + varint(count) if count else b""
    return out


def _family(trace_id: int, parent_id: int, trace_state: str) -> bytes:
    """Return what all children of a span share."""
    high, low = trace_id >> 64, trace_id & _LOW
    out = _child(b"\x0a\x10", high, low, b"\x22\x08", parent_id) if parent_id else _root(b"\x0a\x10", high, low)
    return out + (_states.get(trace_state) or _states.make(trace_state)) if trace_state else out


def _head(name: str, kind: int, given: Attributes) -> bytes:
    """Return what all spans of a place share."""
    return (_names.get(name) or _names.make(name)) + b"\x30" + varint(kind) + key_values(9, given.items())


def encode_spans(spans: Iterable[SpanRecord]) -> list[bytes]:
    """Return each span as field 2 of a ``ScopeSpans`` message.

    Raises:
        Exception: A span cannot be encoded, whatever is wrong with it.
    """
    encoded: list[bytes] = []
    families: dict[tuple[int, int, str], bytes] = {}
    last_parent = last_trace = -1
    last_state = ""
    family = b""
    for span in spans:
        (
            trace_id, span_id, parent_id, name, kind, start, end, attributes, links, events, status, message, flags, state,
            _, dropped,
        ) = span  # fmt: skip
        if parent_id != last_parent or trace_id != last_trace or state != last_state:
            last_parent, last_trace, last_state = parent_id, trace_id, state
            key = (trace_id, parent_id, state)
            cached = families.get(key)
            if cached is None:
                cached = families[key] = _family(trace_id, parent_id, state)
            family = cached
        if type(attributes) is SharedAttributes:
            known_name, known_kind, head = attributes.kept
            if known_name is not name or known_kind != kind:
                head = _head(name, kind, attributes)
                attributes.kept = (name, kind, head)
        else:
            head = _head(name, kind, attributes)
        body = family + head + _tail(b"\x39", start, b"\x41", end, _REMOTE if flags & REMOTE else _LOCAL) + _id(span_id)
        if events or links or status or message or dropped is not NONE_DROPPED:
            body += _extras(span)
        size = len(body)
        encoded.append((_PREFIXES[size] if size < len(_PREFIXES) else b"\x12" + varint(size)) + body)
    return encoded
