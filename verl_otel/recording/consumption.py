# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a step trains on, for loops that do not train on exactly the trajectories that began inside of the step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from verl_otel._internal import error_boundary
from verl_otel.model import REMOTE, LinkRecord
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import MAX_LINKS

_CONSUME: Final = CallSite("consume")
_CONSUMED: Final = {attr.LINK_TYPE: "consumed"}
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def consume(trajectories: Iterable[Span | str]) -> None:
    """Record that the current step trains on some trajectories. Call it inside of the step, where the step waits for them.

    Needed only if these are not the trajectories that began inside of the step, for example those of the step before.

    Args:
        trajectories: Spans of `verl_otel.trajectory`, or their ``traceparent``, which can travel with a sample through any queue.

    Example:
        with verl_otel.trajectory(uid, 0) as span:
            sample = Sample(text, traceparent=span.traceparent)
        with verl_otel.step(2):
            verl_otel.consume(sample.traceparent for sample in batch)
    """
    if not RECORDER.on:
        return
    with error_boundary.suppress_errors("consume"):
        links = list(dict.fromkeys(_find_ids(trajectories)))
        for begin in range(0, len(links), MAX_LINKS):
            part = links[begin : begin + MAX_LINKS]
            with Span(_CONSUME, {attr.SAMPLES: len(part)}) as span:
                for trace_id, span_id in part:
                    span.link_record(LinkRecord(trace_id, span_id, _CONSUMED, "", REMOTE))


def _find_ids(trajectories: Iterable[Span | str]) -> Iterator[tuple[int, int]]:
    for trajectory in trajectories:
        if isinstance(trajectory, Span):
            ids = trajectory.resolve()
            yield ids.trace_id, ids.span_id
        elif (match := _TRACEPARENT.fullmatch(str(trajectory)[:64])) is not None:
            yield int(match[1], 16), int(match[2], 16)
        else:
            error_boundary.warn_once(
                "consume", "verl-otel: consume(): %.100r is neither a span nor a traceparent; ignored", trajectory
            )
