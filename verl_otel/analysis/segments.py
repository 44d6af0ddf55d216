# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the time of a span is called on a critical path: each span says it by its name, or takes it from the spans above it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from verl_otel.model import Attributes, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

PHASE_PREFIX: Final = SPANS["phase"].name
CALL_PREFIX: Final = SPANS["call"].name
_PREFIXES: Final = (
    (PHASE_PREFIX, "phase"),
    (CALL_PREFIX, "call"),
    (SPANS["worker"].name, "worker"),
    (SPANS["tool"].name, "tool"),
    ("chat ", "llm"),
    ("text_completion ", "llm"),
)

_FIXED: Final = {
    SPANS["step"].name: "step",
    SPANS["weight_sync"].name: "weight_sync",
    SPANS["checkpoint"].name: "checkpoint",
    SPANS["validation"].name: "validation",
    SPANS["trajectory"].name: "trajectory",
    SPANS["generate"].name: "server",
    SPANS["reward"].name: "reward",
    SPANS["turn"].name: "turn",
    SPANS["consume"].name: "above",
    "llm_request": "server",
}
"""Spans whose name is their kind; ``turn`` and ``above`` are none of `facts.KINDS`: their time belongs to the span above."""

CLOSED: Final = frozenset(("llm", "server", "tool", "reward"))
"""Whatever happens below these is theirs: people know the tool, not the HTTP client in it, and engines write ids into names."""

MAYBE_LLM: Final = "llm?"
"""Kind of a span that names a model and is not ours: an LLM call, unless something closed lies above it."""

_QUEUE: Final = "gen_ai.latency.time_in_queue"
_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
_DECODE: Final = "gen_ai.latency.time_in_model_decode"
"""vLLM writes all three onto ``llm_request``, SGLang all but the queue onto the span of the request (0.5.12)."""

_LONGEST: Final = 1e9
"""Seconds of a state beyond which it is nonsense: thirty years."""


class Place(NamedTuple):
    """What the own time of a span is."""

    kind: str = "unknown"
    name: str = ""
    phase: str = ""
    trace_id: int = 0
    turn: int | None = None
    span_id: int = 0


NOWHERE: Final = Place()
"""Above a root."""


def find_place(span: SpanRecord, above: Place) -> Place:
    """Return what the own time of a span is, below a span whose own time is ``above``."""
    kind, name = find_kind(span.name, span.attributes)
    if kind == "above" or (kind in ("", MAYBE_LLM) and above.kind in CLOSED):
        return above
    phase, trace_id, turn = above.phase, above.trace_id, above.turn
    if kind == "phase":
        phase = phase or name
    elif kind == "trajectory":
        trace_id = trace_id or span.trace_id
    elif kind == "turn":
        index = read_whole(span.attributes.get(attr.TURN_INDEX))
        turn = turn if index is None else index
        return Place(above.kind, above.name, phase, trace_id, turn, span.span_id)
    elif kind == MAYBE_LLM:
        kind = "llm"
    return Place(kind or above.kind, name, phase, trace_id, turn, span.span_id)


def read_whole(value: object) -> int | None:
    """Return a number as a whole one; None where it is none."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return int(value) if is_whole else None  # type: ignore[call-overload]  # one of the two


def find_kind(name: str, attributes: Attributes) -> tuple[str, str]:
    """Return what a span says of its own time: kind and name. ``above`` and `MAYBE_LLM` are what the kind says; empty: nothing."""
    kind, rest = _read(name)
    if kind == "llm" and not (attr.GEN_AI_OPERATION in attributes or attr.GEN_AI_MODEL in attributes):
        kind, rest = "", name
    if kind == "reward":
        return kind, str(attributes.get(attr.DATA_SOURCE, ""))
    if kind:
        return kind, rest
    if attr.GEN_AI_TOOL in attributes:
        return "tool", str(attributes[attr.GEN_AI_TOOL])
    if says_engine(attributes):
        return "server", ""
    if attr.GEN_AI_MODEL in attributes:
        return MAYBE_LLM, str(attributes[attr.GEN_AI_MODEL])
    return "", name


@functools.lru_cache(maxsize=4096)
def _read(name: str) -> tuple[str, str]:
    """Return kind and name that a span's name tells; the kind is empty for spans that are not ours."""
    if name in _FIXED:
        return _FIXED[name], ""
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return kind, rest.rpartition(".")[2] if kind == "worker" else rest
    return "", name


def is_engine(span: SpanRecord) -> bool:
    """Return whether an engine wrote onto this span how long the request was in its states."""
    return says_engine(span.attributes)


def says_engine(attributes: Attributes) -> bool:
    """Return whether attributes hold how long a request was in an engine's states."""
    return _DECODE in attributes or _PREFILL in attributes


def split_engine(span: SpanRecord, begin_ns: int, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """Yield the states of an engine's request between two times: kind, begin, end, without a gap, from the first to the last.

    A request arrives, is queued, prefilled and decoded, in this order; what is left is the engine's server. Without a queue
    time the states are laid to the end of the span, because the request ends with its last token.
    """
    queue, prefill, decode = (_nanoseconds(span, key) for key in (_QUEUE, _PREFILL, _DECODE))
    first = span.start_ns if _QUEUE in span.attributes else max(span.start_ns, span.end_ns - prefill - decode)
    bounds = (first, first + queue, first + queue + prefill, first + queue + prefill + decode)
    reached = begin_ns
    for kind, bound in zip(("server", "queue", "prefill", "decode"), bounds, strict=True):
        until = min(bound, end_ns)
        if until > reached:
            yield kind, reached, until
            reached = until
    if end_ns > reached:
        yield "server", reached, end_ns


def _nanoseconds(span: SpanRecord, key: str) -> int:
    value = span.attributes.get(key, 0.0)
    usable = isinstance(value, (int, float)) and math.isfinite(value) and value > 0
    return round(min(value, _LONGEST) * 1e9) if usable else 0  # type: ignore[type-var, operator]  # a number, as just seen
