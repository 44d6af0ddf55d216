# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Weight sync: from the actor to the rollout replicas."""

from __future__ import annotations

import functools
from typing import Any, Final

from verl_otel.integrations.patch import Hook, in_span
from verl_otel.integrations.verl.coroutines import wrap_awaited
from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import to_number, to_text
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.semconv import attributes as attr

_SYNC: Final = CallSite("weight_sync", hook=True)


def _begin(manager: Any, _args: Any, _kwargs: Any) -> Span:
    attributes: dict[str, AttributeValue] = {attr.WEIGHT_SYNC_BACKEND: to_text(getattr(manager, "backend", ""))}
    replicas = getattr(manager, "replicas", None)
    if replicas is not None:
        attributes[attr.REPLICAS] = len(replicas)
    return Span(_SYNC, attributes)


def _finish(span: Span, _args: Any, _kwargs: Any, result: Any) -> None:
    if isinstance(result, dict):
        megabytes = to_number(result.get("checkpoint_engine/payload_mbytes"))
        if megabytes is not None:
            span.set_attribute(attr.BYTES, int(megabytes * 2**20))


HOOKS: Final = (
    Hook.wrapping(
        "verl.checkpoint_engine.base",
        "CheckpointEngineManager.update_weights",
        functools.partial(wrap_awaited, wrap=in_span(_begin, _finish)),
        "no weight sync",
    ),
)
