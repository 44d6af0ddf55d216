# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The critical path: for every moment of a step, the one thing that everything else waited for.

Backwards from the end, the child that finished last is what its parent waited for, from its start; before that, the child that
had finished last by then; what no child covers is the parent's own time. As in CRISP (Zhang et al., "CRISP: Critical Path Analysis
of Large-Scale Microservice Architectures", USENIX ATC 2022) and Jaeger's critical path. Pictures and corners:
``docs/explanation/critical-path.md``.

A span's own time is classified by its name, or by the spans above it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from verl_otel.analysis.model import Segment, Trajectory
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
from verl_otel.analysis.traces.timeline import NOT_KEPT, read_whole
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.what_if import (
    TOLERANCE_NS,
    AwaitedTrajectory,
    clip,
    find_awaited_trajectories,
)
from verl_otel.model import SAMPLED, Attributes, SpanRecord
from verl_otel.semconv import attributes as attr

# -- What the own time of a span is --

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
"""Spans whose name determines their kind; ``turn`` and ``above`` are none of `kinds.WORK`: their time belongs to the parent."""

_BY_NAME: Final = frozenset(("server", "tool", "worker", "call"))
"""The most frequent kinds that a name determines."""
_NAMED_BY: Final = {"reward": attr.DATA_SOURCE, "logging": attr.TRACKER}
"""Attributes that name what spans of a kind belong to."""

CLOSED: Final = frozenset(("llm", "server", "tool", "reward"))
"""Descendants of these are attributed to them: users know the tool, not the HTTP client in it, and engines put ids into names."""

MAYBE_LLM: Final = "llm?"
"""Kind of a foreign span that names a model: an LLM call, unless an ancestor is in `CLOSED`."""
_FOREIGN: Final = ("", MAYBE_LLM)

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
    above_kind, above_name, phase, trace_id, turn, _ = above
    kind, name = _read(span.name)
    if kind in _BY_NAME:
        return _new(Place, (kind, name, phase, trace_id, turn, span.span_id))
    kind, name = find_kind(span.name, span.attributes)
    if kind == "above" or (kind in _FOREIGN and above_kind in CLOSED):
        return above
    if kind == "phase":
        phase = phase or name
    elif kind == "trajectory":
        trace_id = trace_id or span.trace_id
        if not span.flags & SAMPLED:
            kind, name = "unknown", NOT_KEPT
    elif kind == "turn":
        kind, name = above_kind, above_name
        index = read_whole(span.attributes.get(attr.TURN_INDEX))
        turn = turn if index is None else index
    elif kind == MAYBE_LLM:
        kind = "llm"
    return _new(Place, (kind or above_kind, name, phase, trace_id, turn, span.span_id))


def find_kind(name: str, attributes: Attributes) -> tuple[str, str]:
    """Return kind and name of a span's own time. The kind may be ``above`` or `MAYBE_LLM`; empty: unknown."""
    found = _read(name)
    kind = found[0]
    if kind == "llm" and not (attr.GEN_AI_OPERATION in attributes or attr.GEN_AI_MODEL in attributes):
        kind = ""  # a span of the user's that happens to be called so
    elif kind in _NAMED_BY:
        return kind, str(attributes.get(_NAMED_BY[kind], ""))
    elif kind:
        return found
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


# -- The path --

_STRUCTURAL: Final = (PHASE_PREFIX, CALL_PREFIX)
_Child = tuple[int, int, Node]
"""End, start and span of a child, clipped to its parent."""
_Frame = tuple[Node, "Place", int, int, list[_Child]]
"""State of one span on the stack: node, place, begin, time reached so far (backwards), remaining children."""
_new: Final = tuple.__new__


def of_trajectory(root: Node) -> tuple[Segment, ...]:
    """Return the critical path of a trajectory, from its start to its end."""
    return tuple(walk(root, root.span.start_ns, max(root.span.start_ns, root.span.end_ns)))


def of_step(root: Node, trajectories: Mapping[int, Trajectory], consumed: Sequence[int]) -> tuple[Segment, ...]:
    """Return the critical path of a step, from its start to its end.

    Args:
        root: The root span of the step.
        trajectories: By trace id, each with its own path.
        consumed: Trace ids of those that the step took. Where a phase waited for them, the path leads through the one
            that ended last in it.
    """
    awaited = find_awaited_trajectories(root, trajectories, consumed)
    return tuple(walk(root, root.span.start_ns, max(root.span.start_ns, root.span.end_ns), awaited))


def group(path: Iterable[Segment]) -> tuple[tuple[str, str, int], ...]:
    """Return the sums of a path by kind and name: kind, name, nanoseconds; the longest first."""
    sums: dict[tuple[str, str], int] = {}
    for segment in path:
        key = (segment.kind, segment.name)
        sums[key] = sums.get(key, 0) + segment.end_ns - segment.start_ns
    return tuple(sorted(((*key, total) for key, total in sums.items()), key=lambda item: (-item[2], item[0], item[1])))


