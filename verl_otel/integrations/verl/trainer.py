# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's trainers: the current step and its rounds, submission, validation, warm-up, checkpoints.

Trainers of other projects derive from verl's and override ``fit``, ``_validate`` or ``_save_checkpoint``. With dynamic
sampling (DAPO) their loop opens verl's timer ``step`` for every round of generation, several times before one update:
these rounds are one step. So are the local steps of verl's fully asynchronous trainer that make one version of the
weights: verl logs and saves by version.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import time
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

from verl_otel._internal import error_boundary, log_lines, process_state
from verl_otel.integrations.patch import PATCHED, Hook, argument, in_span
from verl_otel.integrations.spans import find_open
from verl_otel.integrations.verl import gpu_time, guards, lineage
from verl_otel.integrations.verl.tracking import end_run, on_finish
from verl_otel.model import AttributeValue
from verl_otel.recording import run_log
from verl_otel.recording.attribute_values import error_name, is_cancellation, to_number
from verl_otel.recording.callsite import CallSite, phase_site
from verl_otel.recording.decorate import Steps, Wrapping, surround, surround_shortly
from verl_otel.recording.series import counter
from verl_otel.recording.span import Span, clock, current_span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names, run_state
from verl_otel.session import alerts, current_session, run_status

_logger = logging.getLogger("verl_otel")
_STEP: Final = CallSite("step", hook=True)
MAX_FRAMES: Final = 16
"""How many callers of a timer may lie between it and its trainer."""
_VALIDATION: Final = CallSite("validation", hook=True)
_WARMUP: Final = CallSite("warmup", hook=True)
_CHECKPOINT: Final = CallSite("checkpoint", hook=True)


class Trainer:
    """The trainer in this process, as far as spans need it."""

    instance: Any = None
    training: Any = None
    """The trainer whose ``fit`` runs."""
    step: Span | None = None
    """The span of the step that was opened last."""
    round_end = 0.0
    """When the last round of ``step`` ended, on the clock of spans; 0: none has."""
    awaits_round = False
    """Whether ``step`` waits for its next round."""
    algorithm = ""
    created: Any = None
    """Weak reference to the trainer that was created last, until it is registered."""
    found: Any = None
    """Weak reference to a trainer that was found at its timer. It is ``instance`` during its steps only, since it may end unnoticed."""

    @classmethod
    def step_number(cls) -> int | None:
        """Return the number of the current step, as verl logs it; before its last update, if the trainer is fully asynchronous."""
        version = _read_version(cls.instance)
        number = to_number(getattr(cls.instance, "global_steps", None)) if version is None else version + 1
        return None if number is None else int(number)

    @classmethod
    def describe_step(cls) -> dict[str, AttributeValue]:
        """Return the attributes of a step."""
        trainer = cls.created and cls.created()  # its class overrides ``fit``
        if trainer is None and cls.instance is None:
            trainer = (cls.found and cls.found()) or _find_trainer()
        if trainer is not None:
            _register_untracked(trainer)
        attributes: dict[str, AttributeValue] = {}
        number = cls.step_number()
        if number is not None:
            attributes[attr.STEP_NUMBER] = number
        if cls.instance is not None:
            mode = getattr(cls.instance, "trainer_mode", None)
            attributes[attr.TRAINER_MODE] = str(mode or type(cls.instance).__name__)
            run_status.note_total_steps(to_number(getattr(cls.instance, "total_training_steps", None)))
        if cls.algorithm:
            attributes[attr.ALGORITHM] = cls.algorithm
        return attributes


def _read_version(trainer: Any) -> int | None:
    """Return the last version of the weights of a fully asynchronous trainer, which counts local steps; None for others."""
    version = to_number(getattr(trainer, "current_param_version", None))
    return None if version is None else int(version)


def _register(trainer: Any) -> None:
    with error_boundary.suppress_errors("trainer"):
        estimator = getattr(getattr(getattr(trainer, "config", None), "algorithm", None), "adv_estimator", "")
        Trainer.algorithm = str(getattr(estimator, "value", estimator))
        if Trainer.instance is not trainer:
            _end_rounds()
            gpu_time.begin_run()
            lineage.begin_run(Trainer.algorithm)
            Trainer.step = None
        Trainer.instance, Trainer.created, Trainer.found = trainer, None, None
        guards.watch(trainer)
        buffer = getattr(trainer, "replay_buffer", None)
        if buffer is not None:
            lineage.watch(buffer, batches=int(to_number(getattr(trainer, "parameter_sync_step", 1)) or 1))


