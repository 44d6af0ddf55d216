# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's trainers: the current step, submission, validation, warm-up, checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.api import RECORDER, CallSite, Span, current_session, current_span, phase_site, to_number
from verl_otel.integrations.patch import Begin, Finish, Hook, add_callbacks, replace, wrap_method
from verl_otel.integrations.verl import gpu_time, lineage
from verl_otel.integrations.verl.tracking import end_run
from verl_otel.model import AttributeValue
from verl_otel.semconv import attributes as attr

_VALIDATION: Final = CallSite("validation", hook=True)
_WARMUP: Final = CallSite("warmup", hook=True)
_CHECKPOINT: Final = CallSite("checkpoint", hook=True)


class Trainer:
    """The trainer in this process, as far as spans need it."""

    instance: Any = None
    step: Span | None = None
    """The span of the step that was opened last."""
    algorithm = ""

    @classmethod
    def step_number(cls) -> int | None:
        """Return the number of the current step, as verl counts it."""
        number = to_number(getattr(cls.instance, "global_steps", None))
        return None if number is None else int(number)

    @classmethod
    def describe_step(cls) -> dict[str, AttributeValue]:
        """Return the attributes of a step."""
        attributes: dict[str, AttributeValue] = {}
        number = cls.step_number()
        if number is not None:
            attributes[attr.STEP_NUMBER] = number
        if cls.instance is not None:
            mode = getattr(cls.instance, "trainer_mode", None)
            attributes[attr.TRAINER_MODE] = str(mode or type(cls.instance).__name__)
        if cls.algorithm:
            attributes[attr.ALGORITHM] = cls.algorithm
        return attributes


def _register(trainer: Any) -> None:
    with error_boundary.suppress_errors("trainer"):
        if Trainer.instance is not trainer:
            gpu_time.begin_run()
        Trainer.instance = trainer
        config = getattr(trainer, "config", None)
        Trainer.algorithm = str(config.algorithm.adv_estimator) if config is not None else ""
        buffer = getattr(trainer, "replay_buffer", None)
        if buffer is not None:
            lineage.watch(buffer)


def _wrap_fit(original: Any) -> Any:
    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _track_run(self):
            result = original(self, *args, **kwargs)
        time.sleep(_last_drain())
        return result

    return fit


def _wrap_async_fit(original: Any) -> Any:
    @functools.wraps(original)
    async def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _track_run(self):
            result = await original(self, *args, **kwargs)
        await asyncio.sleep(_last_drain())
        return result

    return fit


@contextlib.contextmanager
def _track_run(trainer: Any) -> Iterator[None]:
    """Register a trainer while it trains, and record how the training ended."""
    _register(trainer)
    try:
        yield
    except BaseException:
        end_run(failed=True)
        raise
    end_run(failed=False)


def _last_drain() -> float:
    """Return the seconds to wait for the last drain of the workers: Ray kills them without running their ``atexit`` handlers."""
    session = current_session()
    return session.last_drain_seconds if RECORDER.on and session is not None else 0.0


