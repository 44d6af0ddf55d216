# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The GPU time of each step while the run trains, as far as the trainer can know it.

The metrics are ``verl.gpu.time``, ``verl.gpu.waiting.share`` and ``verl.rollout.tail.share``. The training thread only
appends to lists; the account is computed on the thread that collects metrics. If trajectories may outlive the step that
they began in, a step is accounted for when the next one ends: only then has the trainer received the samples that its
GPUs generated meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel.analysis.gpu.live_estimate import (
    Call,
    GpuPool,
    NamedInterval,
    Rollout,
    Spent,
    StepWindow,
    account_gpu_time,
    find_tail_share,
)
from verl_otel.analysis.model import DeviceTime
from verl_otel.analysis.verdicts import balance
from verl_otel.integrations.verl.configuration import read_setting
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.collection import Observation, observe
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER, wall_offset_ns
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.kinds import GPU_CAUSES
from verl_otel.session import current_session
from verl_otel.session.live_verdicts import LiveVerdicts

MAX_NOTES: Final = 10_000
"""Maximum number of phases, of calls and of batches of one step, for a process that never ends a step."""
MAX_ROLLOUTS: Final = 100_000
"""Maximum number of samples of one step, and of trajectories that are kept until their steps are accounted for."""
MAX_STEPS: Final = 1000
"""Maximum number of steps that wait for a collection."""
UPDATES: Final = frozenset({"update_actor", "update_critic", "train_mini_batch", "train_batch"})
"""Calls of worker groups, and phases, that update a model."""
WITHIN_STEP: Final = ("sync", "RayPPOTrainer")
"""Trainers whose trajectories end in the step that they began in."""


class _Step(NamedTuple):
    """A step that has ended. Times on the monotonic clock, in seconds."""

    before: float
    """End of the step before; the start of the first one."""
    start: float
    end: float
    phases: list[NamedInterval]
    calls: list[Call]
    sample_times: list[float]
    samples: list[tuple[Sequence[Origin], bool]]
    """Origins of the samples that were received, and whether they are of a validation."""
    pool: GpuPool
    outlived: bool
    """Whether trajectories may outlive their step."""
    offset: float
    """Seconds from the monotonic clock to Unix time."""


class _Account:
    """The account of the trainer in this process.

    Args:
        began: When telemetry, or the training before, began or ended in this process; None: now. Times on the monotonic clock, in seconds.
    """

    def __init__(self, began: float | None = None) -> None:
        self.phases: list[NamedInterval] = []
        self.calls: list[Call] = []
        self.sample_times: list[float] = []
        self.samples: list[tuple[Sequence[Origin], bool]] = []
        self.sample_count = 0
        """Number of origins in ``samples``."""
        self.ended = 0.0
        """End of the last step; 0 before the first one."""
        self.waiting: deque[_Step] = deque(maxlen=MAX_STEPS)
        self.pending: tuple[StepWindow, float, GpuPool] | None = None
        """The step that is held back, the end of the step before it, and the GPUs."""
        self.rollouts: deque[Rollout] = deque(maxlen=MAX_ROLLOUTS)
        self.pool: GpuPool | None = None
        self.live_verdicts = LiveVerdicts(began)
        self.ended_run = False
        """Whether the run has ended, so that no step is held back."""
        self.spent = Spent({}, {}, asleep=False)
        """GPU seconds so far, and whether the trainer has its GPUs back."""
        self.recorded = False
        """Whether a trajectory has been received."""
        self.opened = -math.inf
        """Start of the first trajectory, on the clock of `Rollout`; before all others while none is known."""
        self.waits: balance.Balance | None = None
        """What both sides waited in the last step."""
        self.tail: float | None = None


_account = _Account()


def begin_run() -> None:
    """Begin a new account: another trainer begins to train in this process."""
    global _account  # replaced as a whole: another thread may read it
    session = current_session()
    # The start-up of the first training of a process begins with telemetry, that of the next one with the end of the one before.
    _account = _Account(_account.ended or (None if session is None else session.began))


def note_phase(key: str, start: float, stop: float) -> None:
    """Record a phase that ended, inside or outside of a step. Times on the monotonic clock."""
    if len(_account.phases) < MAX_NOTES:
        _account.phases.append((key, start, stop))


def note_call(method: str, start: float, stop: float, *, blocking: bool = True) -> None:
    """Record a call of a worker group that returned a result, or a future while workers compute (verl's critic)."""
    if len(_account.calls) < MAX_NOTES:
        _account.calls.append(Call(method, start, stop, blocking))


