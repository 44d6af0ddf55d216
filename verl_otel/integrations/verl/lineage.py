# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lineage: which step trained on which trajectory, over TransferQueue's tags.

The agent loop adds one tag to each sample that it puts; the trainer reads it where the replay buffer hands out a batch, and takes
it away before verl looks at the batch.
"""

from __future__ import annotations

import functools
import statistics
from types import ModuleType
from typing import Any, Final, NamedTuple

from verl_otel import _guard
from verl_otel.integrations.patch import PATCHED, Hook, argument, replace
from verl_otel.integrations.verl.agent_loop import find_open
from verl_otel.model import REMOTE, LinkRecord
from verl_otel.recording import registry
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span, clock
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_number
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import MAX_LINKS

TAG: Final = "verl_otel"
_CONSUME: Final = Site("consume", hook=True)


class Origin(NamedTuple):
    """Where a sample comes from, as its tag says it."""

    trace_id: int
    span_id: int
    seconds: float
    score: float | None
    source: str

    def encode(self) -> str:
        """Return the tag's text."""
        score = "" if self.score is None else repr(self.score)
        return f"{self.trace_id:032x}|{self.span_id:016x}|{self.seconds:.6f}|{score}|{self.source}"

    @classmethod
    def decode(cls, text: str) -> Origin:
        """Read a tag.

        Raises:
            ValueError: It is not one of ours.
        """
        trace_id, span_id, seconds, score, source = text.split("|", 4)
        return cls(int(trace_id, 16), int(span_id, 16), float(seconds), float(score) if score else None, source)


def _wrap_put(original: Any) -> Any:
    @functools.wraps(original)
    async def async_kv_batch_put(*args: Any, **kwargs: Any) -> Any:
        tags = kwargs.get("tags")
        if Store.on and tags:
            with _guard.swallowed("lineage"):
                _tag(tags)
        return await original(*args, **kwargs)

    return async_kv_batch_put


def _tag(tags: list[dict[str, Any]]) -> None:
    span = find_open("trajectory")
    if span is None:
        return
    ids = span.resolve()
    values = span.attributes
    score = to_number(values.get(attr.REWARD_SCORE))
    source = str(values.get(attr.DATA_SOURCE, ""))
    origin = Origin(ids.trace_id, ids.span_id, clock() - span.start, None if score is None else float(score), source)
    text = origin.encode()
    for tag in tags:
        tag[TAG] = text


def watch(buffer: Any) -> None:
    """Read the tags of every batch that a replay buffer hands out. On the instance: a user's sampler counts, too."""
    original = buffer.sample
    if getattr(original, PATCHED, False):
        return

    @functools.wraps(original)
    def sample(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with _guard.swallowed("lineage"):
            batch = result[0] if isinstance(result, tuple) else result
            partition = argument(args, kwargs, 1, "partition_id")
            step = to_number(argument(args, kwargs, 0, "global_steps"))
            consume(batch.tags, step=None if step is None else int(step), training=partition == "train")
        return result

    setattr(sample, PATCHED, True)
    buffer.sample = sample


def consume(tags: list[dict[str, Any]], *, step: int | None, training: bool) -> None:
    """Take our tags out of a batch; for a training batch, link to its trajectories and sum up their scores."""
    origins: dict[tuple[int, int], Origin] = {}
    staleness = []
    for tag in tags:
        text = tag.pop(TAG, None)
        if text is None:
            continue
        origin = Origin.decode(text)
        key = (origin.trace_id, origin.span_id)
        if key not in origins:  # padding rows and further outputs of one trajectory count once
            origins[key] = origin
            version = to_number(tag.get("max_global_steps"))
            if version is not None and step is not None:
                staleness.append(step - 1 - version)
    if not training or not origins or not Store.on:
        return
    for versions in staleness:
        registry.histogram("verl.rollout.staleness").record(max(0, versions))
    _link(list(origins.values()))
    _sum_scores(list(origins.values()))


def _link(origins: list[Origin]) -> None:
    for begin in range(0, len(origins), MAX_LINKS):
        part = origins[begin : begin + MAX_LINKS]
        with Span(_CONSUME, {attr.SAMPLES: len(part)}) as span:
            for origin in part:
                span.link_record(LinkRecord(origin.trace_id, origin.span_id, {attr.LINK_TYPE: "consumed"}, "", REMOTE))
    step = find_open("step")
    slowest = max(origins, key=lambda origin: origin.seconds)
    if step is not None and slowest.seconds >= float(to_number(step.attributes.get(attr.SLOWEST_SECONDS)) or 0):
        step.set_attribute(attr.SLOWEST_TRACE_ID, f"{slowest.trace_id:032x}")
        step.set_attribute(attr.SLOWEST_SECONDS, slowest.seconds)


def _sum_scores(origins: list[Origin]) -> None:
    by_source: dict[str, list[float]] = {}
    for origin in origins:
        if origin.score is not None and origin.score == origin.score:
            by_source.setdefault(origin.source, []).append(origin.score)
    for source, scores in by_source.items():
        scores.sort()
        labels = ((attr.DATA_SOURCE, source),) if source else ()
        facts = {
            "mean": statistics.fmean(scores),
            "stddev": statistics.pstdev(scores),
            "min": scores[0],
            "max": scores[-1],
            "p10": quantile(scores, 0.1),
            "p50": quantile(scores, 0.5),
            "p90": quantile(scores, 0.9),
        }
        for name, value in facts.items():
            registry.gauge(f"verl.reward.score.{name}", labels).set(value)


def quantile(ordered: list[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated linearly (as numpy does by default)."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _patch(module: ModuleType) -> None:
    replace(module, "async_kv_batch_put", _wrap_put)


HOOKS: Final = (
    Hook(
        "transfer_queue", "async_kv_batch_put", _patch, "steps are not linked to the trajectories that they trained on"
    ),
)