def walk(
    root: Node, begin_ns: int, end_ns: int, awaited: Mapping[int, Sequence[AwaitedTrajectory]] = MappingProxyType({})
) -> list[Segment]:
    """Return the critical path through a span and its descendants, from ``begin_ns`` to ``end_ns`` without a gap.

    It is walked from the end to the start, with a stack instead of recursion: users nest spans deeper than Python allows calls.

    Args:
        root: The span.
        begin_ns: Begin of the path.
        end_ns: End of the path.
        awaited: The trajectories that phases waited for, by the id of the span of the phase.
    """
    segments: list[Segment] = []
    first = min(max(root.span.start_ns, begin_ns), end_ns)
    last = max(min(_find_end(root), end_ns), first)
    _add(segments, root, NOWHERE, last, end_ns)
    stack: list[_Frame | Segment] = []
    below: list[_Child] = [(last, first, root)]
    node, place, begin, reached = root, NOWHERE, first, last
    while True:
        while below:
            end, start, child = below.pop()
            if end > reached:
                continue  # it ran in parallel to the awaited one
            if end < reached:
                _add(segments, node, place, end, reached)
            reached = start
            inside = find_place(child.span, place)
            if child.span.span_id in awaited:
                stack.append((node, place, begin, reached, below))
                stack.extend(_splice(child, inside, start, end, awaited[child.span.span_id]))
                break
            if child.children and not (inside.kind == "server" and is_engine(child.span.attributes)):
                stack.append((node, place, begin, reached, below))
                node, place, begin, reached, below = child, inside, start, end, _find_waited(child, start, end)
            elif end > start:
                _add(segments, child, inside, start, end)
        else:
            _add(segments, node, place, begin, reached)
        while stack:
            frame = stack.pop()
            if not isinstance(frame, Segment):
                break
            segments.append(frame)
        else:
            break
        node, place, begin, reached, below = frame
    _add(segments, root, NOWHERE, begin_ns, first)
    segments.reverse()
    return segments


def _find_waited(node: Node, begin: int, end: int) -> list[_Child]:
    """Return the children that their parent may have waited for, clipped to it; the one that ended last is at the end."""
    limit = _find_end(node)
    process = node.process
    ends: Mapping[int, int] | None = None
    waited: list[_Child] = []
    for child in node.children:
        span, tolerated = child.span, 0
        start, stop = span.start_ns, span.end_ns
        if span.name.startswith(_STRUCTURAL):
            if ends is None:
                ends = _cut_phases(node)
            stop = ends.get(id(child), stop) if ends else stop
            if _is_open(child):
                stop, tolerated = _find_end(child), TOLERANCE_NS
        if stop - limit > tolerated and child.process == process:
            continue  # on the same clock it outlived its parent, so the parent did not wait for it
        start = start if start > begin else begin  # noqa: FURB136 - twice as fast as max(), for each span of a run
        stop = stop if stop < end else end  # noqa: FURB136 - as above
        if stop > start:
            waited.append((stop, start, child))
    if len(waited) > 1:
        waited.sort(key=lambda child: (child[0], -child[1]))
    return waited


def _cut_phases(node: Node) -> dict[int, int]:
    """Return the ends of phases, by identity, that were still open when the next phase of their process started.

    A trainer is in one phase at a time. A phase that continues is a background task, as ``generate_async`` of verl's
    one-step-off trainer.
    """
    phases = [
        child for child in node.children if child.process == node.process and child.span.name.startswith(PHASE_PREFIX)
    ]
    following = dict(itertools.pairwise(sorted({phase.span.start_ns for phase in phases})))
    return {
        id(phase): following[phase.span.start_ns]
        for phase in phases
        if following.get(phase.span.start_ns, phase.span.end_ns) < phase.span.end_ns
    }


def _is_open(node: Node) -> bool:
    """Return whether a span is a call that returned before its workers had finished."""
    return node.span.name.startswith(CALL_PREFIX) and node.span.attributes.get(attr.CALL_BLOCKING) is False


def _find_end(node: Node) -> int:
    """Return the end of a span; a non-blocking call ends with the last worker that it called."""
    span = node.span
    latest = max(span.start_ns, span.end_ns)
    if not _is_open(node):
        return latest
    calls = [(node, span.start_ns)]
    while calls:
        call, begin = calls.pop()
        for child in call.children:
            start = max(begin, child.span.start_ns)
            if child.span.end_ns > start:
                latest = max(latest, child.span.end_ns)
            if _is_open(child):
                calls.append((child, start))
    return latest


def _add(segments: list[Segment], node: Node, place: Place, begin: int, end: int) -> None:
    """Append a span's own time; ``segments`` is in reverse order of time."""
    if end <= begin:
        return
    kind, name, phase, trace_id, turn, span_id = place
    instance = node.instance
    if kind == "server" and is_engine(node.span.attributes):
        for state, start, stop in reversed(list(split_engine(node.span, begin, end))):
            segments.append(Segment(start, stop, state, name, phase, instance, trace_id, turn, span_id))
        return
    if segments:
        last = segments[-1]
        if last.span_id == span_id and last.kind == kind and last.instance == instance:
            segments[-1] = last._replace(start_ns=begin)
            return
    segments.append(_new(Segment, (begin, end, kind, name, phase, instance, trace_id, turn, span_id)))


def _splice(
    node: Node, place: Place, begin: int, end: int, awaited: Sequence[AwaitedTrajectory]
) -> Iterator[_Frame | Segment]:
    """Yield the parts of a phase that waited for trajectories: for each the time before its start, the trajectory and the poll; then the rest."""
    reached = begin
    for trajectory, end_ns, taken_ns, begin_ns in awaited:
        waits = max(reached, min(begin_ns, end))
        here = max(waits, min(trajectory.start_ns, end))
        there = max(here, min(end_ns, end))
        if there == here:
            continue
        yield _frame(node, place, reached, waits)
        yield _frame(node, place._replace(kind="start", name=""), waits, here)
        yield from clip(trajectory, here, there, place.phase)
        reached = max(there, min(taken_ns, end))
        yield _frame(node, place._replace(kind="poll", name=""), there, reached)
    yield _frame(node, place, reached, end)


def _frame(node: Node, place: Place, begin: int, end: int) -> _Frame:
    return node, place, begin, end, _find_waited(node, begin, end)
