# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``Tracking``: the identity of the run, and every scalar as a gauge, unchanged and with one timestamp per call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, argument
from verl_otel.integrations.source_inspection import installed_version
from verl_otel.integrations.verl import (
    best_checkpoint,
    gpu_time,
    guards,
    learning,
    prometheus,
    run_summary,
    scalars,
    step_log,
    training,
)
from verl_otel.integrations.verl.configuration import name_model, read_setting
from verl_otel.model import Point
from verl_otel.recording.attribute_values import to_name, to_number, to_text
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.collection import add_points
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.series import gauge
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.recording.step_statistics import make_component_points
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.run_state import RunState
from verl_otel.session import describe_resource, flush, record_run, run_status, wake

# -- ``verl.logging``: how long each tracker (console, wandb, file ...) takes in one ``Tracking.log`` --

STATE: Final = "logging"
"""Name of the time in the account of GPU time."""
_LOGGING: Final = CallSite("logging", hook=True)


class TimedTrackers(dict[str, Any]):
    """The trackers of a ``Tracking``, by name, whose iteration opens a span for each of them.

    It takes the place of ``Tracking.logger`` during one call of ``log``, which does nothing with it but call each tracker in turn.

    Args:
        trackers: The trackers.
        wanted: Names of those that are called; None: all.
    """

    def __init__(self, trackers: dict[str, Any], wanted: Collection[str] | None) -> None:
        super().__init__(trackers)
        self._wanted = wanted
        self._span: Span | None = None

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]  # verl only iterates
        """Yield names and trackers. The span of a tracker ends when the next one is asked for."""
        for name, tracker in list(super().items()):
            self.end()
            if self._wanted is None or name in self._wanted:
                with error_boundary.suppress_errors("logging"):
                    self._span = Span(_LOGGING, {attr.TRACKER: to_name(name)}).__enter__()
            yield name, tracker
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End the span of the current tracker, if there is one."""
        span, self._span = self._span, None
        if span is not None:
            span.close(error)
            if span.start:
                gpu_time.note_phase(STATE, span.start, span.stop)


def _time_trackers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Give a ``Tracking`` trackers with spans for one call of ``log``, unless its own are of an unknown form."""
    tracking = args[0]
    plain = vars(tracking).get("logger")
    if not RECORDER.on or type(plain) is not dict:
        return
    trackers = tracking.logger = TimedTrackers(plain, argument(args, kwargs, 3, "backend"))
    try:
        yield
    except BaseException as error:
        trackers.end(error)
        raise
    finally:
        if tracking.logger is trackers:
            tracking.logger = plain
        trackers.end()


# -- ``Tracking`` --

FLUSH_SECONDS: Final = 5.0
_FAILED_INIT: Final = "_verl_otel_unmade"
"""Attribute of a ``Tracking`` whose constructor raised: its destructor does not end the run."""
_INFO: Final = {
    attr.ALGORITHM: "algorithm.adv_estimator",
    attr.TRAINER_MODE: "trainer.v1.trainer_mode",
    attr.MODEL: "actor_rollout_ref.model.path",
    attr.ENGINE: "actor_rollout_ref.rollout.name",
    attr.NODES: "trainer.nnodes",
    attr.GPUS: "trainer.n_gpus_per_node",
}
"""Labels of ``verl.run.info``, and their paths in verl's configuration."""
_LIMITS: Final = {
    "response_tokens": "actor_rollout_ref.rollout.response_length",
    "prompt_tokens": "actor_rollout_ref.rollout.prompt_length",
    "save_frequency": "trainer.save_freq",
}
"""Limits of ``verl.limit``, and their paths in verl's configuration; see `_find_staleness_bound` for another one."""


_SAMPLE_FOLDERS: Final = {
    attr.ROLLOUT_DATA_DIR: "trainer.rollout_data_dir",
    attr.VALIDATION_DATA_DIR: "trainer.validation_data_dir",
}
"""Keys of the manifest for the folders of samples, and their paths in verl's configuration."""


_at_finish: Callable[[], float] | None = None
"""See `on_finish`."""


