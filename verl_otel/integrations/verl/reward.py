# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's reward loop: one span per sample, and its context in the threads in which reward functions run."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.patch import Hook, argument, replace, wrap_method
from verl_otel.model import AttributeValue
from verl_otel.recording.context import bind_context
from verl_otel.recording.extract import extract_reward
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span
from verl_otel.recording.values import to_text
from verl_otel.semconv import attributes as attr

_REWARD: Final = Site("reward", hook=True)


class ContextExecutor(ThreadPoolExecutor):
    """A thread pool whose work runs in the context of whoever submitted it.

    verl calls a plain reward function by ``loop.run_in_executor``, which forgets the context.
    """

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call; see `ThreadPoolExecutor.submit`."""
        return super().submit(bind_context(function), *args, **kwargs)


def _begin(worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
    data = argument(args, kwargs, 0, "data")
    found: dict[str, AttributeValue] = {}
    sources = data.non_tensor_batch.get("data_source")
    if sources is not None and len(sources):
        found[attr.DATA_SOURCE] = to_text(sources[0])
    function = _function_name(worker)
    if function:
        found[attr.REWARD_FUNCTION] = function
    return Span(_REWARD, found)


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


def _carry_context(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with _guard.swallowed("reward executor"):
            loop = getattr(self, "loop", None) or self.reward_manager.loop  # verl 0.7: only the manager has it
            if getattr(loop, "_default_executor", None) is None:  # somebody else's pool is left alone
                loop.set_default_executor(ContextExecutor())

    return init


def _patch(module: ModuleType) -> None:
    wrap_method(module.RewardLoopWorker, "compute_score", _begin, _finish)


def _patch_init(module: ModuleType) -> None:
    replace(module.RewardLoopWorker, "__init__", _carry_context)


_MODULE: Final = "verl.experimental.reward_loop.reward_loop"
HOOKS: Final = (
    Hook(_MODULE, "RewardLoopWorker.compute_score", _patch, "no rewards"),
    Hook(_MODULE, "RewardLoopWorker.__init__", _patch_init, "spans inside plain reward functions have no parents"),
)
