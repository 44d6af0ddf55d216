# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Content in the user's ordinary OpenTelemetry spans, removed unless ``VERL_OTEL_CAPTURE_CONTENT`` is on.

Removed are exception messages and stacks, descriptions of a status, and the attributes that by OpenTelemetry's or another common
convention hold prompts, answers, tool arguments, bodies, queries of databases and credentials. URLs lose their login and query.
Types of exceptions, names of models, numbers of tokens and all other attributes stay.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Final

from verl_otel._internal.masking import MASK, mask_text, mask_url
from verl_otel.model import AttributeValue, EventRecord, SpanRecord
from verl_otel.semconv import attributes as attr

_CONTENT: Final = re.compile(
    r"exception\.(?:message|stacktrace)|error\.(?:message|stack)"
    r"|gen_ai\.(?:prompt|completion|content|input\.messages|output\.messages|system_instructions|tool\.definitions"
    r"|tool\.call\.(?:arguments|result)|retrieval\.(?:documents|query\.text)|evaluation\.explanation"
    r"|(?:system|user|assistant|tool)\.message|choice|event\.content|request\.instructions)(?:\..*)?"
    r"|gen_ai\.(?:prompt|completion|event)[._].*content.*"
    r"|llm\.(?:input_messages|output_messages|prompts?|completions?|prompt_template|invocation_parameters|function_call)(?:\..*)?"
    r"|(?:input|output)\.value|(?:message|embedding|document)\.(?:content|contents|text)(?:\..*)?|retrieval\.documents(?:\..*)?"
    r"|tool\.(?:parameters|arguments|result)|traceloop\.entity\.(?:input|output)|tool_(?:arguments|response)"
    r"|all_messages_events|final_result|logfire\.msg|logfire\.json_schema"
    r"|db\.(?:statement|query\.text|query\.parameter\..*|statement\.parameters|operation\.parameter\..*)"
    r"|(?:http|rpc|messaging)\.?(?:request|response|message)?\.(?:body|payload|content)(?:\..*)?"
    r"|http\.(?:request|response)\.(?:body|header|headers|cookies)\..*|rpc\.grpc\.(?:request|response)\.metadata\..*"
    r"|enduser\..*|process\.environment_variable\..*"
)
"""Names of attributes that are removed, whole. ``http.request.body.size`` is a number and stays."""
_URL: Final = frozenset(
    ("url.full", "url.original", "http.url", "http.target", "http.referer", "url.path", "db.connection_string")
)
_QUERY: Final = frozenset(("url.query", "url.fragment"))
_COMMANDS: Final = frozenset(("process.command", "process.command_line", "process.command_args"))
_KEPT_IN_EVENTS: Final = frozenset(
    ("gen_ai.system", attr.GEN_AI_PROVIDER, attr.GEN_AI_OPERATION, "role", "id", "index", "finish_reason")
)
"""Attributes of an event of a language model (``gen_ai.user.message``) that stay: its others are the message."""


def remove_content(span: SpanRecord) -> SpanRecord:
    """Return a span without content; the same object if it holds none."""
    attributes = clean_attributes(span.attributes)
    if attributes is span.attributes and not (span.events or span.links or span.message):
        return span
    events = tuple(map(_clean_event, span.events))
    links = tuple(
        link if (kept := clean_attributes(link.attributes)) is link.attributes else link._replace(attributes=kept)
        for link in span.links
    )
    if attributes is span.attributes and not span.message and events == span.events and links == span.links:
        return span
    return span._replace(attributes=attributes, events=events, links=links, message="")


def _clean_event(event: EventRecord) -> EventRecord:
    if event.name.startswith("gen_ai."):
        kept = {key: value for key, value in event.attributes.items() if key in _KEPT_IN_EVENTS}
        return event._replace(attributes=kept)
    attributes = clean_attributes(event.attributes)
    return event if attributes is event.attributes else event._replace(attributes=attributes)


def clean_attributes(attributes: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
    """Return attributes without content and with masked URLs; the same object if there is nothing to remove."""
    for key, value in attributes.items():
        if _find_rule(key) is not _PLAIN or (type(value) is str and "://" in value):
            break
    else:
        return attributes
    cleaned: dict[str, AttributeValue] = {}
    changed = False
    for key, value in attributes.items():
        kept = _find_rule(key)(value)
        changed = changed or kept is not value
        if kept is not None:
            cleaned[key] = kept
    return cleaned if changed else attributes


def _remove(value: AttributeValue) -> AttributeValue | None:
    return None if isinstance(value, (str, tuple)) else value  # a number is a size, and no content


def _mask_address(value: AttributeValue) -> AttributeValue:
    return _same(value, mask_url(value)) if isinstance(value, str) else value


def _mask_query(value: AttributeValue) -> AttributeValue:
    return MASK if value else value


def _mask_plain(value: AttributeValue) -> AttributeValue:
    return _same(value, mask_text(value)) if isinstance(value, str) and "://" in value else value


def _same(value: str, masked: str) -> str:
    return value if masked == value else masked


_Rule = Callable[[AttributeValue], "AttributeValue | None"]
_PLAIN: Final[_Rule] = _mask_plain


@functools.lru_cache(maxsize=4096)
def _find_rule(key: str) -> _Rule:
    """Return what is done with the value of an attribute; a process meets a few hundred names."""
    if key in _COMMANDS or _CONTENT.fullmatch(key):
        return _remove
    if key in _URL:
        return _mask_address
    return _mask_query if key in _QUERY else _PLAIN
