# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.gpu.time`` and ``verl.rollout.tail.share``, while the training runs: what the trainer knows, accounted for at each step's end.

The training thread only appends to lists; `analysis.estimate` runs on the thread that collects the metrics. Where trajectories outlive
the step that they began in, a step is accounted for when the next one ends: only then has the trainer seen the samples that its GPUs
generated meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from verl_otel import _guard
from verl_otel.analysis import estimate
from verl_otel.analysis.estimate import Pool, Rollout, Window
from verl_otel.analysis.facts import CAUSES
from verl_otel.integrations.verl.origins import Origin
from verl_otel.recording import recorder
from verl_otel.recording.span import clock
from verl_otel.recording.store import Store, wall_offset_ns
from verl_otel.recording.values import to_number
from verl_otel.semconv import attributes as attr

MAX_NOTES: Final = 10_000
"""Phases and calls of one step; a process that never ends a step does not collect them for ever."""
MAX_ROLLOUTS: Final = 100_000
"""Trajectories that are remembered until the steps that they touch are accounted for."""
MAX_STEPS: Final = 1000
"""Steps that may wait for somebody to collect."""
WITHIN_STEP: Final = ("sync", "RayPPOTrainer")
"""Trainers whose trajectories all end in the step that they began in."""


class _Step(NamedTuple):
    """One step, as it was when it ended, on the monotonic clock."""

    begin: float
    end: float
    phases: list[estimate.Spell]
    calls: list[estimate.Spell]
    taken: list[float]
    samples: list[tuple[Sequence[Origin], bool]]
    """Where the samples come from that came in, and whether they are of a validation."""
    pool: Pool
    outlived: bool
    """Trajectories may outlive their step."""
    offset: float
    """From the monotonic clock to Unix time."""


class _Live:
    """The account of the trainer in this process."""

    def __init__(self) -> None:
        self.phases: list[estimate.Spell] = []
        self.calls: list[estimate.Spell] = []
        self.taken: list[float] = []
        self.samples: list[tuple[Sequence[Origin], bool]] = []
        self.ended = 0.0
        """When the last step ended; 0: there was none."""
        self.waiting: deque[_Step] = deque(maxlen=MAX_STEPS)
        self.held: tuple[Window, Pool] | None = None
        self.rollouts: deque[Rollout] = deque(maxlen=MAX_ROLLOUTS)
        self.pool: Pool | None = None
        self.asleep = False
        self.over = False
        """No step comes any more: nothing is held back."""
        self.spent: dict[str, float] = {}
        self.tail: float | None = None


_live = _Live()


def begin_run() -> None:
    """Begin a new account: another trainer begins to train in this process."""
    global _live  # replaced as a whole: another thread may be reading it
    _live = _Live()


def note_phase(key: str, start: float, stop: float) -> None:
    """Take note of a phase that ended, inside or outside of a step. Times on the monotonic clock."""
    if len(_live.phases) < MAX_NOTES:
        _live.phases.append((key, start, stop))


def note_call(method: str, start: float, stop: float) -> None:
    """Take note of a worker group's call that ended."""
    if len(_live.calls) < MAX_NOTES:
        _live.calls.append((method, start, stop))


def note_samples(origins: Sequence[Origin], *, validate: bool) -> None:
    """Take note of samples that the trainer was given."""
    if len(_live.samples) < MAX_NOTES:
        _live.samples.append((origins, validate))
        if not validate:
            _live.taken.append(clock())


def end_step(start: float, stop: float, trainer: Any, mode: str) -> None:
    """Hand over what was noted since the last step ended, for whoever collects next. Costs microseconds."""
    live = _live
    if not Store.on or not stop:
        return
    with _guard.swallowed("gpu time"):
        if live.pool is None:
            live.pool = count_gpus(getattr(trainer, "config", None))  # a quarter of a millisecond: once
        step = _Step(
            live.ended or start,
            stop,
            live.phases,
            live.calls,
            live.taken,
            live.samples,
            live.pool,
            mode not in WITHIN_STEP,
            wall_offset_ns() / 1e9,
        )
        live.phases, live.calls, live.taken, live.samples = [], [], [], []
        live.ended = stop
        live.waiting.append(step)
        recorder.observe("verl.gpu.time", observe)
        recorder.observe("verl.rollout.tail.share", observe_tail)


