# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's agent loops: one trace per trajectory, with its turns and tool calls."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import PATCHED, Hook, argument, in_span
from verl_otel.integrations.spans import find_open
from verl_otel.integrations.verl.configuration import read_setting
from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import OTHER_NAME, to_name, to_number
from verl_otel.recording.call_attributes import extract_trajectory, read_components
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import Steps, surround, surround_shortly
from verl_otel.recording.span import Span, clock, current_span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS, STATUS_ERROR

_TRAJECTORY: Final = CallSite("trajectory", hook=True)
_TURN: Final = CallSite("turn", hook=True)
MAX_TOOLS: Final = 256
_tools: dict[str, CallSite] = {}
_MEASURED: Final = {
    attr.LLM_SECONDS: "generate_sequences",
    attr.TOOL_SECONDS: "tool_calls",
    attr.REWARD_SECONDS: "compute_score",
    attr.PREEMPTIONS: "num_preempted",
}
"""Measurements of verl itself (``AgentLoopMetrics``), which its v1 trainers do not log."""
_ERROR_TEXTS: Final = (
    ("Error executing tool", "error"),
    ("Error when executing tool", "error"),
    ("Unknown function", "unknown_tool"),
    ("Invalid JSON in arguments", "bad_arguments"),
)
"""Texts of failed tool calls: verl returns a text to the model and continues. ``when`` is of verl 0.7."""
_ERROR_BEGINS: Final = tuple(begin for begin, _ in _ERROR_TEXTS)


def _agent_name(kwargs: dict[str, Any]) -> str:
    """Return the name of a registered agent loop, else ``_OTHER``: the data choose it, and verl validates it only later."""
    name = kwargs.get("agent_name", "agent")
    registry = getattr(sys.modules.get(_LOOP), "_agent_loop_registry", None)
    if isinstance(registry, dict) and (not isinstance(name, str) or name not in registry):
        return OTHER_NAME
    return to_name(name)


def open_trajectory(agent: str, *, uid: Any, index: Any, step: Any, validate: Any, fields: Mapping[str, Any]) -> Span:
    """Return the span of a trajectory, not yet entered.

    Args:
        agent: Name of the agent.
        uid: Its prompt.
        index: Which of the samples of its prompt it is.
        step: Number of the step; negative for fully asynchronous rollouts, which belong to none.
        validate: Whether it is of a validation.
        fields: The fields of its sample.
    """
    attributes: dict[str, AttributeValue] = {
        attr.GEN_AI_OPERATION: "invoke_agent",
        attr.GEN_AI_AGENT: agent,
        attr.AGENT: agent,
        attr.VALIDATE: bool(validate),
        attr.SAMPLE_UID: to_name(uid),
        attr.ROLLOUT_INDEX: int(to_number(index) or 0),
    }
    number = to_number(step)
    if number is not None and number >= 0:
        attributes[attr.STEP_NUMBER] = int(number)
    if "data_source" in fields:
        attributes[attr.DATA_SOURCE] = to_name(fields["data_source"])
    return Span.of_hook(_TRAJECTORY, attributes)


