# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's agent loops: one trace per trajectory, with its turns and tool calls."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.patch import Hook, argument, replace, wrap_method
from verl_otel.model import AttributeValue
from verl_otel.recording.extract import extract_trajectory
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span, current, local_span
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_number, to_text
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS, STATUS_ERROR

_TRAJECTORY: Final = Site("trajectory", hook=True)
_TURN: Final = Site("turn", hook=True)
_MEASURED: Final = {
    attr.LLM_SECONDS: "generate_sequences",
    attr.TOOL_SECONDS: "tool_calls",
    attr.REWARD_SECONDS: "compute_score",
    attr.PREEMPTIONS: "num_preempted",
}
"""What verl measures of a trajectory itself (``AgentLoopMetrics``), and its trainers v1 sum up no more."""
_ERRORS: Final = (
    ("Error executing tool", "error"),
    ("Unknown function", "unknown_tool"),
    ("Invalid JSON in arguments", "bad_arguments"),
)
"""How verl words a tool call that failed: it hands the model a text and goes on."""


def find_open(verb: str) -> Span | None:
    """Return the nearest open span of a verb around here, in this process."""
    span = current()
    while span is not None and span.site.spec.verb != verb:
        span = local_span(span.outer) if span.outer is not None else None
    return span if span is not None and not span.stop else None