def end_run() -> None:
    """Say that no samples will come any more for which a step would be held back."""
    _live.over = True


def observe() -> list[recorder.Observation]:
    """Return the GPU seconds so far, by state and cause."""
    _settle(_live)
    spent = sorted(_live.spent.items())
    return [(((attr.GPU_STATE, CAUSES[cause]), (attr.GPU_CAUSE, cause)), seconds) for cause, seconds in spent]


def observe_tail() -> list[recorder.Observation]:
    """Return the share of the last step that was spent waiting for its slowest trajectories."""
    _settle(_live)
    return [] if _live.tail is None else [((), _live.tail)]


def count_gpus(config: Any) -> Pool:
    """Return what verl's configuration says of the GPUs of a run."""
    rollout = _get(config, "actor_rollout_ref", "rollout")
    own = _product(_get(config, "trainer"), "nnodes", "n_gpus_per_node")
    parallel = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    return Pool(
        trains=own,
        generates=_product(rollout, "nnodes", "n_gpus_per_node", missing=0),
        hybrid=_get(config, "actor_rollout_ref", "hybrid_engine") is not False,
        replica=_product(rollout, *parallel),
    )


def _get(config: Any, *names: str) -> Any:
    for name in names:
        config = config.get(name) if isinstance(config, Mapping) or hasattr(config, "get") else None
    return config


def _product(config: Any, *names: str, missing: int = 1) -> int:
    found = 1
    for name in names:
        value = to_number(_get(config, name))
        found *= missing if value is None else max(0, int(value))
    return found


def _settle(live: _Live) -> None:
    """Account for every step that waits. One thread at a time: the session drains under a lock."""
    while live.waiting:
        step = live.waiting.popleft()
        window = Window(
            step.begin + step.offset,
            step.end + step.offset,
            _shift(step.phases, step.offset),
            _shift(step.calls, step.offset),
            [when + step.offset for when in step.taken],
        )
        made = [_make_rollout(origin, validate=validate) for origins, validate in step.samples for origin in origins]
        fresh = [each for each in made if each is not None]
        live.rollouts.extend(fresh)
        live.tail = estimate.find_tail(window, [each.end for each in fresh if not each.validate])
        _release(live)
        live.held = window, step.pool
        if not step.outlived:
            _release(live)
    if live.over:
        _release(live)


def _release(live: _Live) -> None:
    """Account for the step that was held back."""
    if live.held is None:
        return
    (window, pool), live.held = live.held, None
    spent, live.asleep = estimate.spend(window, live.rollouts, pool, asleep=live.asleep)
    for cause, seconds in spent.items():
        live.spent[cause] = live.spent.get(cause, 0.0) + seconds
    live.rollouts = deque((each for each in live.rollouts if each.end > window.end), maxlen=MAX_ROLLOUTS)


def _shift(spells: list[estimate.Spell], offset: float) -> list[estimate.Spell]:
    return [(what, start + offset, stop + offset) for what, start, stop in spells]


def _make_rollout(origin: Origin, *, validate: bool) -> Rollout | None:
    """Return what a sample says of its trajectory; None if it does not say when that was."""
    facts = origin.facts
    start = facts.get("start")
    if start is None or not origin.seconds > 0:
        return None
    tool, reward = (min(1.0, max(0.0, facts.get(part, 0.0) / origin.seconds)) for part in ("tool", "reward"))
    llm = facts["llm"] / origin.seconds if "llm" in facts else 1 - tool - reward
    return Rollout(start, start + origin.seconds, min(1.0, max(0.0, llm)), tool, reward, validate)