def _begin_trajectory(worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
    info = argument(args, kwargs, 1, "trajectory") or {}
    # Fully asynchronous rollouts give validations the number of their own samples.
    counts_steps = read_setting(getattr(worker, "config", None), "async_training") is None
    return open_trajectory(
        _agent_name(kwargs),
        uid=kwargs.get("uid", info.get("sample_index", "")),
        index=kwargs.get("session_id", info.get("rollout_n")),
        step=info.get("step") if counts_steps else None,
        validate=info.get("validate", False),
        fields=kwargs,
    )


def _read_outputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Read outputs after ``_compute_score``: both kinds of worker pass every finished output to it, and it adds the reward."""
    yield
    worker, *rest = args
    outputs = argument(rest, kwargs, 0, "outputs") or kwargs.get("output")
    span = find_open("trajectory") if RECORDER.on else None
    if span is not None and outputs is not None:
        outputs = outputs if isinstance(outputs, list) else [outputs]
        _describe_outputs(span, outputs)
        _describe_end(span, outputs[-1], worker)


def _describe_outputs(span: Span, outputs: list[Any]) -> None:
    attributes = read_outputs(outputs)
    measured = getattr(outputs[-1], "metrics", None)
    for key, name in _MEASURED.items():
        value = to_number(getattr(measured, name, None))
        if value is not None and value >= 0:  # -1 means unknown in verl
            attributes[key] = value
    span.take_attributes(attributes)
    fields = _read_reward_fields(outputs[-1])
    if fields:
        span.set_attribute(attr.REWARD_FIELDS, fields)


def read_outputs(outputs: list[Any]) -> dict[str, Any]:
    """Return the attributes of a trajectory: the tokens of all its outputs, and what else the last one has."""
    each = [extract_trajectory({}, output) for output in outputs]
    attributes = each[-1]
    if len(each) > 1:
        for key in (attr.PROMPT_TOKENS, attr.RESPONSE_TOKENS, attr.GENERATED_TOKENS):
            tokens = [values[key] for values in each]
            attributes[key] = None if None in tokens else sum(tokens)
    return attributes


def _read_reward_fields(output: Any) -> tuple[str, ...]:
    """Return the components of the reward. For a function that returns a score alone verl makes ``acc`` of it, which is none."""
    fields = getattr(output, "extra_fields", None)
    info = fields.get("reward_extra_info") if isinstance(fields, dict) else None
    return read_components(info) if isinstance(info, dict) and info.keys() != {"acc"} else ()


def _describe_end(span: Span, output: Any, worker: Any) -> None:
    """Set the finish reason of a response that reached the configured length, which verl does not record."""
    rollout = getattr(worker, "rollout_config", None)
    if rollout is None:  # before verl 0.9
        rollout = getattr(getattr(getattr(worker, "config", None), "actor_rollout_ref", None), "rollout", None)
    bound = to_number(getattr(rollout, "response_length", None))
    tokens = getattr(output, "response_ids", None)
    if bound is not None and tokens is not None and len(tokens) >= bound:
        span.set_attribute(attr.GEN_AI_FINISH_REASONS, ("length",))


def _take_turn(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """End the previous turn and begin the next one, which includes the tool calls that follow."""
    if RECORDER.on:
        _end_turn()
        data = argument(args, kwargs, 1, "agent_data")
        index = int(to_number(getattr(data, "assistant_turns", 0)) or 0)
        Span.of_hook(_TURN, {attr.TURN_INDEX: index}).__enter__()


def _end_at_limit(args: tuple[Any, ...], kwargs: dict[str, Any], state: Any, _error: BaseException | None) -> None:
    """Set how a trajectory ended if the model has reached a limit: verl then ends it."""
    if _is_terminated(state) and RECORDER.on:
        loop, data = args[0], argument(args, kwargs, 1, "agent_data")
        if len(data.response_mask) >= loop.response_length:
            _set_end("length")
        elif _has_reached(data.assistant_turns, loop.max_assistant_turns) or _has_reached(
            data.user_turns, loop.max_user_turns
        ):
            _set_end("turn_limit")


def _is_terminated(state: Any) -> bool:
    return getattr(state, "name", "") == "TERMINATED"


def _has_reached(turns: int, limit: int | None) -> bool:
    return bool(limit) and turns >= (limit or 0)


def _set_end(end: str) -> None:
    span = find_open("trajectory")
    if span is not None:
        span.set_attribute(attr.TRAJECTORY_END, end)


def _end_turn(error: BaseException | None = None) -> None:
    span = current_span()
    if span is not None and span.site is _TURN and not span.stop:
        span.__exit__(None, error, None)


def _close_turns(_args: Any, _kwargs: Any, _result: Any, error: BaseException | None) -> None:
    """End the last turn after the whole loop, with its error."""
    _end_turn(error)


def _close_turn_after(_args: Any, _kwargs: Any, state: Any, _error: BaseException | None) -> None:
    """End a turn after its tool calls. verl ends a trajectory after them if the answers of the tools do not fit into the response."""
    _end_turn()
    if _is_terminated(state) and RECORDER.on:
        _set_end("length")


def _find_tool(loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """Return name and tool that are called; ``_OTHER`` and None if the loop lacks it: the model writes the name, and verl validates it only later.

    Since verl 0.8 each sample may have a selection of the loop's tools.
    """
    name = getattr(argument(args, kwargs, 0, "tool_call"), "name", None)
    tools = getattr(argument(args, kwargs, 2, "agent_data"), "_active_tools", None)
    if tools is None:
        tools = getattr(loop, "tools", None)
    if isinstance(name, str) and (type(tools) is dict or isinstance(tools, Mapping)) and name in tools:
        return to_name(name), tools[name]
    return OTHER_NAME, None


def tool_site(name: str) -> CallSite:
    """Return the call site of a tool, the same for each call of the first `MAX_TOOLS` tools."""
    site = _tools.get(name)
    if site is None:
        attributes = {attr.GEN_AI_TOOL: name, attr.GEN_AI_OPERATION: "execute_tool"}
        site = CallSite("tool", SPANS["tool"].name + name, attributes=attributes, hook=True)
        if len(_tools) < MAX_TOOLS:
            _tools[name] = site
    return site


def _begin_tool(loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
    name, tool = _find_tool(loop, args, kwargs)
    try:
        create = getattr(tool, "create", None)
        if create is not None and not getattr(create, PATCHED, False) and inspect.iscoroutinefunction(create):
            tool.create = surround("tool", _time_setup)(create)  # of the instance: the class is the user's
            setattr(tool.create, PATCHED, True)
    except Exception as error:
        error_boundary.record_internal_error("tool", error)
    return Span(tool_site(name))


def _time_setup(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Record how long a ``BaseTool`` makes the environment of a call, and that it failed."""
    span, begin = current_span(), clock()
    if not RECORDER.on or span is None or span.site.spec.verb != "tool":
        return
    try:
        yield
    except Exception:
        span.set_attribute(attr.OUTCOME, ENVIRONMENT_ERROR)
        raise
    finally:
        span.set_attribute(attr.TOOL_SETUP_SECONDS, clock() - begin)


ENVIRONMENT_ERROR: Final = "environment_error"
"""Outcome of a tool call whose environment could not be made."""


def _finish_tool(span: Span, _args: Any, _kwargs: Any, result: Any) -> None:
    response = result[0] if isinstance(result, tuple) and result else result
    text = getattr(response, "text", None) or ""
    outcome = "success"
    if text.startswith(_ERROR_BEGINS):
        outcome = next(word for begin, word in _ERROR_TEXTS if text.startswith(begin))
    if outcome == "error" and span.find_attribute(attr.GEN_AI_TOOL) == OTHER_NAME:
        outcome = "unknown_tool"  # verl 0.7 does not distinguish the two
    set_outcome(span, str(span.find_attribute(attr.OUTCOME) or outcome))


def set_outcome(span: Span, outcome: str) -> None:
    """Set the outcome of a tool call. One that failed has it as its error, unless it has another one."""
    span.set_attribute(attr.OUTCOME, outcome)
    if outcome != "success" and not span.detail.error:
        span.detail.error = outcome
        span.detail.status = STATUS_ERROR
        span.set_attribute(attr.ERROR_TYPE, outcome)


def _mark_failure(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Record the exception of a function tool: verl converts it to text inside the span of the call."""
    try:
        yield
    except BaseException as error:
        span = current_span()
        if span is not None and span.site.spec.verb == "tool":
            span.fail(error)
        raise


_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
_TOOLS: Final = "verl.experimental.agent_loop.tool_agent_loop"
HOOKS: Final = (
    Hook.wrapping(_LOOP, "AgentLoopWorker._run_agent_loop", in_span(_begin_trajectory), "no trajectories"),
    Hook.wrapping(
        _LOOP,
        "AgentLoopWorker._compute_score",
        surround("trajectory", _read_outputs),
        "no tokens and reward on trajectories",
    ),
    Hook.wrapping(
        _TOOLS,
        "ToolAgentLoop._handle_generating_state",
        surround_shortly("turn", _end_at_limit, _take_turn),
        "no turns",
        others={
            "ToolAgentLoop._handle_processing_tools_state": surround_shortly("turn", _close_turn_after),
            "ToolAgentLoop.run": surround_shortly("turn", _close_turns),
        },
    ),
    Hook.wrapping(_TOOLS, "ToolAgentLoop._call_tool", in_span(_begin_tool, _finish_tool), "no tool calls"),
    Hook.wrapping(
        "verl.tools.function_tool",
        "FunctionTool.call",
        surround("tool", _mark_failure),
        "no exception types on failed tool calls",
        since="verl 0.8",
    ),
)