def _begin_trajectory(_worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
    info = argument(args, kwargs, 1, "trajectory") or {}
    agent = to_text(kwargs.get("agent_name", "agent"))
    step = to_number(info.get("step"))
    index = to_number(kwargs.get("session_id", info.get("rollout_n")))
    found: dict[str, AttributeValue] = {
        attr.GEN_AI_OPERATION: "invoke_agent",
        attr.GEN_AI_AGENT: agent,
        attr.AGENT: agent,
        attr.VALIDATE: bool(info.get("validate", False)),
        attr.SAMPLE_UID: to_text(kwargs.get("uid", info.get("sample_index", ""))),
        attr.ROLLOUT_INDEX: int(index or 0),
    }
    if step is not None and step >= 0:  # fully asynchronous rollouts belong to no step, verl says -1
        found[attr.STEP_NUMBER] = int(step)
    if "data_source" in kwargs:
        found[attr.DATA_SOURCE] = to_text(kwargs["data_source"])
    return Span(_TRAJECTORY, found)


def _read_outputs(original: Any) -> Any:
    """Wrap ``_compute_score``: both kinds of worker pass every finished output through it, with its reward afterwards."""

    @functools.wraps(original)
    async def compute_score(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        if Store.on:
            with _guard.swallowed("trajectory"):
                outputs = argument(args, kwargs, 0, "outputs") or kwargs.get("output")
                span = find_open("trajectory")
                if span is not None and outputs is not None:
                    outputs = outputs if isinstance(outputs, list) else [outputs]
                    _describe_outputs(span, outputs)
                    _describe_end(span, outputs[-1], self)
        return result

    return compute_score


def _describe_outputs(span: Span, outputs: list[Any]) -> None:
    found = extract_trajectory({}, outputs[-1])
    if len(outputs) > 1:
        found[attr.RESPONSE_TOKENS] = sum(len(output.response_ids) for output in outputs)
    measured = getattr(outputs[-1], "metrics", None)
    for key, name in _MEASURED.items():
        value = to_number(getattr(measured, name, None))
        if value is not None and value >= 0:  # verl's -1 is "unknown"
            found[key] = value
    for key, value in found.items():
        if value is not None:
            span.set_attribute(key, value)


def _describe_end(span: Span, output: Any, worker: Any) -> None:
    """Say that a response was cut off where the configured bound is: verl says so nowhere."""
    rollout = getattr(worker, "rollout_config", None)
    if rollout is None:  # before verl 0.9
        rollout = getattr(getattr(getattr(worker, "config", None), "actor_rollout_ref", None), "rollout", None)
    bound = to_number(getattr(rollout, "response_length", None))
    tokens = getattr(output, "response_ids", None)
    if bound is not None and tokens is not None and len(tokens) >= bound:
        span.set_attribute(attr.GEN_AI_FINISH_REASONS, ("length",))


def _begin_turn(_loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Close the turn before and open the next; it stays open over the tool calls that follow."""
    data = argument(args, kwargs, 0, "agent_data")
    _end_turn()
    Span(_TURN, {attr.TURN_INDEX: int(to_number(getattr(data, "assistant_turns", 0)) or 0)}).__enter__()


def _end_turn(error: BaseException | None = None) -> None:
    span = current()
    if span is not None and span.site is _TURN and not span.stop:
        span.close(error)


def _close_turns(original: Any) -> Any:
    """Wrap the whole loop: a turn that ends the trajectory has no next one to end it."""

    @functools.wraps(original)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = await original(self, *args, **kwargs)
        except BaseException as error:
            _end_turn(error)
            raise
        _end_turn()
        return result

    return run


def _close_turn_after(original: Any) -> Any:
    """Wrap the tool half of a turn: with it the turn is over."""

    @functools.wraps(original)
    async def handle(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        finally:
            _end_turn()

    return handle


def _begin_tool(_loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
    name = to_text(getattr(argument(args, kwargs, 0, "tool_call"), "name", "tool"))
    attributes = {attr.GEN_AI_TOOL: name, attr.GEN_AI_OPERATION: "execute_tool"}
    return Span(Site("tool", SPANS["tool"].name + name, attributes=attributes, hook=True))


def _finish_tool(span: Span, _args: Any, _kwargs: Any, result: Any) -> None:
    response = result[0] if isinstance(result, tuple) and result else result
    text = getattr(response, "text", None) or ""
    outcome = next((word for begin, word in _ERRORS if text.startswith(begin)), "success")
    span.set_attribute(attr.OUTCOME, outcome)
    if outcome != "success" and not span.detail.error:
        span.detail.error = outcome
        span.detail.status = STATUS_ERROR
        span.set_attribute(attr.ERROR_TYPE, outcome)


def _mark_failure(original: Any) -> Any:
    """Wrap a function tool: its exception is turned into text before our span around the call could see it."""

    @functools.wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        except BaseException as error:
            span = current()
            if span is not None and span.site.spec.verb == "tool":
                span.fail(error)
            raise

    return call


def _patch_worker(module: ModuleType) -> None:
    wrap_method(module.AgentLoopWorker, "_run_agent_loop", _begin_trajectory)


def _patch_score(module: ModuleType) -> None:
    replace(module.AgentLoopWorker, "_compute_score", _read_outputs)


def _patch_turns(module: ModuleType) -> None:
    loop = module.ToolAgentLoop
    wrap_method(loop, "_handle_generating_state", _begin_turn)
    replace(loop, "_handle_processing_tools_state", _close_turn_after)
    replace(loop, "run", _close_turns)


def _patch_tools(module: ModuleType) -> None:
    wrap_method(module.ToolAgentLoop, "_call_tool", _begin_tool, _finish_tool)


def _patch_function_tool(module: ModuleType) -> None:
    replace(module.FunctionTool, "call", _mark_failure)


_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
_TOOLS: Final = "verl.experimental.agent_loop.tool_agent_loop"
HOOKS: Final = (
    Hook(_LOOP, "AgentLoopWorker._run_agent_loop", _patch_worker, "no trajectories"),
    Hook(_LOOP, "AgentLoopWorker._compute_score", _patch_score, "no turns, tokens and reward on trajectories"),
    Hook(_TOOLS, "ToolAgentLoop._handle_generating_state", _patch_turns, "no turns"),
    Hook(_TOOLS, "ToolAgentLoop._call_tool", _patch_tools, "no tool calls"),
    Hook(
        "verl.tools.function_tool",
        "FunctionTool.call",
        _patch_function_tool,
        "no exception types on failed tool calls",
        since="verl 0.8",
    ),
)
