# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's LLM calls: a client span in the agent loop, and a server span in the actor of the engine."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from verl_otel._internal import error_boundary
from verl_otel.integrations import server_spans
from verl_otel.integrations.open_spans import find_open
from verl_otel.integrations.patch import Hook, in_span
from verl_otel.integrations.propagation import current_span_context
from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import to_number, to_text
from verl_otel.recording.call_attributes import extract_llm
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.semconv import attributes as attr

_SERVER: Final = CallSite("generate", hook=True)
_sites: Final[WeakKeyDictionary[Any, CallSite]] = WeakKeyDictionary()
"""The call site of each client. It is no attribute of the client, because clients are pickled and the receiver may lack verl-otel."""


def install() -> None:
    """Register the opener of the server's ``generate``, for any class of replica."""
    server_spans.register_opener("generate", _open_server)


def _open_server(class_name: str) -> Span | None:
    """Return the server span of an LLM call; None for another actor's ``generate``, outside of a trajectory."""
    caller = current_span_context()
    if not caller.is_valid or caller.trace_state.get("verl") != "t":
        return None
    return Span(_SERVER, {attr.WORKER_CLASS: class_name})


def _site(client: Any) -> CallSite:
    """Return the call site of a client. The configuration is read once, because that takes longer than the call."""
    with error_boundary.suppress_errors("llm client"):
        site = _sites.get(client)
        if site is not None:
            return site
    model, provider = "", "verl"
    with error_boundary.suppress_errors("llm config"):
        settings = client.config.actor_rollout_ref
        model = to_text(settings.model.path).rstrip("/").rpartition("/")[2]
        provider = to_text(settings.rollout.name)
    attributes: dict[str, AttributeValue] = {
        attr.GEN_AI_OPERATION: "chat",
        attr.GEN_AI_PROVIDER: provider,
        attr.GEN_AI_MODEL: model,
    }
    site = CallSite("llm", f"chat {model}".strip(), attributes=attributes, hook=True)
    with error_boundary.suppress_errors("llm client"):
        _sites[client] = site
    return site


def _begin(client: Any, _args: Any, kwargs: dict[str, Any]) -> Span:
    prompt = kwargs.get("prompt_ids")
    return Span(_site(client), {attr.GEN_AI_INPUT_TOKENS: len(prompt)} if prompt is not None else None)


def _finish(span: Span, _args: Any, kwargs: dict[str, Any], result: Any) -> None:
    attributes = extract_llm(kwargs, result)
    preempted = to_number(attributes.get(attr.PREEMPTIONS))
    if preempted is not None and preempted < 0:
        del attributes[attr.PREEMPTIONS]  # -1 means unknown in verl
    for key in [key for key, value in attributes.items() if value is None]:
        del attributes[key]
    span.set_attributes(attributes)
    trajectory = find_open("trajectory")
    reasons = attributes.get(attr.GEN_AI_FINISH_REASONS)
    if trajectory is not None and reasons:
        trajectory.set_attribute(attr.GEN_AI_FINISH_REASONS, reasons)


_WRAP: Final = in_span(_begin, _finish)
HOOKS: Final = (
    Hook.wrapping(
        "verl.workers.rollout.llm_server", "LLMServerClient.generate", _WRAP, "no LLM calls", since="verl 0.8"
    ),
    Hook.wrapping(
        "verl.experimental.agent_loop.agent_loop",
        "AsyncLLMServerManager.generate",
        _WRAP,
        "no LLM calls",
        until="verl 0.8",
    ),
)
