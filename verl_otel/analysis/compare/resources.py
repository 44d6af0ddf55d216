# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a run used and produced: GPUs, their utilisation and memory, tokens per second. And how well a larger run uses its additional GPUs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from verl_otel.analysis.model import Explanation, Series, Step
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import HW_GPU_MEMORY_USAGE, HW_GPU_UTILIZATION, ROLLOUT_TOKENS

RESPONSE: Final = "response"


class Resources(NamedTuple):
    """Means of a run over the steps that are compared. None: unknown, as without the extra ``gpu``."""

    gpus: int | None = None
    """Number of GPUs; of ranks on a CPU."""
    trained_tokens_per_second: float | None = None
    """Response tokens that steps trained on, for a second of a step."""
    rollout_tokens_per_second: float | None = None
    """Response tokens that were generated, for a second from the first step to the end of the last one, validations included."""
    gpu_utilization: float | None = None
    """Mean over time and GPUs, from 0 to 1."""
    gpu_memory: float | None = None
    """Bytes in use of one GPU, the mean over time and GPUs."""
    gpu_memory_highest: float | None = None
    """The highest value of any GPU, in bytes. Shorter peaks between two samples are not seen."""


class Scaling(NamedTuple):
    """Tokens per second and GPU of run B as a share of those of run A: 1 is linear. None: unknown."""

    trained_tokens: float | None
    rollout_tokens: float | None


def measure(run: Explanation, steps: Sequence[Step]) -> Resources:
    """Return the resources of a run over some of its steps."""
    if not steps:
        return Resources(_count_gpus(run, steps))
    begin, end = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
    memory = _read_gpus(run.series, HW_GPU_MEMORY_USAGE, begin, end)
    return Resources(
        _count_gpus(run, steps),
        _find_trained(steps),
        _find_generated(run.series, begin, end),
        _mean_of_means(_read_gpus(run.series, HW_GPU_UTILIZATION, begin, end)),
        _mean_of_means(memory),
        max((value for values in memory for value in values), default=None),
    )


def find_scaling(a: Resources, b: Resources) -> Scaling | None:
    """Return the scaling efficiency of two runs; None if both have the same number of GPUs, or one is unknown."""
    if not a.gpus or not b.gpus or a.gpus == b.gpus:
        return None
    more = b.gpus / a.gpus
    return Scaling(
        _find_share(a.trained_tokens_per_second, b.trained_tokens_per_second, more),
        _find_share(a.rollout_tokens_per_second, b.rollout_tokens_per_second, more),
    )


def _find_share(a: float | None, b: float | None, more: float) -> float | None:
    return None if not a or b is None else b / a / more


def _count_gpus(run: Explanation, steps: Sequence[Step]) -> int | None:
    """Return the configured number of GPUs, or the number of devices of a step if that is larger: rollouts may have GPUs of their own."""
    parts = [run.manifest.get(key) for key in (attr.NODES, attr.GPUS)]
    numbers = [int(part) for part in parts if isinstance(part, (str, int)) and str(part).isdecimal()]
    configured = numbers[0] * numbers[1] if len(numbers) == len(parts) else 0
    return max(configured, *(sum(device.gpus for device in step.devices) for step in steps), 0) or None


def _find_trained(steps: Iterable[Step]) -> float | None:
    known = [(step.cost.trained_tokens, step.seconds) for step in steps if step.cost is not None]
    seconds = sum(each for _, each in known)
    tokens = sum(each for each, _ in known)
    return tokens / seconds if tokens and seconds else None


def _find_generated(series: Iterable[Series], begin: int, end: int) -> float | None:
    """Return the rate of the counters of all agent loops; a process that was started again begins at 0."""
    counters = [
        one for one in series if one.name == ROLLOUT_TOKENS and dict(one.labels).get(attr.TOKEN_TYPE) == RESPONSE
    ]
    if not counters or end <= begin:
        return None
    return sum(_count_until(one, end) - _count_until(one, begin) for one in counters) * 1e9 / (end - begin)


def _count_until(counter: Series, time_ns: int) -> float:
    """Return what a counter had counted at a time, between two of its points in proportion to the time."""
    place = bisect_right(counter.times_ns, time_ns)
    counted, before = 0.0, 0.0
    for value in counter.values[:place]:
        counted += value - before if value >= before else value
        before = value
    if 0 < place < len(counter.values):
        first, last = counter.times_ns[place - 1], counter.times_ns[place]
        more = counter.values[place] - before
        if more > 0 and last > first:
            counted += more * (time_ns - first) / (last - first)
    return counted


def _read_gpus(series: Iterable[Series], name: str, begin: int, end: int) -> list[list[float]]:
    """Return the values of each GPU between two times; several processes may have read one GPU after another."""
    found: dict[str, list[float]] = {}
    for one in series:
        if one.name == name:
            values = found.setdefault(dict(one.labels).get(attr.HW_ID, ""), [])
            values.extend(_between(one, begin, end))
    return [values for values in found.values() if values]


def _between(one: Series, begin: int, end: int) -> Iterator[float]:
    return (
        value for time_ns, value in zip(one.times_ns, one.values, strict=True) if begin <= time_ns <= end and value >= 0
    )


def _mean_of_means(values: Sequence[Sequence[float]]) -> float | None:
    return fmean(map(fmean, values)) if values else None
