# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's reward loop: one span per sample, and its context in the threads of reward functions."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from verl_otel.integrations.patch import Hook, add_callbacks, argument, in_span
from verl_otel.model import AttributeValue
from verl_otel.recording.attribute_values import to_text
from verl_otel.recording.call_attributes import extract_reward
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import bind_context
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr

_REWARD: Final = CallSite("reward", hook=True)


class ContextExecutor(ThreadPoolExecutor):
    """A thread pool whose tasks run in OpenTelemetry's context of the submitter.

    verl calls a synchronous reward function by ``loop.run_in_executor``, which does not propagate the context.
    """

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call; see `ThreadPoolExecutor.submit`."""
        return super().submit(bind_context(function) if RECORDER.on else function, *args, **kwargs)


def _begin(worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
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


def _finish(span: Span, _args: Any, _kwargs: Any, result: Any) -> None:
    for key, value in extract_reward({}, result).items():
        if value is not None and key not in span.attributes:
            span.set_attribute(key, value)


def _carry_context(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
    worker = args[0]
    loop = getattr(worker, "loop", None) or worker.reward_manager.loop  # verl 0.7: only the manager has it
    if getattr(loop, "_default_executor", None) is None:  # a pool of the host stays
        loop.set_default_executor(ContextExecutor())


_MODULE: Final = "verl.experimental.reward_loop.reward_loop"
HOOKS: Final = (
    Hook.wrapping(_MODULE, "RewardLoopWorker.compute_score", in_span(_begin, _finish), "no rewards"),
    Hook.wrapping(
        _MODULE,
        "RewardLoopWorker.__init__",
        add_callbacks("reward executor", after=_carry_context),
        "spans inside plain reward functions have no parents",
    ),
)
