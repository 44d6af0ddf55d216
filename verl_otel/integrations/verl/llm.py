# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What serves a trajectory of verl: LLM calls, rewards, and the weights of the engines.

An LLM call is a client span in the agent loop, and a server span in the actor of the engine.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, argument, in_span
from verl_otel.integrations.spans import OPENERS, current_span_context, describe, find_open
from verl_otel.integrations.verl import lineage
from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import to_number, to_text
from verl_otel.recording.call_attributes import extract_llm, extract_reward
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import bind_context, context_access
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import TRACESTATE_TRAJECTORY, TRACESTATE_VALIDATION

_SERVER: Final = CallSite("generate", hook=True)
_TRAJECTORIES: Final = tuple(state.partition("=")[2] for state in (TRACESTATE_TRAJECTORY, TRACESTATE_VALIDATION))
_sites: Final[WeakKeyDictionary[Any, CallSite]] = WeakKeyDictionary()
"""The call site of each client. It is no attribute of the client, because clients are pickled and the receiver may lack verl-otel."""


def install() -> None:
    """Register the opener of the server's ``generate``, for any class of replica."""
    OPENERS["generate"] = _open_server


def _open_server(class_name: str) -> Span | None:
    """Return the server span of an LLM call; None for another actor's ``generate``, outside of a trajectory."""
    caller = current_span_context()
    if not caller.is_valid or caller.trace_state.get("verl") not in _TRAJECTORIES:
        return None
    return Span(_SERVER, {attr.WORKER_CLASS: class_name})


def _site(client: Any) -> CallSite:
    """Return the call site of a client. The configuration is read once, because that takes longer than the call."""
    try:
        return _sites[client]
    except KeyError:
        pass
    except Exception as error:  # it cannot be hashed, or referred to weakly
        error_boundary.record_internal_error("llm client", error)
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


_is_counted: Final[ContextVar[bool]] = ContextVar("is_counted", default=False)
"""Whether the current call of the client is a part of one that is a turn already."""


def _count_turn() -> None:
    """Count a call of the model in the current trajectory, whatever its outcome."""
    trajectory = find_open("trajectory") if RECORDER.on and not _is_counted.get() else None
    if trajectory is not None:
        turns = to_number(trajectory.find_attribute(attr.TURNS))
        trajectory.set_attribute(attr.TURNS, int(turns or 0) + 1)


def _count_once(_args: Any, _kwargs: Any) -> Steps:
    """Count a call as one turn, also where a weight sync interrupts it and the client calls the engine again for the rest."""
    _count_turn()
    token = _is_counted.set(True)
    try:
        yield
    finally:
        _is_counted.reset(token)


def _begin_llm(client: Any, _args: Any, kwargs: dict[str, Any]) -> Span:
    _count_turn()
    prompt = kwargs.get("prompt_ids")
    return Span.of_hook(_site(client), {attr.GEN_AI_INPUT_TOKENS: len(prompt)} if prompt is not None else {})


def _finish_llm(span: Span, _args: Any, kwargs: dict[str, Any], result: Any) -> None:
    attributes = extract_llm(kwargs, result)
    preempted = attributes[attr.PREEMPTIONS]
    if preempted is not None and preempted < 0:
        attributes[attr.PREEMPTIONS] = None  # -1 means unknown in verl
    span.take_attributes(attributes)
    trajectory = find_open("trajectory")
    reasons = attributes[attr.GEN_AI_FINISH_REASONS]
    if trajectory is not None and reasons is not None:
        trajectory.set_attribute(attr.GEN_AI_FINISH_REASONS, reasons)


# -- verl's reward loop: one span per sample, and its context in the threads of reward functions --

_REWARD: Final = CallSite("reward", hook=True)


