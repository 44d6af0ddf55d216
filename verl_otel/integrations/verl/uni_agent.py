# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""uni-agent, verl's framework for agents behind an OpenAI or Anthropic gateway: sessions are trajectories.

A session runs in the framework's worker, its agent there or in a Ray task, its LLM calls in a gateway actor, which
agents reach by HTTP. The gateway keeps the trace context of each session from `create_session`, which arrives over Ray,
and uses it for the requests of that session. Samples are written to TransferQueue after the session has ended, so its
origin is kept until then. Names are those of uni-agent of August 2026.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from verl_otel._internal import process_state
from verl_otel.integrations.patch import Hook, argument, in_span
from verl_otel.integrations.verl.agent_loop import open_trajectory, read_outputs, set_outcome, tool_site
from verl_otel.integrations.verl.sample_origin import Origin, carried_origin, find_origin
from verl_otel.recording.attribute_values import OTHER_NAME, to_name
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import context_access
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr

MAX_SESSIONS: Final = 100_000
"""Sessions of one process whose context or origin is kept; of more, those of the oldest are forgotten."""
_TURN: Final = CallSite("turn", hook=True)
_SANDBOX: Final = CallSite("span", "sandbox start", hook=True)
_OUTCOMES: Final = {"ok": "success", "format_error": "bad_arguments"}
"""Outcomes of tool calls by uni-agent's status; others have the same word."""


class _Session:
    """State of a session in a gateway."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.turns = 0


class _Key(NamedTuple):
    uid: str
    session: int


_sessions: Final[dict[str, _Session]] = {}
_origins: Final[dict[_Key, Origin]] = {}


def _clear() -> None:
    _sessions.clear()
    _origins.clear()


process_state.register(clear=_clear)


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    while len(kept) >= MAX_SESSIONS:
        kept.pop(next(iter(kept)))
    kept[key] = value


# -- the framework's worker --


def _begin_session(_framework: Any, _args: Any, kwargs: dict[str, Any]) -> Span:
    fields = kwargs.get("sample_fields") or {}
    return open_trajectory(
        to_name(kwargs.get("runner_name", "agent")),
        uid=fields.get("uid", ""),
        index=kwargs.get("session_index"),
        step=kwargs.get("global_steps"),
        validate=fields.get("validate", False),
        fields=fields,
    )


def _finish_session(span: Span, _args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Describe a session by the outputs that it returns, and keep its origin until they are written."""
    outputs = result[0]
    if not outputs:
        return
    span.take_attributes(read_outputs(outputs))
    origin = find_origin()
    if origin is not None:
        uid = str((kwargs.get("sample_fields") or {}).get("uid"))
        _keep(_origins, _Key(uid, int(kwargs.get("session_index", 0))), origin)


def _carry_origin(_args: Any, kwargs: dict[str, Any]) -> Steps:
    """Make the origin of a session that of the samples that are written."""
    key = _Key(str(kwargs.get("uid")), int(kwargs.get("session_index", 0)))
    token = carried_origin.set(_origins.pop(key, None))
    try:
        yield
    finally:
        carried_origin.reset(token)


# -- the gateway --


def _keep_session(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    yield
    if RECORDER.on:
        session_id = argument(args, kwargs, 1, "session_id")
        _keep(_sessions, session_id, _Session(context_access().get()))


def _forget_session(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    _sessions.pop(argument(args, kwargs, 1, "session_id"), None)
    yield


def _answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Record an LLM request as a turn of its session."""
    session = _sessions.get(argument(args, kwargs, 1, "session_id")) if RECORDER.on else None
    if session is None:
        return
    token = context_access().set(session.context)
    try:
        index, session.turns = session.turns, session.turns + 1
        with Span(_TURN, {attr.TURN_INDEX: index}):
            yield
    finally:
        context_access().reset(token)


# -- agents --


def _begin_tool(toolbox: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
    """Begin a tool call; the model writes its name, and the toolbox validates it only later."""
    given = argument(args, kwargs, 0, "name")
    name = to_name(given) if isinstance(given, str) and given in toolbox.names() else OTHER_NAME
    return Span(tool_site(name))


def _finish_tool(span: Span, _args: Any, _kwargs: Any, result: Any) -> None:
    status = to_name(getattr(result, "status", "ok"))
    outcome = _OUTCOMES.get(status, status)
    if outcome == "bad_arguments" and span.attributes.get(attr.GEN_AI_TOOL) == OTHER_NAME:
        outcome = "unknown_tool"
    set_outcome(span, outcome)


_FRAMEWORK: Final = "uni_agent.framework.framework"
_GATEWAY: Final = "uni_agent.gateway.gateway"
_FORGET: Final = surround("uni_agent", _forget_session)
_ANSWER: Final = surround("uni_agent", _answer)
HOOKS: Final = (
    Hook.wrapping(
        _FRAMEWORK,
        "OpenAICompatibleAgentFramework._run_session",
        in_span(_begin_session, _finish_session),
        "no trajectories (uni-agent)",
    ),
    Hook.wrapping(
        _FRAMEWORK,
        "OpenAICompatibleAgentFramework._write_session_trajectories_to_tq",
        surround("uni_agent", _carry_origin),
        "steps are not linked to the trajectories that they trained on (uni-agent)",
    ),
    Hook.wrapping(
        _GATEWAY,
        "_GatewayActor.create_session",
        surround("uni_agent", _keep_session),
        "LLM calls belong to no trajectory (uni-agent)",
        others={"_GatewayActor.finalize_session": _FORGET, "_GatewayActor.abort_session": _FORGET},
    ),
    Hook.wrapping(
        _GATEWAY,
        "_GatewayActor._handle_openai_chat_completions",
        _ANSWER,
        "no turns (uni-agent)",
        others={"_GatewayActor._handle_anthropic_messages": _ANSWER},
    ),
    Hook.wrapping(
        "uni_agent.tools.base", "Toolbox.call", in_span(_begin_tool, _finish_tool), "no tool calls (uni-agent)"
    ),
    Hook.wrapping(
        "uni_agent.sandbox.base",
        "Sandbox._run_start",
        in_span(lambda *_: Span(_SANDBOX)),
        "no starts of sandboxes (uni-agent)",
    ),
)
