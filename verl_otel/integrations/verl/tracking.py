# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``Tracking``: the identity of the run, and every scalar as a gauge of its own, unchanged, all with one time stamp."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.integrations.patch import Hook, argument, replace
from verl_otel.integrations.verl import gpu_time, learning, scalars
from verl_otel.model import Point
from verl_otel.recording import registry
from verl_otel.recording.recorder import add_points
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_number, to_text
from verl_otel.semconv import attributes as attr

RUNNING, FINISHED, FAILED = 1, 2, 3
FLUSH_SECONDS: Final = 5.0
_UNMADE: Final = "_verl_otel_unmade"
"""Attribute of a ``Tracking`` whose constructor raised: its destructor is not the end of a run."""
_INFO: Final = {
    attr.ALGORITHM: "algorithm.adv_estimator",
    attr.TRAINER_MODE: "trainer.v1.trainer_mode",
    "verl.model": "actor_rollout_ref.model.path",
    "verl.engine": "actor_rollout_ref.rollout.name",
    "verl.nodes": "trainer.nnodes",
    "verl.gpus": "trainer.n_gpus_per_node",
}
"""Labels of ``verl.run.info`` and where verl's configuration holds them."""
_LIMITS: Final = {
    "response_tokens": "actor_rollout_ref.rollout.response_length",
    "prompt_tokens": "actor_rollout_ref.rollout.prompt_length",
    "staleness": "trainer.v1.sampler.max_off_policy_threshold",
    "save_frequency": "trainer.save_freq",
}
"""Bounds of ``verl.limit`` and where verl's configuration holds them."""


class _Run:
    """The run that this process trains."""

    state = 0
    """What was said of it last."""


def _wrap_init(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException:
            with _guard.swallowed("run info"):
                setattr(self, _UNMADE, True)
            raise
        if Store.on:
            with _guard.swallowed("run info"):
                project = to_text(argument(args, kwargs, 0, "project_name"))
                experiment = to_text(argument(args, kwargs, 1, "experiment_name"))
                describe_run(project, experiment, argument(args, kwargs, 3, "config"))

    return init


def describe_run(project: str, experiment: str, config: Any) -> None:
    """Say what this run is: as resource, as ``verl.run.info`` and in its folder."""
    labels = {attr.PROJECT: project, attr.EXPERIMENT: experiment}
    for label, path in _INFO.items():
        value = _find(config, path)
        if value is not None:
            labels[label] = to_text(value).rstrip("/").rpartition("/")[2] if label == "verl.model" else to_text(value)
    mode = _find_mode(config)
    if mode:
        labels[attr.TRAINER_MODE] = mode
    version = _verl_version()
    if version:
        labels[attr.VERL_VERSION] = version
    session.describe(
        {attr.PROJECT: project, attr.EXPERIMENT: experiment, **({attr.VERL_VERSION: version} if version else {})}
    )
    registry.gauge("verl.run.info", tuple(labels.items())).set(1)
    _Run.state = RUNNING
    registry.gauge("verl.run.state").set(RUNNING)
    learning.begin_run({name: _find(config, path) for name, path in _LIMITS.items()})
    session.record_run(labels)


def _find_mode(config: Any) -> str:
    """Return which of the trainers without TransferQueue runs; empty for those that name their mode in the configuration."""
    if _find(config, "async_training") is not None:
        return "fully_async"
    if _find(config, "trainer.v1") is not None and _find(config, "trainer.use_v1") is not False:
        return ""
    return "legacy" if _find(config, "actor_rollout_ref.hybrid_engine") is not False else "one_step_off"


def _find(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def _verl_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("verl")
    except PackageNotFoundError:
        return ""


def _wrap_log(original: Any) -> Any:
    @functools.wraps(original)
    def log(self: Any, data: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
        if Store.on:
            with _guard.swallowed("scalars"):
                record(data, step)
        return original(self, data, step, *args, **kwargs)

    return log


def record(data: Mapping[str, Any], step: Any) -> None:
    """Record the scalars of one ``Tracking.log`` and have them sent.

    As finished points and not as gauges, which only know their last value: two logs may come between two drains.
    """
    now = time.time_ns()
    points = scalars.make_points(data, now)
    for instrument, raw in ((scalars.STEP, step), (scalars.REWARD, data.get("critic/rewards/mean"))):
        value = to_number(raw)
        if value is not None:
            points.append(Point(instrument, (), now, now, value))
    points.extend(learning.follow(data, step, now))
    add_points(points)
    session.wake()


def _wrap_finish(original: Any) -> Any:
    @functools.wraps(original)
    def finish(self: Any, exit_code: int = 0) -> Any:
        first = not getattr(self, "_finished", False) and not hasattr(self, _UNMADE)
        try:
            return original(self, exit_code)
        finally:
            if first:
                end_run(failed=bool(exit_code))

    return finish


def end_run(*, failed: bool) -> None:
    """Say how the run ended, and send everything; once, although the trainer's ``fit`` and its ``Tracking`` end one after the other."""
    state = FAILED if failed else FINISHED
    if Store.on and _Run.state not in (
        state,
        FAILED,
    ):  # verl's ``Tracking`` says 0 in its destructor, whatever happened
        _Run.state = state
        gpu_time.end_run()
        with _guard.swallowed("run state"):
            registry.gauge("verl.run.state").set(state)
            session.flush(FLUSH_SECONDS)


def _patch(module: ModuleType) -> None:
    replace(module.Tracking, "log", _wrap_log)


def _patch_init(module: ModuleType) -> None:
    replace(module.Tracking, "__init__", _wrap_init)


def _patch_finish(module: ModuleType) -> None:
    replace(module.Tracking, "finish", _wrap_finish)


_MODULE: Final = "verl.utils.tracking"
HOOKS: Final = (
    Hook(_MODULE, "Tracking.log", _patch, "no training scalars"),
    Hook(_MODULE, "Tracking.__init__", _patch_init, "no project and experiment"),
    Hook(
        _MODULE,
        "Tracking.finish",
        _patch_finish,
        "the last second may be missing, and how the run ended",
        since="verl 0.9",
    ),
)
