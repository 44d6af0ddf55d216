# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Guards in verl's trainers: a stop by verl's own last step, and checkpoints and alerts on request.

A stop lowers the trainer's number of steps to the next one, which verl then treats as its last: it validates, saves if
``trainer.save_freq`` is positive, and returns. The driver of the training then exits with `EXIT_CODE`; the trainer
signals the stop through Ray's store.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import call_for
from verl_otel.config import Config
from verl_otel.guards.decisions import Stop, make_guards
from verl_otel.health import profiles
from verl_otel.integrations import cluster_store
from verl_otel.integrations.patch import Hook
from verl_otel.integrations.verl import best_checkpoint, training
from verl_otel.integrations.verl.configuration import read_setting
from verl_otel.model import LinkRecord
from verl_otel.recording import run_log
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import STATUS_ERROR
from verl_otel.session import alerts, current_session, record_run

EXIT_CODE: Final = 3
"""Exit code of the driver of a training that a guard has stopped."""
STORE_SECONDS: Final = 5.0
"""Seconds that a driver which ends waits for the store."""
_STOP: Final = CallSite("guard_stop", hook=True)
_STOPPED: Final = b"stopped_by_guard"


_trainer: Any = None
"""The trainer of this process; None before it trains."""


def begin_run() -> None:
    """Create the guards of a run from its settings."""
    session = current_session()
    if session is not None:
        config = session.config
        training.current.guards = make_guards(
            _load_thresholds(config.health_profile),
            nan=config.stop_on_nan,
            kl=config.stop_on_kl,
            reward_fall=config.stop_on_reward_fall,
            plateau=config.stop_on_plateau,
            best_checkpoint=config.best_checkpoint,
        )


def _load_thresholds(name: str) -> Mapping[str, float]:
    """Return the thresholds of a profile, and note it in the manifest. A file that cannot be used is reported; the defaults apply then."""
    try:
        profile = profiles.load(name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        error_boundary.warn_once("profile", "verl-otel: the profile %s is not used: %s", name, reason)
        profile = profiles.load()
    record_run(profiles.to_manifest(profile))
    return profile.values


def end_run() -> None:
    """Report what guards could not do in the run."""
    if training.current.guards is not None:
        training.current.guards.end()


def is_stopped() -> bool:
    """Return whether a guard has stopped the run of this process."""
    return training.current.stopped is not None


def watch(trainer: Any) -> None:
    """Set the trainer that guards act on."""
    global _trainer
    _trainer = trainer


def observe(data: Mapping[str, Any], step: Any) -> None:
    """Show the scalars of one ``Tracking.log`` to the guards and do what they ask for.

    Args:
        data: Scalars by verl's key.
        step: Number of the step; 0 is the validation before training, which guards do not see.
    """
    number = to_number(step)
    if training.current.guards is None or not number:
        return
    values = {str(key): float(value) for key, raw in data.items() if (value := to_number(raw)) is not None}
    decision, trainer = training.current.guards.observe(int(number), values), _trainer
    if decision.stop is not None and training.current.stopped is None:  # first: a guard reports what it found only once
        _stop(trainer, decision.stop)
    if decision.checkpoint and trainer is not None:
        with error_boundary.suppress_errors("guard checkpoint"):
            trainer._save_checkpoint()
    for text in decision.alerts:
        with error_boundary.suppress_errors("guard alert"):
            alerts.report(_find_config(), int(number), text)
    folder = read_setting(getattr(trainer, "config", None), "trainer.default_local_dir")
    if folder and training.current.guards.best is not None:
        best_checkpoint.follow(Path(str(folder)), training.current.guards.best, int(number), decision.value)


def _stop(trainer: Any, stop: Stop) -> None:
    total = getattr(trainer, "total_training_steps", None)
    if not isinstance(total, int) or isinstance(total, bool):
        error_boundary.warn_once(
            "guard",
            "verl-otel: guard %s would stop the training at step %d (%s), but this trainer cannot be stopped",
            stop.guard, stop.step, stop.text,
        )  # fmt: skip
        return
    training.current.stopped = stop
    trainer.total_training_steps = min(total, stop.step + 1)
    error_boundary.warn_once(
        f"guard {stop.step}",
        "verl-otel: guard %s stops the training after step %d: %s",
        stop.guard, trainer.total_training_steps, stop.text,
    )  # fmt: skip
    record_run({"stopped_by": stop.guard, "stopped_at_step": str(stop.step), "stop_reason": stop.text})
    with error_boundary.suppress_errors("guard stop"):
        _record_span(stop)
        detail = {"guard": stop.guard, "step": stop.step, "last_step": trainer.total_training_steps}
        alerts.append_event(
            _find_config(), "stopped", f"guard {stop.guard} after step {stop.step}: {stop.text}", detail
        )
    threading.Thread(target=_announce, args=(stop,), name="verl-otel-guard", daemon=True).start()


def _find_config() -> Config | None:
    session = current_session()
    return session.config if session is not None else None


def _record_span(stop: Stop) -> None:
    """Record a span of no duration with a link to the step, which has ended and cannot have an event or status any more."""
    attributes = {attr.GUARD: stop.guard, attr.GUARD_TEXT: stop.text, attr.STEP_NUMBER: stop.step}
    span = Span(_STOP, dict(attributes))
    trace_id, span_id = run_log.find_ids(run_log.find_begun(stop.step))
    if trace_id:
        span.link_record(LinkRecord(trace_id, span_id, {attr.LINK_TYPE: "stopped"}))
    with span:
        span.detail.status = STATUS_ERROR


def _announce(stop: Stop) -> None:
    """Signal the stop to the driver, which may be another process on another node."""
    with error_boundary.suppress_errors("guard"):
        if cluster_store.is_connected():
            cluster_store.put(_key(), f"{stop.guard}: {stop.text}".encode())


def _key() -> bytes:
    """Return the key of this Ray job: its driver and its trainer have the same."""
    return _STOPPED + str(cluster_store.runtime_context().get_job_id()).encode()


def _wrap_main(original: Any) -> Any:
    """Wrap ``hydra.main``, by which every main program of verl starts: after a stop by a guard the process ends with `EXIT_CODE`.

    verl's own function cannot be patched: ``python -m verl.trainer.main_ppo`` defines it in ``__main__``, while it runs.
    """

    @functools.wraps(original)
    def main(*args: Any, **kwargs: Any) -> Any:
        decorate = original(*args, **kwargs)

        def decorator(task: Any) -> Any:
            return surround("guard", _exit_if_stopped)(decorate(task))

        return decorator

    return main


def _exit_if_stopped(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    yield
    if RECORDER.on and _was_stopped():
        raise SystemExit(EXIT_CODE)


def _take_reason(key: bytes) -> bytes | None:
    """Return why the run of this job was stopped, and remove it from the store; None if it was not."""
    reason = cluster_store.read(key)
    if reason is not None:
        cluster_store.delete(key)
    return reason


def _was_stopped() -> bool:
    reason = None
    with error_boundary.suppress_errors("guard"), contextlib.suppress(TimeoutError):
        if cluster_store.is_connected():
            # The key is made here: when a store that has not answered in time does, Ray may have been shut down.
            take = functools.partial(_take_reason, _key())
            reason = call_for(STORE_SECONDS, "verl-otel-guard", take)
    if reason is not None:
        error_boundary.warn_once("guard exit", "verl-otel: stopped by guard %s", reason.decode("utf-8", "replace"))
    return reason is not None


HOOKS: Final = (Hook.wrapping("hydra", "main", _wrap_main, "exit code 3 of a training that a guard has stopped"),)
