# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Classifies the own time of a span on a critical path: by its name, or by the spans above it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from verl_otel.analysis.traces.span_names import (
    BETWEEN,
    CALL_PREFIX,
    CHECKPOINT,
    CONSUME,
    DATA_LOADING,
    GENERATE,
    LOGGING,
    PHASE_PREFIX,
    REWARD,
    STEP,
    TOOL_PREFIX,
    TRAJECTORY,
    TURN,
    VALIDATION,
    WEIGHT_SYNC,
    WORKER_PREFIX,
)
from verl_otel.model import Attributes, SpanRecord
from verl_otel.semconv import attributes as attr

_PREFIXES: Final = (
    (PHASE_PREFIX, "phase"),
    (CALL_PREFIX, "call"),
    (WORKER_PREFIX, "worker"),
    (TOOL_PREFIX, "tool"),
    ("chat ", "llm"),
    ("text_completion ", "llm"),
)

_FIXED: Final = {
    STEP: "step",
    WEIGHT_SYNC: "weight_sync",
    CHECKPOINT: "checkpoint",
    VALIDATION: "validation",
    BETWEEN: "between",
    LOGGING: "logging",
    DATA_LOADING: "data_loading",
    TRAJECTORY: "trajectory",
    "chat": "llm",
    "text_completion": "llm",
    GENERATE: "server",
    REWARD: "reward",
    TURN: "turn",
    CONSUME: "above",
    "llm_request": "server",
}
"""Spans whose name determines their kind; ``turn`` and ``above`` are none of `model.KINDS`: their time belongs to the parent."""

_NAMED_BY: Final = {"reward": attr.DATA_SOURCE, "logging": attr.TRACKER}
"""Attributes that name what spans of a kind belong to."""

CLOSED: Final = frozenset(("llm", "server", "tool", "reward"))
"""Descendants of these are attributed to them: users know the tool, not the HTTP client in it, and engines put ids into names."""

MAYBE_LLM: Final = "llm?"
"""Kind of a foreign span that names a model: an LLM call, unless an ancestor is in `CLOSED`."""

_QUEUE: Final = "gen_ai.latency.time_in_queue"
_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
_DECODE: Final = "gen_ai.latency.time_in_model_decode"
"""vLLM writes all three onto ``llm_request``, SGLang all but the queue onto the span of the request (0.5.12)."""

_LONGEST: Final = 1e9
"""Upper limit in seconds for the duration of a state: thirty years."""


class Place(NamedTuple):
    """The classification of a span's own time."""

    kind: str = "unknown"
    name: str = ""
    phase: str = ""
    trace_id: int = 0
    turn: int | None = None
    span_id: int = 0


NOWHERE: Final = Place()
"""The place above a root."""


def find_place(span: SpanRecord, above: Place) -> Place:
    """Return the place of a span below a span with the place ``above``."""
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
    """Return a value as an integer; None where it is not a finite number."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return int(value) if is_whole else None  # type: ignore[call-overload]  # one of the two


def find_kind(name: str, attributes: Attributes) -> tuple[str, str]:
    """Return kind and name of a span's own time. The kind may be ``above`` or `MAYBE_LLM`; empty: unknown."""
    kind, rest = _read(name)
    if kind == "llm" and not (attr.GEN_AI_OPERATION in attributes or attr.GEN_AI_MODEL in attributes):
        kind, rest = "", name  # a span of the user's that happens to be called so
    if kind in _NAMED_BY:
        return kind, str(attributes.get(_NAMED_BY[kind], ""))
    if kind:
        return kind, rest
    if attr.GEN_AI_TOOL in attributes:
        return "tool", str(attributes[attr.GEN_AI_TOOL])
    if is_engine(attributes):
        return "server", ""
    if attr.GEN_AI_MODEL in attributes:
        return MAYBE_LLM, str(attributes[attr.GEN_AI_MODEL])
    return "", name


@functools.lru_cache(maxsize=4096)
def _read(name: str) -> tuple[str, str]:
    """Return kind and name by a span's name; the kind is empty for foreign spans."""
    if name in _FIXED:
        return _FIXED[name], ""
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return kind, rest.rpartition(".")[2] if kind == "worker" else rest
    return "", name


def is_engine(attributes: Attributes) -> bool:
    """Return whether attributes contain how long a request was in the states of an engine."""
    return _DECODE in attributes or _PREFILL in attributes


def split_engine(span: SpanRecord, begin_ns: int, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """Yield the states of an engine request between two times: kind, begin, end, without a gap, in the order of time.

    A request arrives, is queued, prefilled and decoded, in this order; what is left is the engine's server. Without a queue
    time the states are aligned with the end of the span, because the request ends with its last token.
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