def _register_at_step(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Register a trainer whose ``fit`` cannot be wrapped, because Ray pickles its class by value; runs first in every step."""
    if Trainer.instance is not args[0]:
        _register(args[0])


def _begin_at_step(site: CallSite) -> Any:
    def begin(trainer: Any, _args: Any, _kwargs: Any) -> Span:
        if Trainer.instance is None:
            _register(trainer)
        number = to_number(getattr(trainer, "global_steps", None))
        return Span(site, {attr.STEP_NUMBER: int(number)} if number is not None else None)

    return begin


def _discard_if_idle(span: Span, args: Any, kwargs: Any, result: Any) -> None:  # noqa: ARG001 - see `Finish`
    """Discard the span of a warm-up that submitted nothing: verl always calls it."""
    submitted = to_number(result) or to_number(span.attributes.get(attr.PROMPTS))
    if submitted:
        span.set_attribute(attr.PROMPTS, int(submitted))
    else:
        span.discard()


def _patch_fit(owner: str) -> Callable[[ModuleType], None]:
    return lambda module: replace(getattr(module, owner), "fit", _wrap_fit)


def _patch_method(owner: str, name: str, begin: Begin, finish: Finish | None = None) -> Callable[[ModuleType], None]:
    return lambda module: wrap_method(getattr(module, owner), name, begin, finish)


def _begin_submit(*_: Any) -> Span:
    return Span(phase_site("submit", hook=True))


def _patch_submit(module: ModuleType) -> None:
    replace(module.PPOTrainer, "_submit_batch_to_rollout", add_callbacks("submit", after=_count_prompts))


def _count_prompts(_args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
    span = current_span()
    prompts = to_number(result)
    if span is not None and prompts is not None:
        span.set_attribute(attr.PROMPTS, int(prompts) + int(to_number(span.attributes.get(attr.PROMPTS)) or 0))


def _patch_separate(module: ModuleType) -> None:
    replace(module.SeparateRayPPOTrainer, "_fit_start_profile", add_callbacks("trainer", before=_register_at_step))


def _patch_one_step(module: ModuleType) -> None:
    replace(module.OneStepOffRayTrainer, "fit", _wrap_async_fit)


_V1: Final = "verl.trainer.ppo.v1.trainer_base"
_LEGACY: Final = "verl.trainer.ppo.ray_trainer"


def _v1(name: str, install: Callable[[ModuleType], None], gives: str) -> Hook:
    return Hook(_V1, f"PPOTrainer.{name}", install, f"{gives} (v1 trainers)", since="verl 0.9")


def _wrapped(module: str, owner: str, name: str, site: CallSite, gives: str, since: str = "") -> Hook:
    return Hook(module, f"{owner}.{name}", _patch_method(owner, name, _begin_at_step(site)), gives, since=since)


def _warmup(name: str) -> Hook:
    install = _patch_method("PPOTrainer", name, _begin_at_step(_WARMUP), _discard_if_idle)
    return _v1(name, install, "trajectories that are generated ahead are linked to nothing")


HOOKS: Final = (
    _v1("fit", _patch_fit("PPOTrainer"), "no step numbers, no lineage"),
    _v1("prepare_step", _patch_method("PPOTrainer", "prepare_step", _begin_submit), "no phase `submit`"),
    _wrapped(_V1, "PPOTrainer", "_validate", _VALIDATION, "no validation (v1 trainers)", "verl 0.9"),
    _wrapped(_V1, "PPOTrainer", "_save_checkpoint", _CHECKPOINT, "no checkpoints (v1 trainers)", "verl 0.9"),
    _warmup("_add_async_warmup_batches"),
    _warmup("_reissue_inflight_prompts"),
    _v1("_submit_batch_to_rollout", _patch_submit, "no number of submitted prompts"),
    Hook(
        _LEGACY, "RayPPOTrainer.fit", _patch_fit("RayPPOTrainer"), "no step numbers, no end of the run (legacy trainer)"
    ),
    _wrapped(_LEGACY, "RayPPOTrainer", "_validate", _VALIDATION, "no validation (legacy trainer)"),
    _wrapped(_LEGACY, "RayPPOTrainer", "_save_checkpoint", _CHECKPOINT, "no checkpoints (legacy trainer)"),
    Hook(
        "verl.experimental.separation.ray_trainer",
        "SeparateRayPPOTrainer._fit_start_profile",
        _patch_separate,
        "no step numbers (one-step-off and fully asynchronous trainers)",
    ),
    Hook(
        "verl.experimental.one_step_off_policy.ray_trainer",
        "OneStepOffRayTrainer.fit",
        _patch_one_step,
        "how the run ended, and its last second (one-step-off trainer)",
        since="verl 0.8",
    ),
)