def note_samples(origins: Sequence[Origin], *, validate: bool) -> None:
    """Record samples that the trainer received."""
    if len(_account.samples) < MAX_NOTES and _account.sample_count + len(origins) <= MAX_ROLLOUTS:
        _account.sample_count += len(origins)
        _account.samples.append((origins, validate))
        if not validate:
            _account.sample_times.append(clock())


def is_round() -> bool:
    """Return whether since the end of the last step trajectories were generated and no model was updated."""
    is_generated = bool(_account.sample_times) or any(name == "gen" for name, *_ in _account.phases)
    return is_generated and not has_updated()


def has_updated() -> bool:
    """Return whether a model was updated since the end of the last step."""
    return any(name in UPDATES for name, *_ in (*_account.phases, *_account.calls))


def end_step(start: float, stop: float, number: Any, trainer: Any, mode: str) -> None:
    """Queue the records since the end of the last step for the next collection. Takes microseconds.

    Args:
        start: When the step began, on the monotonic clock in seconds.
        stop: When it ended.
        number: Its number; None if it is not known.
        trainer: The trainer, whose configuration says how many GPUs there are.
        mode: Its mode.
    """
    account = _account
    if not RECORDER.on or not stop:
        return
    with error_boundary.suppress_errors("gpu time"):
        if account.pool is None:
            # Once per run: it takes a quarter of a millisecond.
            account.pool = count_gpus(getattr(trainer, "config", None))
        with error_boundary.suppress_errors("live verdict"):
            account.live_verdicts.end_step(number, account.ended, start, stop, account.phases)
        step = _Step(
            account.ended or start,
            max(start, account.ended),
            stop,
            account.phases,
            account.calls,
            account.sample_times,
            account.samples,
            account.pool,
            mode not in WITHIN_STEP,
            wall_offset_ns() / 1e9,
        )
        account.phases, account.calls, account.sample_times, account.samples = [], [], [], []
        account.sample_count = 0
        account.ended = stop
        account.waiting.append(step)
        observe(metric_names.GPU_TIME, observe_gpu_time)
        observe(metric_names.ROLLOUT_TAIL_SHARE, observe_tail)
        observe(metric_names.GPU_WAITING_SHARE, observe_waits)


def end_run() -> None:
    """Do not hold back the last step: no further samples will arrive."""
    _account.ended_run = True


def log_end() -> None:
    """Log what held the run, and which side is short of GPUs. Call it after the collection that accounts for the last steps."""
    session = current_session()
    if session is not None:
        with error_boundary.suppress_errors("live verdict"):
            _account.live_verdicts.log_end(session.config.run_id, _advise(_account))


def summarize_verdicts() -> dict[str, str | float]:
    """Return the goodput of the run so far, what held its steps, and which side is short of GPUs."""
    return _account.live_verdicts.summarize(_advise(_account))


def observe_gpu_time() -> list[Observation]:
    """Return the GPU seconds so far, by state and cause."""
    _account_steps(_account)
    spent = sorted(_account.spent.by_cause().items())
    return [(((attr.GPU_STATE, GPU_CAUSES[cause].state), (attr.GPU_CAUSE, cause)), seconds) for cause, seconds in spent]


def observe_tail() -> list[Observation]:
    """Return the share of the last step that the trainer waited for its slowest trajectories."""
    _account_steps(_account)
    return [] if _account.tail is None else [((), _account.tail)]


def observe_waits() -> list[Observation]:
    """Return the shares of the last step that each side waited for the other, and both; nothing where they share GPUs."""
    _account_steps(_account)
    sides = _account.waits
    if sides is None:
        return []
    waits = {balance.TRAINER: sides.trainer_waits, balance.ROLLOUTS: sides.rollouts_wait, "both": sides.both_wait}
    return [(((attr.GPU_SIDE, side),), share) for side, share in waits.items()]


def count_gpus(config: Any) -> GpuPool:
    """Return the GPUs of a run from verl's configuration."""
    rollout = read_setting(config, "actor_rollout_ref.rollout")
    trainer = read_setting(config, "trainer")
    parallel = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    return GpuPool(
        trains=_product(trainer, "nnodes", "n_gpus_per_node"),
        generates=_product(rollout, "nnodes", "n_gpus_per_node", missing=0),
        hybrid=read_setting(config, "actor_rollout_ref.hybrid_engine") is not False,
        replica=_product(rollout, *parallel),
    )