class ContextExecutor(ThreadPoolExecutor):
    """A thread pool whose tasks run in OpenTelemetry's context of the submitter.

    verl calls a synchronous reward function by ``loop.run_in_executor``, which does not propagate the context.
    """

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call; see `ThreadPoolExecutor.submit`."""
        return super().submit(bind_context(function) if RECORDER.on else function, *args, **kwargs)


def _begin_reward(worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
    data = argument(args, kwargs, 0, "data")
    attributes: dict[str, AttributeValue] = {}
    sources = data.non_tensor_batch.get("data_source")
    if sources is not None and len(sources):
        attributes[attr.DATA_SOURCE] = to_text(sources[0])
    function = _function_name(worker)
    if function:
        attributes[attr.REWARD_FUNCTION] = function
    return Span(_REWARD, attributes)


def _function_name(worker: Any) -> str:
    manager = getattr(worker, "reward_manager", None)
    function = getattr(manager, "compute_score", None)
    while isinstance(function, functools.partial):
        function = function.args[0] if function.args and callable(function.args[0]) else function.func
    return getattr(function, "__qualname__", "") or type(manager).__name__


def _finish_reward(span: Span, _args: Any, _kwargs: Any, result: Any) -> None:
    known = span.attributes
    describe(span, {key: value for key, value in extract_reward({}, result).items() if key not in known})


def _carry_context(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    yield
    worker = args[0]
    loop = getattr(worker, "loop", None) or worker.reward_manager.loop  # verl 0.7: only the manager has it
    if getattr(loop, "_default_executor", None) is None:  # a pool of the host stays
        loop.set_default_executor(ContextExecutor())


# -- Coroutines that verl may run in another thread than that of the caller --
# ``@auto_await`` lets a synchronous caller call a coroutine. If an event loop is running already (the one-step-off and fully asynchronous
# trainers), it runs the coroutine in a new thread without the caller's context: the trajectories of a validation would lose their parent.


def wrap_awaited(original: Any, wrap: Callable[[Any], Any] | None = None) -> Any:
    """Return an ``@auto_await`` method that runs in its caller's context, with ``wrap`` around the coroutine function in it.

    The wrapper goes inside: ``@auto_await`` inspects its caller's frame to see whether it will be awaited, so a wrapper around it breaks
    asynchronous callers (seen). Another method is only wrapped.
    """
    from verl.utils.ray_utils import auto_await

    inner = getattr(original, "__wrapped__", None)
    if inner is None or not inspect.iscoroutinefunction(inner):
        return original if wrap is None else wrap(original)
    return auto_await(_keep_context(inner if wrap is None else wrap(inner)))


def _keep_context(function: Any) -> Any:
    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Any:
        coroutine = function(*args, **kwargs)
        if not RECORDER.on or not inspect.iscoroutine(coroutine):
            return coroutine
        return _run_in(context_access().get(), coroutine)

    return start


async def _run_in(context: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    current = context_access()
    token = current.set(context)
    try:
        return await coroutine
    finally:
        with contextlib.suppress(ValueError):  # closed by another task
            current.reset(token)


# -- Weight sync: from the actor to the rollout replicas --

_SYNC: Final = CallSite("weight_sync", hook=True)


def _begin_sync(manager: Any, _args: Any, _kwargs: Any) -> Span:
    attributes: dict[str, AttributeValue] = {attr.WEIGHT_SYNC_BACKEND: to_text(getattr(manager, "backend", ""))}
    replicas = getattr(manager, "replicas", None)
    if replicas is not None:
        attributes[attr.REPLICAS] = len(replicas)
    return Span(_SYNC, attributes)


def _finish_sync(span: Span, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    lineage.note_sync(argument(args, kwargs, 0, "global_steps"), time.time())
    if isinstance(result, dict):
        megabytes = to_number(result.get("checkpoint_engine/payload_mbytes"))
        if megabytes is not None:
            span.set_attribute(attr.BYTES, int(megabytes * 2**20))


_LLM: Final = in_span(_begin_llm, _finish_llm)
_TURN: Final = surround("turn", _count_once)
_PARTS: Final = "each part of an interrupted generation counts as a turn"
_REWARDS: Final = "verl.experimental.reward_loop.reward_loop"
HOOKS: Final = (
    Hook.wrapping(
        "verl.workers.rollout.llm_server", "LLMServerClient.generate", _LLM, "no LLM calls", since="verl 0.8"
    ),
    Hook.wrapping(
        "verl.experimental.agent_loop.agent_loop",
        "AsyncLLMServerManager.generate",
        _LLM,
        "no LLM calls",
        until="verl 0.8",
    ),
    Hook.wrapping(
        "verl.workers.rollout.llm_server", "FullyAsyncLLMServerClient.generate", _TURN, _PARTS, since="verl 0.9"
    ),
    Hook.wrapping(  # verl 0.8 defines it there; later releases import it, and one class is wrapped once
        "verl.experimental.fully_async_policy.fully_async_rollouter",
        "FullyAsyncLLMServerClient.generate",
        _TURN,
        _PARTS,
        since="verl 0.8",
    ),
    Hook.wrapping(_REWARDS, "RewardLoopWorker.compute_score", in_span(_begin_reward, _finish_reward), "no rewards"),
    Hook.wrapping(
        _REWARDS,
        "RewardLoopWorker.__init__",
        surround("reward executor", _carry_context),
        "spans inside plain reward functions have no parents",
    ),
    Hook.wrapping(
        "verl.checkpoint_engine.base",
        "CheckpointEngineManager.update_weights",
        functools.partial(wrap_awaited, wrap=in_span(_begin_sync, _finish_sync)),
        "no weight sync",
    ),
)
