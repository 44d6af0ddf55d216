# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Scalars over the run in compact columns: 16 bytes per value, so that those of a long run fit into memory."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from verl_otel.analysis.io.otlp_json import PointRecord
from verl_otel.analysis.model import Series
from verl_otel.analysis.step_lengths import find_repeated
from verl_otel.analysis.typed import Keyed
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import (
    AVERAGE_REWARD,
    ENGINE_MEMORY_ASLEEP,
    GPU_OWNER,
    HW_GPU_MEMORY_LIMIT,
    HW_GPU_MEMORY_USAGE,
    HW_GPU_UTILIZATION,
    LIMIT,
    METRICS,
    OTEL_SPANS_DROPPED,
    RAY_SPILL_IO,
    RAY_SPILL_TIME,
    REWARD_COMPONENT,
    ROLLOUT_DROPPED,
    ROLLOUT_TOKENS,
    ROLLOUT_TRAJECTORIES,
    RUN_STATE,
    SCALAR_PREFIX,
    TRAINING_STEP,
    VALIDATION_SCORE,
    WEIGHT_SYNC_PART_DURATION,
    WEIGHT_SYNC_SIZE,
)
from verl_otel.semconv.scalar_keys import CORE_VALIDATION, REWARDS, TRAINING, component_key

READ: Final = frozenset(
    {
        ROLLOUT_TOKENS, ROLLOUT_TRAJECTORIES, ROLLOUT_DROPPED, HW_GPU_UTILIZATION, HW_GPU_MEMORY_USAGE, HW_GPU_MEMORY_LIMIT,
        GPU_OWNER, WEIGHT_SYNC_SIZE, WEIGHT_SYNC_PART_DURATION,
        RAY_SPILL_IO, RAY_SPILL_TIME, ENGINE_MEMORY_ASLEEP, OTEL_SPANS_DROPPED,
    }
)  # fmt: skip
"""Metrics of other processes than the trainer that the analysis adds up."""
_TRAINER: Final = "trainer"
_INSTANCE: Final = "instance"
_LOGGED: Final = frozenset({TRAINING_STEP, RUN_STATE})
"""Only the process with the training loop has these metrics, whatever its role."""

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a series."""


class Column:
    """The points of a series: nanoseconds since 1970, and values."""

    __slots__ = ("times", "values")

    def __init__(self, times: array[int] | None = None, values: array[float] | None = None) -> None:
        self.times: array[int] = array("q") if times is None else times
        self.values: array[float] = array("d") if values is None else values

    def sorted(self) -> Column:
        """Return it in the order of time; itself if it is ordered."""
        times = self.times
        if all(times[place] <= times[place + 1] for place in range(len(times) - 1)):
            return self
        order = sorted(range(len(times)), key=times.__getitem__)
        return Column(array("q", (times[place] for place in order)), array("d", map(self.values.__getitem__, order)))


class Room(NamedTuple):
    """How many series, and points of each, are kept."""

    trainer: int
    read: int
    """Of `READ` from other processes."""
    others: int
    points: int
    """Of twice as many points of a series, every second one is dropped, and from then on every second one is taken."""


WHOLE: Final = Room(5_000, 5_000, 5_000, 10_000)
"""For commands: thousands of ranks must not displace what the trainer logs."""
SMALL: Final = Room(1_000, 500, 500, 1_000)
"""For a page that follows runs."""
MAX_STEPS: Final = 100_000
"""Points of the series with the number of the step, on which the others depend."""


class Columns(msgspec.Struct):
    """Columns of timestamps and values by series, equally dense over the whole run, each with its newest value."""

    room: Room = WHOLE
    left_out: int = 0
    """Values of series beyond the maximum."""
    _columns: Keyed[Key, Column] = msgspec.field(default_factory=Keyed)
    _counts: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0])
    """Series of the trainer, of `READ`, and others."""
    _loops: set[str] = msgspec.field(default_factory=set)
    """Processes with the training loop that have another role than the trainer."""
    _strides: Keyed[Key, int] = msgspec.field(default_factory=Keyed)
    _passed: Keyed[Key, int] = msgspec.field(default_factory=Keyed)
    """Number of values of each series so far."""
    _newest: Keyed[Key, Column] = msgspec.field(default_factory=Keyed)
    """The newest point of those of which some are dropped."""

    def add(self, points: Iterable[PointRecord], instance: str) -> None:
        """Add values of one process, in the order of time. Series of processes other than the trainer get its name as a label: every rank has some."""
        extra = () if instance.startswith(_TRAINER) else ((_INSTANCE, instance),)
        for point in points:
            if extra and point.name in _LOGGED:
                self._loops.add(instance)
            key = point.name, (*point.labels, *extra)
            column = self._column(key)
            if column is None:
                self.left_out += 1
                continue
            self._append(key, column, point.time_ns, point.value)

    def _append(self, key: Key, column: Column, time_ns: int, value: float) -> None:
        stride = self._strides.get(key)
        if stride is not None:
            self._newest[key] = Column(array("q", (time_ns,)), array("d", (value,)))
            passed = self._passed[key] = self._passed[key] + 1
            if (passed - 1) % stride:
                return
        column.times.append(time_ns)
        column.values.append(value)
        if len(column.times) > 2 * (MAX_STEPS if key[0] == TRAINING_STEP else self.room.points):
            of_steps = self._keep_of_steps(key, column)
            if of_steps is not None:
                self._columns[key] = of_steps
                for known in (self._strides, self._passed, self._newest):
                    known.pop(key, None)
                return
            self._passed.setdefault(key, len(column.times))
            self._strides[key] = 2 * self._strides.get(key, 1)
            self._newest[key] = Column(column.times[-1:], column.values[-1:])
            self._columns[key] = Column(column.times[::2], column.values[::2])

    def _keep_of_steps(self, key: Key, column: Column) -> Column | None:
        """Return the points of a gauge of an own loop at the ends of steps, equally dense, and its newest; None: it has no such points, or no others.

        Such a gauge also has points between the ends, wherever a drain came. By every second point those of the steps might all be dropped.
        """
        steps = self._columns.get((TRAINING_STEP, key[1][-1:] if _find_instance(key) else ()), Column())
        places = {time_ns: place for place, time_ns in enumerate(steps.times)}
        kept = [place for place, time_ns in enumerate(column.times) if time_ns in places]
        if len(kept) == len(column.times):
            return None
        stride = 1
        while len(kept) > self.room.points and stride < len(places):
            stride *= 2
            kept = [place for place in kept if not places[column.times[place]] % stride]
        if not 0 < len(kept) <= self.room.points:
            return None
        kept += [len(column.times) - 1] * (kept[-1] < len(column.times) - 1)
        return Column(array("q", map(column.times.__getitem__, kept)), array("d", map(column.values.__getitem__, kept)))

    def keys(self) -> Iterable[Key]:
        """Return name and labels of all series."""
        return self._columns.keys()

    def _column(self, key: Key) -> Column | None:
        column = self._columns.get(key)
        if column is None:
            instance = _find_instance(key)
            share = 0 if not instance or instance in self._loops else 1 if key[0] in READ else 2
            if self._counts[share] < self.room[share]:
                self._counts[share] += 1
                column = self._columns[key] = Column()
        return column

    def series(self) -> tuple[Series, ...]:
        """Return all series, those of the trainer first, by name, each in the order of time. Series with equal timestamps share one array of them."""
        shared: dict[bytes, array[int]] = {}
        series = []
        for key, column in self._sorted():
            ordered = column.sorted()
            series.append(Series(*key, shared.setdefault(ordered.times.tobytes(), ordered.times), ordered.values))
        return tuple(series)

    def _sorted(self) -> Iterator[tuple[Key, Column]]:
        """Yield columns in the order of `series`. Those of a training loop of another role are the trainer's, if there is no trainer."""
        loops = self._find_loops()
        joined: dict[Key, Column] = {}
        for key in self._columns:
            name, labels = key
            own = (name, labels[:-1]) if loops and _find_instance(key) in loops else key
            column, known = self._complete(key), joined.get(own, Column())
            joined[own] = Column(known.times + column.times, known.values + column.values)
        yield from sorted(joined.items(), key=lambda item: (bool(_find_instance(item[0])), item[0]))

    def _complete(self, key: Key) -> Column:
        """Return a column with the newest value."""
        column, newest = self._columns[key].sorted(), self._newest.get(key)
        if newest is None or newest.times[0] <= column.times[-1]:
            return column
        return Column(column.times + newest.times, column.values + newest.values)

    def _find_loops(self) -> set[str]:
        """Return the processes whose series are those of the trainer: one in each attempt; ranks that log the same steps have their own."""
        periods = {
            _find_instance(key): column.times for key, column in self._columns.items() if key[0] == TRAINING_STEP
        }
        chosen: dict[str, tuple[int, int]] = {}
        for instance in sorted(self._loops) if "" not in periods else ():
            times = periods.get(instance)
            begin, end = (min(times), max(times)) if times else (0, 0)
            if times and all(end < first or last < begin for first, last in chosen.values()):
                chosen[instance] = (begin, end)
        return set(chosen)


