# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's LLM calls: the client's view in the agent loop, the server's in the actor that holds the engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations import calls
from verl_otel.integrations.patch import Hook, wrap_method
from verl_otel.integrations.verl.agent_loop import find_open
from verl_otel.model import AttributeValue
from verl_otel.recording.context import kernel
from verl_otel.recording.extract import extract_llm
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span
from verl_otel.recording.values import to_number, to_text
from verl_otel.semconv import attributes as attr

_CACHED: Final = "_verl_otel_site"
_SERVER: Final = Site("generate", hook=True)


def install() -> None:
    """Have the server's ``generate`` opened by Ray's carrier, whatever the replica's class: a user's own one, too."""
    calls.open_for("generate", _open_server)


def _open_server(class_name: str) -> Span | None:
    """Return the server span of an LLM call; None for another actor's ``generate``, outside of a trajectory."""
    now = kernel()
    caller = now.span_of(now.get()).get_span_context()
    if not caller.is_valid or caller.trace_state.get("verl") != "t":
        return None
    return Span(_SERVER, {attr.WORKER_CLASS: class_name})


def _site(client: Any) -> Site:
    """Return the site of a client; its configuration is read once, since that costs more than the call."""
    found = getattr(client, _CACHED, None)
    if isinstance(found, Site):
        return found
    model, provider = "", "verl"
    with _guard.swallowed("llm config"):
        settings = client.config.actor_rollout_ref
        model = to_text(settings.model.path).rstrip("/").rpartition("/")[2]
        provider = to_text(settings.rollout.name)
    attributes: dict[str, AttributeValue] = {
        attr.GEN_AI_OPERATION: "chat",
        attr.GEN_AI_PROVIDER: provider,
        attr.GEN_AI_MODEL: model,
    }
    made = Site("llm", f"chat {model}".strip(), attributes=attributes, hook=True)
    with _guard.swallowed("llm config"):
        setattr(client, _CACHED, made)
    return made


def _begin(client: Any, _args: Any, kwargs: dict[str, Any]) -> Span:
    prompt = kwargs.get("prompt_ids")
    return Span(_site(client), {attr.GEN_AI_INPUT_TOKENS: len(prompt)} if prompt is not None else None)


def _finish(span: Span, _args: Any, kwargs: dict[str, Any], result: Any) -> None:
    found = extract_llm(kwargs, result)
    preempted = to_number(found.get(attr.PREEMPTIONS))
    if preempted is not None and preempted < 0:
        del found[attr.PREEMPTIONS]  # verl's -1 is "unknown"
    span.set_attributes({key: value for key, value in found.items() if value is not None})
    trajectory = find_open("trajectory")
    reasons = found.get(attr.GEN_AI_FINISH_REASONS)
    if trajectory is not None and reasons:
        trajectory.set_attribute(attr.GEN_AI_FINISH_REASONS, reasons)


def _patch(module: ModuleType) -> None:
    wrap_method(module.LLMServerClient, "generate", _begin, _finish)


def _patch_before_08(module: ModuleType) -> None:
    wrap_method(module.AsyncLLMServerManager, "generate", _begin, _finish)


HOOKS: Final = (
    Hook("verl.workers.rollout.llm_server", "LLMServerClient.generate", _patch, "no LLM calls", since="verl 0.8"),
    Hook(
        "verl.experimental.agent_loop.agent_loop",
        "AsyncLLMServerManager.generate",
        _patch_before_08,
        "no LLM calls",
        until="verl 0.8",
    ),
)
