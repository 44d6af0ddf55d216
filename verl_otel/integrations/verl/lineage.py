# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lineage: which step trained on which trajectory.

The agent loop tags each sample with its origin (`Origin`). The trainer reads and removes the tags when it receives a batch, before verl reads
the batch. This module transports them in TransferQueue's tags, `batch_lineage` in the batches of trainers without TransferQueue.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.open_spans import find_open
from verl_otel.integrations.patch import PATCHED, Hook, argument
from verl_otel.integrations.verl import gpu_time, recent_changes, step_log
from verl_otel.integrations.verl.sample_origin import Origin, find_origin
from verl_otel.model import REMOTE, LinkRecord
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.series_registry import histogram
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.recording.step_statistics import describe_tail, sum_scores
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.spans import MAX_LINKS

TAG: Final = "verl_otel"
_CONSUME: Final = CallSite("consume", hook=True)


def _wrap_put(original: Any) -> Any:
    @functools.wraps(original)
    async def async_kv_batch_put(*args: Any, **kwargs: Any) -> Any:
        tags = kwargs.get("tags")
        if RECORDER.on and tags:
            with error_boundary.suppress_errors("lineage"):
                _tag(tags)
        return await original(*args, **kwargs)

    return async_kv_batch_put


def _tag(tags: list[dict[str, Any]]) -> None:
    origin = find_origin()
    if origin is not None:
        text = origin.encode()
        for tag in tags:
            tag[TAG] = text


def watch(buffer: Any) -> None:
    """Read the tags of every batch of a replay buffer. Patches the instance, to include samplers of users."""
    original = buffer.sample
    if getattr(original, PATCHED, False):
        return

    @functools.wraps(original)
    def sample(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with error_boundary.suppress_errors("lineage"):
            batch = result[0] if isinstance(result, tuple) else result
            partition = argument(args, kwargs, 1, "partition_id")
            step = to_number(argument(args, kwargs, 0, "global_steps"))
            origins = take_tags(batch.tags)
            if partition == "train":
                consume(origins, step=None if step is None else int(step))
            else:
                gpu_time.note_samples(origins, validate=True)
        return result

    setattr(sample, PATCHED, True)
    buffer.sample = sample


def take_tags(tags: list[dict[str, Any]]) -> list[Origin]:
    """Remove the tags of verl-otel from a batch and return their origins."""
    return [origin for origin in map(_take_origin, tags) if origin is not None]


def consume(origins: list[Origin], *, step: int | None, summarise: bool = True) -> None:
    """Link the step that trains on a batch to its trajectories, and record their scores and their staleness.

    Args:
        origins: Origin of each row of the batch; padding rows and further outputs of one trajectory count once.
        step: Number of the step.
        summarise: Describe the slowest trajectory, too; trainers without TransferQueue log this themselves.
    """
    distinct = find_distinct(origins)
    if not distinct or not RECORDER.on:
        return
    for origin in distinct:
        if origin.version is not None and step is not None:
            histogram(metric_names.ROLLOUT_STALENESS).record(max(0, step - 1 - origin.version))
    gpu_time.note_samples(distinct, validate=False)
    _link(distinct)
    sum_scores(distinct)
    step_log.note_scores(distinct)
    recent_changes.follow_trajectories(distinct)
    if summarise:
        describe_tail(distinct)


def find_distinct(origins: Iterable[Origin]) -> list[Origin]:
    """Return the first origin of each trajectory: padding rows and further outputs have the same."""
    by_span: dict[tuple[int, int], Origin] = {}
    for origin in origins:
        by_span.setdefault((origin.trace_id, origin.span_id), origin)
    return list(by_span.values())


def _take_origin(tag: dict[str, Any]) -> Origin | None:
    """Remove the tag of verl-otel from a sample's tags; None if it is missing or not valid."""
    text = tag.pop(TAG, None)
    return None if text is None else read_tag(text)


def read_tag(text: str) -> Origin | None:
    """Return the origin of a tag; None, with one log line, if it is not valid."""
    try:
        return Origin.decode(text)
    except ValueError:
        error_boundary.warn_once(
            "tag", "verl-otel: a sample's tag %.100r is of another version; its trajectory is not linked", text
        )
        return None


def add_links(origins: list[Origin], attributes: dict[str, Any]) -> None:
    """Record spans ``verl.consume`` with a link to each origin.

    Args:
        origins: Of different trajectories.
        attributes: Of each link.
    """
    for begin in range(0, len(origins), MAX_LINKS):
        part = origins[begin : begin + MAX_LINKS]
        with Span(_CONSUME, {attr.SAMPLES: len(part)}) as span:
            for origin in part:
                span.link_record(LinkRecord(origin.trace_id, origin.span_id, attributes, "", REMOTE))


def _link(origins: list[Origin]) -> None:
    add_links(origins, {attr.LINK_TYPE: "consumed"})
    step = find_open("step")
    slowest = max(origins, key=lambda origin: origin.seconds)
    if step is not None and slowest.seconds >= float(to_number(step.attributes.get(attr.SLOWEST_SECONDS)) or 0):
        step.set_attribute(attr.SLOWEST_TRACE_ID, f"{slowest.trace_id:032x}")
        step.set_attribute(attr.SLOWEST_UID, slowest.uid)
        step.set_attribute(attr.SLOWEST_SECONDS, slowest.seconds)


HOOKS: Final = (
    Hook.wrapping(
        "transfer_queue",
        "async_kv_batch_put",
        _wrap_put,
        "steps are not linked to the trajectories that they trained on (v1 trainers)",
        since="verl 0.9",
    ),
)
