# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's trainers: which step it is, submission, validation, warm-up, checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.integrations.patch import Begin, Finish, Hook, replace, wrap_method
from verl_otel.integrations.verl import gpu_time, lineage
from verl_otel.integrations.verl.tracking import end_run
from verl_otel.model import AttributeValue
from verl_otel.recording.phases import phase_site
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span, current
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_number
from verl_otel.semconv import attributes as attr

_VALIDATION: Final = Site("validation", hook=True)
_WARMUP: Final = Site("warmup", hook=True)
_CHECKPOINT: Final = Site("checkpoint", hook=True)


class Trainer:
    """The trainer that runs in this process, as far as spans need to know it."""

    instance: Any = None
    step: Span | None = None
    """The span of the step that was opened last."""
    algorithm = ""

    @classmethod
    def step_number(cls) -> int | None:
        """Return the number of the present step, as verl counts it."""
        number = to_number(getattr(cls.instance, "global_steps", None))
        return None if number is None else int(number)

    @classmethod
    def describe_step(cls) -> dict[str, AttributeValue]:
        """Return the attributes of a step."""
        found: dict[str, AttributeValue] = {}
        number = cls.step_number()
        if number is not None:
            found[attr.STEP_NUMBER] = number
        if cls.instance is not None:
            mode = getattr(cls.instance, "trainer_mode", None)
            found[attr.TRAINER_MODE] = str(mode or type(cls.instance).__name__)
        if cls.algorithm:
            found[attr.ALGORITHM] = cls.algorithm
        return found


def _remember(trainer: Any) -> None:
    with _guard.swallowed("trainer"):
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
        with _run_of(self):
            result = original(self, *args, **kwargs)
        time.sleep(_last_drain())
        return result

    return fit


def _wrap_async_fit(original: Any) -> Any:
    @functools.wraps(original)
    async def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _run_of(self):
            result = await original(self, *args, **kwargs)
        await asyncio.sleep(_last_drain())
        return result

    return fit


@contextlib.contextmanager
def _run_of(trainer: Any) -> Iterator[None]:
    """Know the trainer while it trains, and say how that ended."""
    _remember(trainer)
    try:
        yield
    except BaseException:
        end_run(failed=True)
        raise
    end_run(failed=False)


def _last_drain() -> float:
    """Return the seconds of one drain: the workers need them, Ray kills them with the trainer without running their ``atexit``."""
    running = session.current()
    return running.config.drain_interval + 0.2 if Store.on and running is not None else 0.0


def _remember_at_step(original: Any) -> Any:
    """Wrap the first thing in every step of a trainer whose ``fit`` cannot be wrapped: Ray pickles its class by value."""

    @functools.wraps(original)
    def start_profile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if Trainer.instance is not self:
            _remember(self)
        return original(self, *args, **kwargs)

    return start_profile


def _at_step(site: Site) -> Any:
    def begin(trainer: Any, _args: Any, _kwargs: Any) -> Span:
        if Trainer.instance is None:
            _remember(trainer)
        number = to_number(getattr(trainer, "global_steps", None))
        return Span(site, {attr.STEP_NUMBER: int(number)} if number is not None else None)

    return begin


def _forget_if_idle(span: Span, args: Any, kwargs: Any, result: Any) -> None:  # noqa: ARG001 - see `Finish`
    """Drop the span of a warm-up that submitted nothing: verl always asks."""
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
    replace(module.PPOTrainer, "_submit_batch_to_rollout", _wrap_submit)


def _wrap_submit(original: Any) -> Any:
    @functools.wraps(original)
    def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        with _guard.swallowed("submit"):
            span = current()
            prompts = to_number(result)
            if span is not None and prompts is not None:
                span.set_attribute(attr.PROMPTS, int(prompts) + int(to_number(span.attributes.get(attr.PROMPTS)) or 0))
        return result

    return submit


def _patch_separate(module: ModuleType) -> None:
    replace(module.SeparateRayPPOTrainer, "_fit_start_profile", _remember_at_step)


def _patch_one_step(module: ModuleType) -> None:
    replace(module.OneStepOffRayTrainer, "fit", _wrap_async_fit)


_V1: Final = "verl.trainer.ppo.v1.trainer_base"
_LEGACY: Final = "verl.trainer.ppo.ray_trainer"


def _v1(name: str, install: Callable[[ModuleType], None], gives: str) -> Hook:
    return Hook(_V1, f"PPOTrainer.{name}", install, f"{gives} (v1 trainers)", since="verl 0.9")


def _wrapped(module: str, owner: str, name: str, site: Site, gives: str, since: str = "") -> Hook:
    return Hook(module, f"{owner}.{name}", _patch_method(owner, name, _at_step(site)), gives, since=since)


def _warmup(name: str) -> Hook:
    install = _patch_method("PPOTrainer", name, _at_step(_WARMUP), _forget_if_idle)
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