def _register_untracked(trainer: Any) -> None:
    """Register a trainer whose ``fit`` is not wrapped. The end of ``Tracking`` is its end; if no hook has seen it before, it was found."""
    if Trainer.found is None or Trainer.found() is not trainer:
        is_verls, is_new = _is_verls(type(trainer)), Trainer.created is None or Trainer.created() is not trainer
        _register(trainer)
        if not is_verls:
            on_finish(_end_untracked)
            Trainer.found = weakref.ref(trainer) if is_new else None
    Trainer.instance = trainer


def _leave_found() -> None:
    """Refer to a found trainer only while it is in one of its methods: its trackers finish when it is deleted."""
    if Trainer.found is not None:
        Trainer.instance = None
        guards.watch(None)


_UNHELD: Final = 3
"""References to the variables of a frame that no other code holds: the frame's, ours, and the argument of `sys.getrefcount`."""


def _find_trainer() -> Any:
    """Return the trainer in whose method a step is opened, if its class is none of verl's (SPIN); else None."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            variables = frame.f_locals
            owner = variables.get("self")
            # Before Python 3.13 it is a copy, which would keep the batches of a loop until the loop ends. It is that of
            # `locals()`, too: one that the frame's code holds itself stays.
            if type(variables) is dict and sys.getrefcount(variables) <= _UNHELD:
                variables.clear()
            if "global_steps" in getattr(owner, "__dict__", ()):
                return owner
        frame = frame.f_back
    return None


def _is_verls(thing: Any) -> bool:
    return str(thing.__module__).partition(".")[0] == "verl"


def open_step() -> Span:
    """Begin a step, or return the open one if this is its next round: the trainer has not counted further."""
    attributes = Trainer.describe_step()
    before = Trainer.step
    if before is not None and Trainer.awaits_round:
        if attributes.get(attr.STEP_NUMBER) == before.attributes[attr.STEP_NUMBER]:
            Trainer.awaits_round = False
            return before
        _end_rounds()
    Trainer.round_end = 0.0
    span = Trainer.step = Span(_STEP, attributes)
    run_log.begin_step(span)
    if before is not None and before.stop:
        counter(metric_names.STEP_BETWEEN_TIME).record(clock() - before.stop)
    return span.__enter__()


def close_step(span: Span, error: BaseException | None) -> None:
    """End a step, unless it has another round: then it stays open."""
    if error is None and _is_round(span):
        Trainer.round_end, Trainer.awaits_round = clock(), True
    else:
        _end_step(span, error)
    if error is not None and _read_version(Trainer.instance) is not None:
        end_run(error)  # its ``fit``, which cannot be wrapped, raises the error
    _leave_found()


def stop_step(span: Span, error: BaseException | None) -> None:
    """End a step in which the trainer found that there are no more samples: with its last round, or not at all if it had none."""
    if span is Trainer.step and Trainer.round_end:
        span.set_attribute(attr.OUTCOME, "cancelled")  # verl does not log it
        Trainer.awaits_round = True
        _end_rounds()
    else:
        span.discard()
        span.close(error)


def _is_round(span: Span) -> bool:
    """Return whether a step that could end has generated for a later update, or has made a local update of the next version."""
    is_open = span is Trainer.step and span.start and not span.stop
    if not is_open or attr.STEP_NUMBER not in span.attributes:
        return False
    if _read_version(Trainer.instance) is not None:
        return getattr(Trainer.instance, "local_trigger_step", 1) != 1
    return not _is_verls(type(Trainer.instance)) and gpu_time.is_round()


def _end_rounds() -> None:
    """End a step that waits for another round, at the end of its last one: the trainer has counted further or has ended."""
    with error_boundary.suppress_errors("trainer"):
        step, end, waits = Trainer.step, Trainer.round_end, Trainer.awaits_round
        Trainer.round_end, Trainer.awaits_round = 0.0, False
        if step is not None and waits:
            step.stop = end
            RECORDER.end(step)
            _end_step(step, None)


def _end_step(span: Span, error: BaseException | None) -> None:
    with error_boundary.suppress_errors("trained rows"):
        lineage.end_step()
    span.close(error)
    if span.start:
        attributes = span.attributes
        number, mode = attributes.get(attr.STEP_NUMBER), str(attributes.get(attr.TRAINER_MODE, ""))
        gpu_time.end_step(span.start, span.stop, number, Trainer.instance, mode)


def _remember(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Remember a new trainer for its first step."""
    yield
    trainer = args[0]
    Trainer.created = weakref.ref(trainer)
    if not _is_verls(type(trainer)):
        _wrap_methods(trainer, _OVERRIDDEN)


