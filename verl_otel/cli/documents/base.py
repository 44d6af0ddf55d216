# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents that commands print with ``--json``, one class each: all of it is part of the public interface.

Durations are in seconds, times in seconds since 1970 unless a description says otherwise, ids in hexadecimal. Unknown
values are null.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from verl_otel.analysis.document import Document, about
from verl_otel.semconv import kinds
from verl_otel.semconv.run_state import CRASHED, ENDED, NO_END, WORDS

SCHEMA_VERSION: Final = 1
"""It is increased when a key is removed or changes its meaning."""
STATES: Final = ", ".join((*WORDS.values(), CRASHED, ENDED, NO_END))
"""States of a run."""


class Answer(Document):
    """What a command prints with ``--json``."""

    schema_version: Annotated[int, about("increased when a key is removed or changes its meaning")]


class Cause(Document):
    """One cause of a long step; the largest saving first."""

    step: int | None
    step_seconds: float
    kind: Annotated[str, about(", ".join(kinds.VERDICTS))]
    subject: Annotated[str, about("what delayed the step")]
    cause: Annotated[str, about(f"kind of work that took the time: {', '.join(kinds.WORK)}")]
    cause_name: str
    seconds: Annotated[float, about("excess over its peers")]
    saved: Annotated[float, about("by how much the step would have been shorter")]
    next: Annotated[str, about("what to do about it")]


Kind = TypeVar("Kind", bound=Document)
RunId = Annotated[str, about("id of the run")]
State = Annotated[str, about(STATES)]
Missing = Annotated[tuple[str, ...], about("sentences about data that is not there")]
Orphans = Annotated[int, about("spans whose parent is in no file")]
Folders = Annotated[tuple[str, ...], about("folders, or files, that were read")]
Attempt = Annotated[int, about("attempt of the run, from 1")]
Repeated = Annotated[
    bool, about("a later attempt went on from an earlier checkpoint, and trains it again or ended before")
]
Failed = Annotated[bool, about("it ended with an exception, or was interrupted")]
Interrupted = Annotated[bool, about("it was cut off from outside, as by Ctrl-C")]
ErrorType = Annotated[str, about("type of the exception; empty: none")]
Phases = Annotated[dict[str, float], about("seconds by phase, within the step")]


def fill(kind: type[Kind], record: object, /, **others: Any) -> Kind:
    """Return a document with the attributes of a record that are called as its keys; records in it become documents.

    Args:
        kind: Class of the document.
        record: What is described.
        others: Values of the keys that are named differently there, or not there.
    """
    others = {"schema_version": SCHEMA_VERSION, **others}
    values = {
        field: _convert(hint, others[field] if field in others else getattr(record, field))
        for field, hint in _hints(kind).items()
    }
    return kind(**values)


@functools.cache
def _hints(kind: type[Document]) -> dict[str, Any]:
    return get_type_hints(kind)


def _convert(hint: Any, value: Any) -> Any:
    """Return a value as its type in a document says."""
    origin, of = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        return _convert(of[0], value)
    if origin is tuple:
        return tuple(_convert(of[0], item) for item in value)
    if origin is dict:
        return {str(key): _convert(of[1], item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Document) and not isinstance(value, hint):
        return fill(hint, None, **value) if isinstance(value, Mapping) else fill(hint, value)
    return value


def to_plain(document: Document) -> Any:
    """Return a document as plain data for JSON; numbers that JSON does not support are null."""
    # The hook is for `Unbounded`.
    return _make_finite(msgspec.to_builtins(document, str_keys=True, enc_hook=float))


def _make_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _make_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- JSON Schema --


def make_schema(name: str, kind: type[Document]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document, without references.

    Args:
        name: Name of the command.
        kind: Class of the document.
    """
    schema = msgspec.json.schema(kind)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:verl-otel:{'-'.join(name.split()).replace('---', '-')}:{SCHEMA_VERSION}",
        "title": f"verl-otel {name} --json",
    }
    return {**head, **_inline(schema, schema.get("$defs", {}))}


def _inline(schema: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose references are replaced by what they refer to; what may be null has two types."""
    given = {key: value for key, value in schema.items() if key not in ("$defs", "$ref", "anyOf", "title", "default")}
    if given.pop("nullable", False):
        given["type"] = [given["type"], "null"]
    if "$ref" in schema:
        named = known[schema["$ref"].rpartition("/")[2]]
        return {**_inline(named, known), **given}
    if "anyOf" in schema:
        first = _inline(schema["anyOf"][0], known)
        merged = {**first, **given, "type": [first["type"], "null"]}
        return {**{key: merged[key] for key in ("description", "type") if key in merged}, **merged}
    if "properties" in schema:
        given["properties"] = {key: _inline(value, known) for key, value in schema["properties"].items()}
        given["required"] = list(schema["properties"])
    if isinstance(schema.get("additionalProperties"), dict):
        given["additionalProperties"] = _inline(schema["additionalProperties"], known)
    if "items" in schema:
        given["items"] = _inline(schema["items"], known)
        if "description" not in given and "description" in given["items"]:  # the class says what the list holds
            given["description"] = given["items"].pop("description")
    return {**{key: given[key] for key in ("description", "type") if key in given}, **given}


def name_id(trace_id: int) -> str | None:
    """Return an id in hexadecimal; None where it is unknown."""
    return f"{trace_id:032x}" if trace_id else None


class Summed(Document):
    """Parts by kind and name, the longest first."""

    kind: Annotated[str, about("kind of work")]
    name: Annotated[str, about("tool, phase, method")]
    seconds: float


def sum_parts(parts: Iterable[tuple[str, str, int]]) -> list[Summed]:
    """Return parts in nanoseconds as rows in seconds."""
    return [Summed(kind=kind, name=name, seconds=nanoseconds / 1e9) for kind, name, nanoseconds in parts]


class HeldSteps(Document):
    """Steps of one run."""

    steps: Annotated[int, about("that took longer than usual")]
    late: Annotated[int, about("steps after which the next one started late")]
    of: Annotated[int, about("all steps")]
    seconds: Annotated[float, about("by how much, in all")]
    text: Annotated[str, about("the same as a sentence")]