def _product(config: Any, *names: str, missing: int = 1) -> int:
    product = 1
    for name in names:
        value = to_number(read_setting(config, name))
        product *= missing if value is None else max(0, int(value))
    return product


def _account_steps(account: _Account) -> None:
    """Account for the queued steps. Not thread-safe: the session collects under a lock."""
    while account.waiting:
        step = account.waiting.popleft()
        window = StepWindow(
            step.start + step.offset,
            step.end + step.offset,
            _shift(step.phases, step.offset),
            [call._replace(start=call.start + step.offset, end=call.end + step.offset) for call in step.calls],
            [time + step.offset for time in step.sample_times],
        )
        rollouts = [
            _make_rollout(origin, validate=validate) for origins, validate in step.samples for origin in origins
        ]
        new_rollouts = [rollout for rollout in rollouts if rollout is not None]
        account.rollouts.extend(new_rollouts)
        if new_rollouts and not account.recorded:
            account.recorded, account.opened = True, min(rollout.start for rollout in new_rollouts)
        account.tail = find_tail_share(window, [rollout.end for rollout in new_rollouts if not rollout.validate])
        _account_held_step(account)
        account.pending = window, step.before + step.offset, step.pool
        if not step.outlived:
            _account_held_step(account)
    if account.ended_run:
        _account_held_step(account)


def _account_held_step(account: _Account) -> None:
    """Account for the step that was held back, and for the time between it and the step before, which is in no share of a step."""
    if account.pending is None:
        return
    (window, before, pool), account.pending = account.pending, None
    if before < window.begin:
        _spend(account, window._replace(begin=before, end=window.begin), pool)
    account.waits = _judge_balance(_spend(account, window, pool), pool)
    account.rollouts = deque((rollout for rollout in account.rollouts if rollout.end > window.end), maxlen=MAX_ROLLOUTS)


def _spend(account: _Account, window: StepWindow, pool: GpuPool) -> Spent:
    """Add the GPU seconds of a window to the account, and return them."""
    spent = account.spent
    new = account_gpu_time(
        window, account.rollouts, pool, asleep=spent.asleep, recorded=account.recorded, began=account.opened
    )
    # Replaced as a whole: the training thread may read it.
    account.spent = Spent(_add(spent.trainer, new.trainer), _add(spent.rollouts, new.rollouts), new.asleep)
    return new


def _add(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {cause: one.get(cause, 0.0) + other.get(cause, 0.0) for cause in {**one, **other}}


def _judge_balance(spent: Spent, pool: GpuPool) -> balance.Balance | None:
    """Return which side waited for the other; None where rollouts have no GPUs of their own."""
    lanes = (
        ("hybrid" if pool.hybrid else "train", pool.trains, spent.trainer),
        ("rollout", pool.generates, spent.rollouts),
    )
    return balance.judge(
        DeviceTime(lane, {cause: round(seconds * 1e9 / gpus) for cause, seconds in causes.items()}, gpus, lane)
        for lane, gpus, causes in lanes
        if gpus
    )


def _advise(account: _Account) -> str:
    """Return which side of the training is short of GPUs, and what to do; empty if none is and they do not wait together."""
    sides = None if account.pool is None else _judge_balance(account.spent, account.pool)
    if sides is None or (sides.short == balance.NEITHER and sides.both_wait < balance.NOTABLE):
        return ""
    return (
        f"the trainer's GPUs waited for samples {sides.trainer_waits:.0%} of the time, those of the rollouts for the trainer "
        f"{sides.rollouts_wait:.0%}, both {sides.both_wait:.0%}, with no trajectory open; {sides.advice}"
    )


def _shift(intervals: list[NamedInterval], offset: float) -> list[NamedInterval]:
    return [(name, start + offset, stop + offset) for name, start, stop in intervals]


def _make_rollout(origin: Origin, *, validate: bool) -> Rollout | None:
    """Return the trajectory of a sample; None if its start is not known."""
    facts = origin.facts
    start = facts.get("start")
    if start is None or not origin.seconds > 0:
        return None
    tool, reward = (min(1.0, max(0.0, facts.get(part, 0.0) / origin.seconds)) for part in ("tool", "reward"))
    llm = facts["llm"] / origin.seconds if "llm" in facts else 1 - tool - reward
    return Rollout(start, start + origin.seconds, min(1.0, max(0.0, llm)), tool, reward, validate)