def _wrap_methods(trainer: Any, wrappers: Mapping[str, Wrapping]) -> None:
    """Replace methods of a trainer.

    The instance is patched, because a class of the user's main program is pickled by value, and its receiver may lack verl-otel; so is the class of
    verl's fully asynchronous trainer.
    """
    for name, wrap in wrappers.items():
        method = getattr(trainer, name, None)
        if inspect.ismethod(method) and not getattr(method, PATCHED, False):
            setattr(trainer, name, functools.partial(wrap(method.__func__), trainer))


def _track_run(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Register a trainer while it trains, and record how the training ended."""
    if Trainer.training is args[0]:  # an override calls verl's own method: the training ends with the override
        return
    _register(args[0])
    on_finish(None)
    Trainer.training, error = args[0], None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        Trainer.training = None
        _end_rounds()
        end_run(error)
        _release(args[0])
    time.sleep(_last_drain())


def _release(trainer: Any) -> None:
    """Keep no reference to a trainer that has ended: some of verl's trackers finish when it is deleted."""
    with error_boundary.suppress_errors("trainer"):
        if Trainer.instance is trainer:
            Trainer.instance = Trainer.step = None
            guards.watch(None)


def _end_untracked() -> float:
    """End the last step of a trainer whose ``fit`` is not wrapped. Returns the seconds to wait for the last drain."""
    _end_rounds()
    Trainer.step = Trainer.found = None
    return _last_drain()


def _last_drain() -> float:
    """Return the seconds to wait for the last drain of the workers: Ray kills them without running their ``atexit`` handlers."""
    session = current_session()
    return session.last_drain_seconds if RECORDER.on and session is not None else 0.0


def _register_at_step(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Register a trainer whose ``fit`` cannot be wrapped, because Ray pickles its class by value; runs first in every step."""
    trainer = args[0]
    if Trainer.instance is not trainer:
        _register(trainer)
        if _read_version(trainer) is not None:
            _wrap_methods(trainer, _BETWEEN_STEPS)
    yield


def _end_at_error(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Record that a fully asynchronous training ends with an exception between two steps."""
    try:
        yield
    except Exception as error:
        _end_rounds()
        end_run(error)
        raise


def _end_at_last_save(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Record the end of a fully asynchronous training: the call with ``force`` is the last one of its ``fit``."""
    yield from _end_at_error(args, kwargs)
    if argument(args, kwargs, 1, "force"):
        _end_rounds()
        end_run()
        time.sleep(_last_drain())


def _begin_at_step(site: CallSite) -> Any:
    def begin(trainer: Any, _args: Any, _kwargs: Any) -> Span | None:
        if find_open(site.spec.verb) is not None:  # an override calls verl's own method
            return None
        if Trainer.instance is None:
            _register_untracked(trainer)
            _leave_found()
        version = _read_version(trainer)
        number = to_number(getattr(trainer, "global_steps", None)) if version is None else version
        return Span(site, {attr.STEP_NUMBER: int(number)} if number is not None else None)

    return begin


def _discard_if_idle(span: Span, args: Any, kwargs: Any, result: Any) -> None:  # noqa: ARG001 - see `Finish`
    """Discard the span of a warm-up that submitted nothing: verl always calls it."""
    submitted = to_number(result) or to_number(span.attributes.get(attr.PROMPTS))
    if submitted:
        span.set_attribute(attr.PROMPTS, int(submitted))
    else:
        span.discard()


def _count_prompts(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    prompts = to_number((yield))
    span = current_span()
    if span is not None and prompts is not None:
        span.set_attribute(attr.PROMPTS, int(prompts) + int(to_number(span.attributes.get(attr.PROMPTS)) or 0))


_V1: Final = "verl.trainer.ppo.v1.trainer_base"
_LEGACY: Final = "verl.trainer.ppo.ray_trainer"


def _v1(name: str, wrap: Wrapping, gives: str) -> Hook:
    return Hook.wrapping(_V1, f"PPOTrainer.{name}", wrap, f"{gives} (v1 trainers)", since="verl 0.9")


def _legacy(name: str, wrap: Wrapping, gives: str) -> Hook:
    return Hook.wrapping(_LEGACY, f"RayPPOTrainer.{name}", wrap, f"{gives} (legacy trainer)")


_FIT_START_PROFILE: Final = surround("trainer", _register_at_step)
_REMEMBER: Final = surround("trainer", _remember)
_END_AT_ERROR: Final = surround("trainer", _end_at_error)
_BETWEEN_STEPS: Final = {
    "_fit_update_weights": _END_AT_ERROR,
    "_fit_validate": _END_AT_ERROR,
    "_fit_save_checkpoint": surround("trainer", _end_at_last_save),
}
"""Methods of a fully asynchronous trainer that may raise outside of its steps, and what wraps them."""
_SUBCLASSES: Final = "no step numbers of trainers of other projects that override `fit`"
_FIT: Final = surround("trainer", _track_run)
_VALIDATE: Final = in_span(_begin_at_step(_VALIDATION))
_SAVE: Final = in_span(_begin_at_step(_CHECKPOINT))
_OVERRIDDEN: Final[dict[str, Wrapping]] = {"fit": _FIT, "_validate": _VALIDATE, "_save_checkpoint": _SAVE}
"""Methods that trainers of other projects override, and what wraps them."""
_WARM_UP: Final = in_span(_begin_at_step(_WARMUP), _discard_if_idle)
_AHEAD: Final = "trajectories that are generated ahead are linked to nothing"


def _note_end_of_rollouts(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any, _error: Any) -> None:
    """Record that the rollouts ended by an exception: verl trains on what is there, and ends with exit code 0.

    Where the trainer has failed, Ray cancels their tasks: that is no cause.
    """
    (task,) = args
    error = None if task.cancelled() or task.get_name() != "generation_task" else task.exception()
    cause: Any = getattr(error, "cause", None) or error  # Ray's, of a task in another process
    session = current_session()
    if error is not None and session is not None and not is_cancellation(cause):
        from verl_otel.watchdog import process_reports
        from verl_otel.watchdog.reporter import Notifier  # the watchdog may be in another process

        config, name = session.config, error_name(error)
        died = process_reports.find_actor(config.run_path, str(getattr(cause, "actor_id", None) or ""))
        culprit = {} if died is None else {"instance": died.instance, "pid": died.process.pid, "host": died.host}
        whose = "" if died is None else f" of {died.instance} (pid {died.process.pid})"
        text = f"the rollouts ended by {name}{whose}; verl trains on what they left, and ends as if it had finished"
        log_lines.warn(_logger, "verl-otel: CRASH: %s", text)
        alerts.append_event(config, "crash", text, {run_state.ROLLOUTS_ENDED_BY: name, "culprit": culprit})
        Notifier(config.on_stall, config.run_id, config.run_path).send("crash", text, culprit)


HOOKS: Final = (
    _v1("__init__", _REMEMBER, _SUBCLASSES),
    _v1("fit", _FIT, "no step numbers, no lineage"),
    _v1("prepare_step", in_span(lambda *_: Span(phase_site("submit", hook=True))), "no phase `submit`"),
    _v1("_validate", _VALIDATE, "no validation"),
    _v1("_save_checkpoint", _SAVE, "no checkpoints"),
    _v1("_add_async_warmup_batches", _WARM_UP, _AHEAD),
    _v1("_reissue_inflight_prompts", _WARM_UP, _AHEAD),
    _v1("_submit_batch_to_rollout", surround("submit", _count_prompts), "no number of submitted prompts"),
    _legacy("__init__", _REMEMBER, _SUBCLASSES),
    # One-step-off trainers, and copies of them, do not call the constructor of their base class.
    _legacy("init_workers", _REMEMBER, _SUBCLASSES),
    _legacy("fit", _FIT, "no step numbers, no end of the run"),
    _legacy("_validate", _VALIDATE, "no validation"),
    _legacy("_save_checkpoint", _SAVE, "no checkpoints"),
    Hook.wrapping(
        "verl.experimental.separation.ray_trainer",
        "SeparateRayPPOTrainer._fit_start_profile",
        _FIT_START_PROFILE,
        "no step numbers (one-step-off and fully asynchronous trainers)",
        others={"SeparateRayPPOTrainer.init_workers": _REMEMBER},
    ),
    Hook.wrapping(
        "verl.experimental.one_step_off_policy.ray_trainer",
        "OneStepOffRayTrainer.fit",
        _FIT,
        "how the run ended, and its last second (one-step-off trainer)",
        since="verl 0.8",
    ),
    Hook.wrapping(
        "verl.experimental.fully_async_policy.detach_utils",
        "task_exception_handler",
        surround_shortly("rollouts", _note_end_of_rollouts),
        "that the rollouts ended by an exception (fully asynchronous trainer)",
        since="verl 0.8",
    ),
)


def _clear() -> None:
    """Forget the open step: it belongs to a session that has ended."""
    Trainer.step, Trainer.round_end, Trainer.awaits_round = None, 0.0, False


process_state.register(clear=_clear)
