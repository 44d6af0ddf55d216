# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans as OTLP/JSON text: lines of ``traces-….jsonl`` and ``open-….jsonl``.

The text is written directly, not by `json.dumps` of objects, which takes three times as long. The text of names, and of attributes
whose values come again, is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring as quote
from typing import Any, Final

from verl_otel.exporting.otlp import encode_json
from verl_otel.exporting.otlp.kept_pairs import KeptPairs
from verl_otel.model import (
    NONE_DROPPED,
    Attributes,
    EventRecord,
    LinkRecord,
    Resource,
    Scope,
    SharedAttributes,
    SpanRecord,
    in_64_bits,
)

MAX_KEPT: Final = 4096
"""Names, keys and trace states whose text is kept; further ones are written each time."""
_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_TRUTH: Final = ('"boolValue":false}}', '"boolValue":true}}')
_keys: dict[str, str] = {}
_names: dict[tuple[str, int], str] = {}
_states: dict[str, str] = {"": ""}


def _key(key: str) -> str:
    text = '{"key":' + quote(key) + ',"value":{'
    if len(_keys) < MAX_KEPT:
        _keys[key] = text
    return text


def _pair(key: str, value: Any) -> str:
    """Return a ``KeyValue`` object."""
    head, kind = _keys.get(key) or _key(key), type(value)
    if kind is str:
        return f'{head}"stringValue":{quote(value)}}}}}'
    if kind is int and in_64_bits(value):
        return f'{head}"intValue":"{value}"}}}}'
    if kind is bool:
        return head + _TRUTH[value]
    if kind is float and value - value == 0.0:  # finite
        return f'{head}"doubleValue":{value!r}}}}}'
    return f"{head}{_dumps(encode_json.value_object(value))[1:]}}}"


_kept_pairs: Final = KeptPairs(_pair)


def _pairs(attributes: Attributes) -> str:
    """Return the elements of a list of ``KeyValue`` objects."""
    get = _kept_pairs.get
    texts = []
    items: Iterable[tuple[str, Any]] = attributes.items()
    for pair in items:
        key, value = pair
        kind = type(value)
        # see `KeptPairs`
        if kind is str or kind is int or (kind is tuple and len(value) == 1 and type(value[0]) is str):
            texts.append(get(pair) or _kept_pairs.make(pair))
        else:
            texts.append(_pair(key, value))
    return ",".join(texts)


def _name(name: str, kind: int) -> str:
    text = f',"name":{quote(name)},"kind":{kind},"attributes":['
    if len(_names) < MAX_KEPT:
        _names[name, kind] = text
    return text


def _head(name: str, kind: int, attributes: Attributes) -> str:
    """Return name, kind and attributes, without the end of the list."""
    return (_names.get((name, kind)) or _name(name, kind)) + _pairs(attributes)


def _state(state: str) -> str:
    text = f',"traceState":{quote(state)}'
    if len(_states) < MAX_KEPT:
        _states[state] = text
    return text


def _dropped(what: str, count: int) -> str:
    return f',"dropped{what}Count":{count}' if count else ""


def _link(link: LinkRecord) -> str:
    return (
        f'{{"traceId":"{link.trace_id:032x}","spanId":"{link.span_id:016x}","attributes":[{_pairs(link.attributes)}],'
        f'"flags":{0x100 | link.flags}{_state(link.trace_state) if link.trace_state else ""}'
        f"{_dropped('Attributes', link.dropped)}}}"
    )


def _event(event: EventRecord) -> str:
    return (
        f'{{"name":{quote(event.name)},"timeUnixNano":"{event.time_ns}","attributes":[{_pairs(event.attributes)}]'
        f"{_dropped('Attributes', event.dropped)}}}"
    )


def _extras(span: SpanRecord) -> str:
    """Return what most spans do not have."""
    text = f',"links":[{",".join(map(_link, span.links))}]' if span.links else ""
    if span.events:
        text += f',"events":[{",".join(map(_event, span.events))}]'
    if span.status or span.message:
        message = f',"message":{quote(span.message)}' if span.message else ""
        text += f',"status":{{"code":{span.status}{message}}}'
    return text + "".join(map(_dropped, ("Attributes", "Events", "Links"), span.dropped))


def span_texts(spans: Iterable[SpanRecord]) -> list[str]:
    """Return each span as a JSON object. An open span has the end time ``"0"``.

    Raises:
        Exception: A span cannot be encoded, whatever is wrong with it.
    """
    texts: list[str] = []
    last_trace = last_parent = -1
    trace = parent = ""
    for span in spans:
        (
            trace_id, span_id, parent_id, name, kind, start, end, attributes, links, events, status, message, flags, state,
            _, dropped,
        ) = span  # fmt: skip
        if trace_id != last_trace:
            last_trace, trace = trace_id, f'{{"traceId":"{trace_id:032x}","spanId":"'
        if parent_id != last_parent:
            last_parent, parent = parent_id, f'","parentSpanId":"{parent_id:016x}"' if parent_id else '"'
        if type(attributes) is SharedAttributes:
            known_name, known_kind, head = attributes.kept_text
            if known_name is not name or known_kind != kind:
                head = _head(name, kind, attributes)
                attributes.kept_text = (name, kind, head)
        else:
            head = (_names.get((name, kind)) or _name(name, kind)) + _pairs(attributes)
        rest = "" if not state else _states.get(state) or _state(state)
        if events or links or status or message or dropped is not NONE_DROPPED:
            rest += _extras(span)
        texts.append(
            f'{trace}{span_id:016x}{parent}{head}],"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}",'
            f'"flags":{0x100 | flags}{rest}}}'
        )
    return texts


def traces_line(resource: Resource, scope: Scope, spans: Iterable[SpanRecord]) -> bytes:
    """Return a ``TracesData`` object with the spans of each scope apart, as one line with its newline."""
    by_scope: dict[Scope, list[SpanRecord]] = {}
    for span in spans:
        by_scope.setdefault(span.scope or scope, []).append(span)
    scopes = ",".join(
        f'{{"scope":{_dumps(encode_json.scope_object(span_scope))},"spans":[{",".join(span_texts(group))}]'
        + (f',"schemaUrl":{quote(span_scope.schema_url)}' if span_scope.schema_url else "")
        + "}"
        for span_scope, group in by_scope.items()
    )
    attributes = _pairs(resource.attributes)
    text = f'{{"resourceSpans":[{{"resource":{{"attributes":[{attributes}]}},"scopeSpans":[{scopes}]}}]}}\n'
    return text.encode("utf-8", "replace")