def _describe_new(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    tracking, *rest = args
    try:
        yield
    except BaseException:
        setattr(tracking, _FAILED_INIT, True)
        raise
    if RECORDER.on:
        with error_boundary.suppress_errors("run info"):
            project = to_text(argument(rest, kwargs, 0, "project_name"))
            experiment = to_text(argument(rest, kwargs, 1, "experiment_name"))
            describe_run(project, experiment, argument(rest, kwargs, 3, "config"))
        run_summary.begin_run(tracking)


def describe_run(project: str, experiment: str, config: Any) -> None:
    """Record the identity of this run: in the resource, as ``verl.run.info`` and in the manifest of the run."""
    labels = {attr.PROJECT: project, attr.EXPERIMENT: experiment}
    for label, path in _INFO.items():
        value = read_setting(config, path)
        if value is not None:
            labels[label] = name_model(value, _find_served_name(config)) if label == attr.MODEL else to_text(value)
    mode = _find_mode(config)
    if mode:
        labels[attr.TRAINER_MODE] = mode
    trainer_gpus, others = _count_gpus(config, labels.get(attr.TRAINER_MODE, ""))
    if trainer_gpus:
        labels[attr.GPUS_TOTAL] = str(trainer_gpus + others)
    version = installed_version("verl")
    if version:
        labels[attr.VERL_VERSION] = version
    describe_resource(
        {attr.PROJECT: project, attr.EXPERIMENT: experiment, **({attr.VERL_VERSION: version} if version else {})}
    )
    gauge(metric_names.RUN_INFO, tuple(labels.items())).set(1)
    # The one-step-off trainer divides its throughput by its own GPUs, the other trainers by all.
    divides_by_own = mode == "one_step_off" and trainer_gpus > 0
    training.begin(trainer_gpus / (trainer_gpus + others) if divides_by_own else 1.0)
    training.current.state = RunState.RUNNING
    run_status.note_error(None)  # that of a training before in this process
    gauge(metric_names.RUN_STATE).set(RunState.RUNNING.value)
    guards.begin_run()
    limits = {name: read_setting(config, path) for name, path in _LIMITS.items()}
    learning.record_limits({**limits, "staleness": _find_staleness_bound(config, labels.get(attr.TRAINER_MODE, ""))})
    device = read_setting(config, "trainer.device")
    devices = {} if device is None else {attr.TRAINER_DEVICE: to_text(device)}
    penalty = {attr.KL_IN_REWARD: "true"} if read_setting(config, "algorithm.use_kl_in_reward") is True else {}
    record_run({**labels, **devices, **penalty, **_find_sample_folders(config)})
    prometheus.add_transfer_queue(config)


def _find_sample_folders(config: Any) -> dict[str, str]:
    """Return the folders that verl writes prompts and responses to, absolute, for `verl-otel view`; it writes them in this process."""
    folders = {key: read_setting(config, path) for key, path in _SAMPLE_FOLDERS.items()}
    return {key: os.path.abspath(value) for key, value in folders.items() if isinstance(value, str) and value}  # noqa: PTH100 - of any text


def _find_served_name(config: Any) -> Any:
    """Return the name under which engines serve the model; None unless verl passes it to them."""
    prometheus = read_setting(config, "actor_rollout_ref.rollout.prometheus")
    return read_setting(prometheus, "served_model_name") if read_setting(prometheus, "enable") is True else None


def _find_mode(config: Any) -> str:
    """Return the mode of a trainer without TransferQueue; empty for trainers that name their mode in the configuration."""
    if read_setting(config, "async_training") is not None:
        return "fully_async"
    if read_setting(config, "trainer.v1") is not None and read_setting(config, "trainer.use_v1") is not False:
        return ""
    return "legacy" if read_setting(config, "actor_rollout_ref.hybrid_engine") is not False else "one_step_off"


def _count_gpus(config: Any, mode: str) -> tuple[int, int]:
    """Return how many GPUs the trainer has, whose engines may share them, and how many other parts of the run have for themselves."""
    own = {"separate_async": "actor_rollout_ref.rollout", "fully_async": "rollout", "one_step_off": "rollout"}
    pools = [own[mode]] if mode in own else []
    pools += ["reward.reward_model"] if read_setting(config, "reward.reward_model.enable_resource_pool") is True else []
    pools += ["distillation"] if read_setting(config, "distillation.enabled") is True else []
    return _size_pool(config, "trainer"), sum(_size_pool(config, pool) for pool in pools)


def _size_pool(config: Any, path: str) -> int:
    nodes, gpus = (to_number(read_setting(config, f"{path}.{name}")) for name in ("nnodes", "n_gpus_per_node"))
    return round(nodes * gpus) if nodes and gpus else 0


def _find_staleness_bound(config: Any, mode: str) -> float | None:
    """Return the staleness of the oldest samples that are trained on; None where verl bounds it in no model versions.

    Only verl's asynchronous v1 trainers read the threshold, in their own sampler. It is the number of versions that a
    trajectory may span, and a trajectory of the current version spans one.
    """
    sampler = read_setting(config, "trainer.v1.sampler")
    threshold = to_number(read_setting(sampler, "max_off_policy_threshold"))
    custom = read_setting(sampler, "custom_sampler")
    is_own = read_setting(custom, "path") and read_setting(custom, "name")
    if mode not in ("colocate_async", "separate_async") or is_own or threshold is None:
        return None
    return threshold - 1


def _record_log(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    data, step = argument(args, kwargs, 1, "data"), argument(args, kwargs, 2, "step")
    if RECORDER.on:
        with error_boundary.suppress_errors("scalars"):
            record(data, step)
    yield
    if RECORDER.on:
        guards.observe(data, step)
        run_summary.follow()


def record(data: Mapping[str, Any], step: Any) -> None:
    """Record the scalars of one ``Tracking.log`` and wake the exporters.

    They are recorded as points and not as gauges, which keep only the last value: there may be two calls between two drains.
    """
    now = time.time_ns()
    points = scalars.make_points(data, now)
    for instrument, raw in ((scalars.STEP, step), (scalars.REWARD, data.get("critic/rewards/mean"))):
        value = to_number(raw)
        if value is not None:
            points.append(Point(instrument, (), now, now, value))
    with error_boundary.suppress_errors("learning progress"):
        points.extend(learning.follow(data, step, now))
    with error_boundary.suppress_errors("run log"):
        # before the points are added: a drain that has the scalars of a step has its records, too
        points.extend(make_component_points(step_log.write(data, step), now))
    add_points(points)
    wake()


def _finish(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    global _at_finish
    tracking = args[0]
    if getattr(tracking, "_finished", False) or hasattr(tracking, _FAILED_INIT):
        return
    if RECORDER.on:
        run_summary.end_run(tracking)
    try:
        yield
    finally:
        callback, _at_finish, wait = _at_finish, None, 0.0
        with error_boundary.suppress_errors("end of a trainer"):
            wait = callback() if callback is not None else 0.0
        end_run(failed=bool(argument(args, kwargs, 1, "exit_code")))
        time.sleep(wait)


def on_finish(callback: Callable[[], float] | None) -> None:
    """Call a function once when ``Tracking`` finishes, where no ``fit`` is wrapped; then wait the seconds it returns."""
    global _at_finish
    _at_finish = callback


def end_run(error: BaseException | None = None, *, failed: bool = False) -> None:
    """Record the end of the run and flush; only once, although both ``fit`` and ``Tracking`` report it.

    Args:
        error: The exception with which the training ends.
        failed: Whether it failed, if no exception is known.
    """
    if isinstance(error, KeyboardInterrupt):
        state = RunState.INTERRUPTED
    elif failed or error is not None:
        state = RunState.FAILED
    else:
        state = RunState.STOPPED if guards.is_stopped() else RunState.FINISHED
    # The destructor of ``Tracking`` always reports success.
    run = training.current
    if RECORDER.on and run.state not in (state, RunState.FAILED, RunState.INTERRUPTED):
        run.state = state
        gpu_time.end_run()
        with error_boundary.suppress_errors("run state"):
            run_status.note_error(error)
            gauge(metric_names.RUN_STATE).set(state.value)
            step_log.end_run()
            guards.end_run()
            best_checkpoint.wait(FLUSH_SECONDS)
            flush(FLUSH_SECONDS)
        gpu_time.log_end()


def _wrap_log(original: Any) -> Any:
    return surround("scalars", _record_log)(surround("logging", _time_trackers)(original))


_MODULE: Final = "verl.utils.tracking"
HOOKS: Final = (
    Hook.wrapping(_MODULE, "Tracking.log", _wrap_log, "no training scalars"),
    Hook.wrapping(_MODULE, "Tracking.__init__", surround("run info", _describe_new), "no project and experiment"),
    Hook.wrapping(
        _MODULE,
        "Tracking.finish",
        surround("run state", _finish),
        "the last second may be missing, and how the run ended",
        since="verl 0.9",
    ),
)
