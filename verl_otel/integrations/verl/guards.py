# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Guards in verl's trainers: a stop by verl's own last step, checkpoints on request, and the best checkpoint.

A stop lowers the trainer's number of steps to the next one, which verl then treats as its last: it validates, saves if ``trainer.save_freq`` is
positive, and returns. The driver of the training then exits with `EXIT_CODE`; the trainer signals the stop through Ray's store.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import CallTimeout
from verl_otel.guards.conditions import Finding
from verl_otel.guards.engine import Guards, make_guards
from verl_otel.health.profiles import load as load_profile
from verl_otel.health.profiles import to_manifest as describe_profile
from verl_otel.integrations import cluster_store
from verl_otel.integrations.patch import Hook, Steps, surround
from verl_otel.integrations.verl.configuration import read_setting
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.state import RECORDER
from verl_otel.session import current as current_session
from verl_otel.session import record_run

EXIT_CODE: Final = 3
"""Exit code of the driver of a training that a guard has stopped."""
STORE_SECONDS: Final = 5.0
"""Seconds that a driver which ends waits for the store."""
_STOPPED: Final = b"stopped_by_guard"


class _Run:
    """The guards of the run that this process trains."""

    guards: Guards | None = None
    stopped: Finding | None = None
    trainer: Any = None
    """The trainer of this process; None before it trains."""


def begin_run() -> None:
    """Create the guards of a run from its settings."""
    session = current_session()
    _Run.guards, _Run.stopped = None, None
    if session is not None:
        config = session.config
        _Run.guards = make_guards(
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
        profile = load_profile(name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        error_boundary.warn_once("profile", "verl-otel: the profile %s is not used: %s", name, reason)
        profile = load_profile()
    record_run(describe_profile(profile))
    return profile.values


def is_stopped() -> bool:
    """Return whether a guard has stopped the run of this process."""
    return _Run.stopped is not None


def watch(trainer: Any) -> None:
    """Set the trainer that guards act on."""
    _Run.trainer = trainer


def observe(data: Mapping[str, Any], step: Any) -> None:
    """Show the scalars of one ``Tracking.log`` to the guards and do what they ask for.

    Args:
        data: Scalars by verl's key.
        step: Number of the step; 0 is the validation before training, which guards do not see.
    """
    number = to_number(step)
    if _Run.guards is None or not _Run.guards.active or not number:
        return
    values = {str(key): float(value) for key, raw in data.items() if (value := to_number(raw)) is not None}
    decision, trainer = _Run.guards.observe(int(number), values), _Run.trainer
    if decision.stop is not None and _Run.stopped is None:  # first: a guard reports what it found only once
        _stop(trainer, decision.stop)
    if decision.checkpoint and trainer is not None:
        with error_boundary.suppress_errors("guard checkpoint"):
            trainer._save_checkpoint()
    folder = read_setting(getattr(trainer, "config", None), "trainer.default_local_dir")
    if folder:
        keep_best(Path(str(folder)), int(number), decision.best)


def _stop(trainer: Any, finding: Finding) -> None:
    total = getattr(trainer, "total_training_steps", None)
    if not isinstance(total, int) or isinstance(total, bool):
        error_boundary.warn_once(
            "guard",
            "verl-otel: guard %s would stop the training at step %d (%s), but this trainer cannot be stopped",
            finding.guard, finding.step, finding.text,
        )  # fmt: skip
        return
    _Run.stopped = finding
    trainer.total_training_steps = min(total, finding.step + 1)
    error_boundary.warn_once(
        f"guard {finding.step}",
        "verl-otel: guard %s stops the training after step %d: %s",
        finding.guard, trainer.total_training_steps, finding.text,
    )  # fmt: skip
    record_run({"stopped_by": finding.guard, "stopped_at_step": str(finding.step), "stop_reason": finding.text})
    threading.Thread(target=_announce, args=(finding,), name="verl-otel-guard", daemon=True).start()


def _announce(finding: Finding) -> None:
    """Signal the stop to the driver, which may be another process on another node."""
    with error_boundary.suppress_errors("guard"):
        if cluster_store.is_connected():
            cluster_store.put(_key(), f"{finding.guard}: {finding.text}".encode())


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
            reason = CallTimeout(STORE_SECONDS, "verl-otel-guard").call("reason", take)
    if reason is not None:
        error_boundary.warn_once("guard exit", "verl-otel: stopped by guard %s", reason.decode("utf-8", "replace"))
    return reason is not None


# -- Keeps the best of the checkpoints that verl saves: as hard links below ``best/``, where verl neither rotates nor resumes --
# verl saves a checkpoint before it logs the scalars of its step, or some steps later if it saves asynchronously; it then names the step in
# ``latest_checkpointed_iteration.txt``. Only checkpoints that verl has completed are linked, so that keeping the best one saves nothing additionally and
# takes no space until verl deletes its own copy.

FOLDER: Final = "best"
TRACKER: Final = "latest_checkpointed_iteration.txt"
MAX_WAITING: Final = 100
"""Steps whose value was a best one and whose checkpoint may still be completed."""


class _Best:
    """The best values whose checkpoints are awaited, and the work in progress."""

    waiting: dict[int, float] = {}
    worker: threading.Thread | None = None


def keep_best(folder: Path, step: int, best: float | None) -> None:
    """Link the checkpoint of a step with a new best value as soon as it is complete. Returns at once.

    Args:
        folder: ``trainer.default_local_dir``.
        step: Number of the step that was logged.
        best: Its value, if it is the best so far.
    """
    if best is not None:
        _Best.waiting[step] = best
        while len(_Best.waiting) > MAX_WAITING:
            del _Best.waiting[min(_Best.waiting)]
    if _Best.waiting and (_Best.worker is None or not _Best.worker.is_alive()):
        waiting = dict(_Best.waiting)
        _Best.worker = threading.Thread(target=_link_newest, args=(folder, waiting), name="verl-otel-best", daemon=True)
        _Best.worker.start()


def wait_for_checkpoint(seconds: float) -> None:
    """Wait for a link that is being made: the training ends."""
    if _Best.worker is not None:
        _Best.worker.join(seconds)


def _link_newest(folder: Path, waiting: dict[int, float]) -> None:
    with error_boundary.suppress_errors("best checkpoint"):
        try:
            completed = int((folder / TRACKER).read_text().strip())
        except (OSError, ValueError):
            return
        steps = [step for step in waiting if step <= completed and (folder / f"global_step_{step}").is_dir()]
        if not steps:
            return
        step = max(steps)  # each value is better than all before it
        try:
            link_checkpoint(folder, step)
        except OSError as error:
            error_boundary.warn_once(
                "best checkpoint", "verl-otel: the best checkpoint cannot be kept: %s", error.strerror or error
            )
            return
        for done in [one for one in _Best.waiting if one <= step]:
            _Best.waiting.pop(done, None)


def link_checkpoint(folder: Path, step: int) -> Path:
    """Keep the checkpoint of a step as the best one, and remove the one before.

    Raises:
        OSError: The folder cannot be written, or its file system has no hard links.
    """
    best = folder / FOLDER
    target = best / f"global_step_{step}"
    unfinished = best / f".global_step_{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    best.mkdir(exist_ok=True)
    shutil.copytree(folder / f"global_step_{step}", unfinished, copy_function=os.link)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    for other in best.glob("global_step_*"):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target


HOOKS: Final = (Hook.wrapping("hydra", "main", _wrap_main, "exit code 3 of a training that a guard has stopped"),)