def _find_instance(key: Key) -> str:
    """Return the process that a series is labelled with; empty: it is the trainer's."""
    labels = key[1]
    return labels[-1][1] if labels and labels[-1][0] == _INSTANCE else ""


def find_rises(counter: Series, starts: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield when a counter rose, and by how much. One that falls belongs to a process that was started again, and begins at 0.

    Args:
        counter: The values of a counter.
        starts: The start of each attempt but the first, in order: the counter begins again, whatever its values are.
    """
    points = (
        (bisect_right(starts, time_ns), time_ns, value)
        for time_ns, value in zip(counter.times_ns, counter.values, strict=True)
    )
    for (last, _, before), (attempt, time_ns, after) in pairwise(((0, 0, 0.0), *points)):
        yield time_ns, after - before if after >= before and attempt == last else after


def find_steps(series: Iterable[Series]) -> dict[int, float]:
    """Return the number of the step by the time of a point, of the steps whose scalars were logged."""
    return {
        time_ns: value
        for scalar in series
        if scalar.name == TRAINING_STEP
        for time_ns, value in zip(scalar.times_ns, scalar.values, strict=True)
        if math.isfinite(value)
    }


def find_limit(series: Iterable[Series], name: str) -> float | None:
    """Return a limit of the configuration, such as ``response_tokens``; None if it is not recorded."""
    found = (one.values[-1] for one in series if one.name == LIMIT and one.values and (attr.LIMIT, name) in one.labels)
    return max(found, default=None)


def find_axis(scalar: Series, steps: Mapping[int, float], begin_ns: int) -> tuple[bool, list[float]]:
    """Return whether the steps of all points of a series are known, and the steps of the points; else seconds since the start of the run."""
    if all(time_ns in steps for time_ns in scalar.times_ns):
        return True, [steps[time_ns] for time_ns in scalar.times_ns]
    return False, [(time_ns - begin_ns) / 1e9 for time_ns in scalar.times_ns]


# -- The scalars of each step, by verl's keys --


class StepScalars(NamedTuple):
    """What verl logged at a step."""

    step: int
    values: dict[str, float]


def read_steps(series: Iterable[Series], keys: Iterable[str]) -> Iterator[StepScalars]:
    """Return the scalars of each step.

    Those of one ``Tracking.log`` have the same timestamp, as have the mean reward and the gauges of a step of an own loop. Values that are read once a
    second only, as in steps that overlap, belong to the step that had ended last by then.

    Args:
        series: Series of the run.
        keys: Keys of verl that are looked for, and of components of the reward.
    """
    listed = list(series)
    by_name = {SCALAR_PREFIX + key.replace("/", "."): key for key in keys}
    if not any(one.name == _REWARD for one in listed) and _REWARD in by_name:
        by_name[AVERAGE_REWARD] = by_name[_REWARD]
    numbers = {time_ns: int(value) for time_ns, value in find_steps(listed).items()}
    ends = sorted(numbers)
    values: dict[int, dict[str, float]] = {}
    for scalar in listed:
        key = (_validation_key(scalar) or read_component(scalar)) if scalar.labels else by_name.get(scalar.name)
        if key not in by_name.values():
            continue
        is_sampled = ends and numbers.keys().isdisjoint(scalar.times_ns)
        for time_ns, value in zip(scalar.times_ns, scalar.values, strict=True):
            end_ns = ends[max(0, bisect_right(ends, time_ns) - 1)] if is_sampled else time_ns
            values.setdefault(end_ns, {})[str(key)] = value
    for time_ns in ends:
        found = values.get(time_ns, {})
        if found and (
            numbers[time_ns] > 0 or not found.keys().isdisjoint(ABOUT_STEP)
        ):  # else a validation before step 1
            yield StepScalars(numbers[time_ns], found)


_REWARD: Final = SCALAR_PREFIX + REWARDS[0].replace("/", ".")


def find_keys(series: Iterable[Series]) -> list[str]:
    """Return verl's keys of the scalars that a run has. A dot in a key is shown as a slash; both are accepted."""
    listed = list(series)
    logged = {time_ns for one in listed if one.name == TRAINING_STEP for time_ns in one.times_ns}
    scalars = [one for one in listed if one.name not in METRICS and logged.intersection(one.times_ns)]
    keys = [
        _validation_key(one) if one.labels else one.name.removeprefix(SCALAR_PREFIX).replace(".", "/")
        for one in [*scalars, *(one for one in listed if one.name == VALIDATION_SCORE)]
    ]
    return sorted({key for key in keys if key})


def _validation_key(scalar: Series) -> str | None:
    """Return verl's key of a validation score; None for another series."""
    labels = dict(scalar.labels)
    parts = [labels.get(label, "") for label in (attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE)]
    return CORE_VALIDATION + "/".join(parts) if scalar.name == VALIDATION_SCORE and all(parts) else None


def read_component(scalar: Series) -> str | None:
    """Return the key of a component of the reward; None for another series."""
    labels = dict(scalar.labels)
    parts = [labels.get(label, "") for label in (attr.VARIABLE, attr.AGGREGATE)]
    return component_key(*parts) if scalar.name == REWARD_COMPONENT and all(parts) else None


class LoggedStep(NamedTuple):
    """What verl logged of a step, in one line or several."""

    number: int
    attempt: int
    """From 1; more where the number of the step went back, as after a resume."""
    values: dict[str, float]
    """By verl's key."""


ABOUT_STEP: Final = (*TRAINING["step_seconds"], *REWARDS)
"""Keys of the line that a trainer logs of a step: where a step has one of them twice, it was trained twice."""


class StepJoiner:
    """Puts the lines that verl logs together to steps."""

    def __init__(self) -> None:
        self.steps: list[LoggedStep] = []
        self._attempt = 1
        self._current: dict[int, LoggedStep] = {}
        """The steps of the attempt, by their numbers."""
        self._last = -1
        """The last step that was trained in the attempt."""

    def add(self, number: int, values: Mapping[str, float]) -> None:
        """Add what one ``Tracking.log`` has of a step."""
        trained = [key for key in ABOUT_STEP if key in values]
        known = self._current.get(number)
        if trained and (number < self._last or (known is not None and any(key in known.values for key in trained))):
            self._attempt, self._current, known = self._attempt + 1, {}, None
        if trained:
            self._last = number
        if known is None:
            known = self._current[number] = LoggedStep(number, self._attempt, {})
            self.steps.append(known)
        known.values.update(values)

    def find_repeated(self) -> set[int]:
        """Return the places of the steps that a later attempt has trained again."""
        return find_repeated([(step.attempt, step.number) for step in self.steps])

    def keep_last(self) -> list[LoggedStep]:
        """Return the steps without those that a later attempt has trained again."""
        again = self.find_repeated()
        return [step for place, step in enumerate(self.steps) if place not in again]


def find_rewards(series: Iterable[Series]) -> dict[int, float]:
    """Return the mean reward of each step that has one, of those that no later attempt trained again."""
    joiner = StepJoiner()
    for one in read_steps(series, ABOUT_STEP):
        joiner.add(one.step, one.values)
    rewards = (
        (step.number, next((step.values[key] for key in REWARDS if key in step.values), None))
        for step in joiner.keep_last()
    )
    return {number: reward for number, reward in sorted(rewards) if reward is not None}
