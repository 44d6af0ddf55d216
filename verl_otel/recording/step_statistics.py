# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of the trajectories of a step: scores, the tail of durations, and the slowest trajectory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from verl_otel._internal import error_boundary, process_state
from verl_otel._internal.quantiles import quantile
from verl_otel.model import Point
from verl_otel.recording.series import INSTRUMENTS, gauge
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

_PARTS: Final = ("llm", "tool", "reward")
_TOKENS: Final = ("prompt", "response")
_WAITS: Final = {"generation": "llm", "tool": "tool"}
"""Parts of trajectories that may become slow, by their value of ``verl.metric`` of ``verl.training.change``."""


class Sample(Protocol):
    """What is known of a trajectory that has ended."""

    @property
    def seconds(self) -> float:
        """Its duration."""

    @property
    def score(self) -> float | None:
        """Its reward."""

    @property
    def source(self) -> str:
        """Its data source."""

    @property
    def uid(self) -> str:
        """Id of its prompt; empty: unknown."""

    @property
    def facts(self) -> Mapping[str, float]:
        """Those that are known of ``llm``, ``tool`` and ``reward`` in seconds, ``prompt`` and ``response`` in tokens, ``preemptions``, `CUT`, and the components of its reward (`REWARD_FIELD`)."""


def measure_waits(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the mean seconds that trajectories of a step waited for the model (``generation``) and for tools (``tool``), of those of which it is known."""
    seconds = {
        name: [sample.facts[part] for sample in samples if part in sample.facts] for name, part in _WAITS.items()
    }
    return {name: sum(values) / len(values) for name, values in seconds.items() if values}


def find_spread(scores: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation of at least one score. Unlike the functions of `statistics` this accepts infinite and very large ones."""
    mean = sum(scores) / len(scores)
    return mean, math.sqrt(sum((score - mean) * (score - mean) for score in scores) / len(scores))


def sum_scores(samples: Sequence[Sample]) -> None:
    """Record mean, spread and percentiles of the scores that a step trains on, by data source."""
    by_source: dict[str, list[float]] = {}
    for sample in samples:
        if sample.score is not None and sample.score == sample.score:
            by_source.setdefault(sample.source, []).append(sample.score)
    for source, scores in by_source.items():
        scores.sort()
        labels = ((attr.DATA_SOURCE, source),) if source else ()
        mean, deviation = find_spread(scores)
        statistics = {
            metric_names.REWARD_SCORE_MEAN: mean,
            metric_names.REWARD_SCORE_STDDEV: deviation,
            metric_names.REWARD_SCORE_MIN: scores[0],
            metric_names.REWARD_SCORE_MAX: scores[-1],
            metric_names.REWARD_SCORE_P10: quantile(scores, 0.1),
            metric_names.REWARD_SCORE_P50: quantile(scores, 0.5),
            metric_names.REWARD_SCORE_P90: quantile(scores, 0.9),
        }
        for name, value in statistics.items():
            gauge(name, labels).set(value)


# -- Components of the reward: what a reward function returned beside the score --

REWARD_FIELD: Final = "reward_field:"
"""Beginning of the names of facts that the reward function returned beside the score."""
MAX_COMPONENTS: Final = 16
"""Different names in a process: a function that makes names of its data must not make series of them."""
_names: Final[dict[str, None]] = {}
process_state.register(clear=_names.clear)


def parse_components(fields: object) -> dict[str, float]:
    """Return the components of a reward as facts, from the attribute of a span."""
    pairs = [str(field).rpartition("=") for field in fields] if type(fields) is tuple else ()
    return {REWARD_FIELD + name: float(value) for name, _, value in pairs}


def measure_components(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Return mean, minimum and maximum (``mean``, ``min``, ``max``) of each component, of the samples that have a finite one."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for key, value in sample.facts.items():
            if key.startswith(REWARD_FIELD) and math.isfinite(value):
                values.setdefault(key.removeprefix(REWARD_FIELD), []).append(value)
    return {
        name: {"mean": sum(numbers) / len(numbers), "min": min(numbers), "max": max(numbers)}
        for name, numbers in values.items()
        if _admit(name)
    }


def _admit(name: str) -> bool:
    if name not in _names:
        if len(_names) >= MAX_COMPONENTS:
            error_boundary.warn_once(
                "components",
                "verl-otel: the reward function has more than %d components; the rest is left out",
                MAX_COMPONENTS,
            )
            return False
        _names[name] = None
    return True


def make_component_points(components: Mapping[str, Mapping[str, float]], time_ns: int) -> list[Point]:
    """Return the points of the components of a step, with its time stamp."""
    instrument = INSTRUMENTS[metric_names.REWARD_COMPONENT]
    return [
        Point(instrument, ((attr.VARIABLE, name), (attr.AGGREGATE, aggregate)), time_ns, time_ns, value)
        for name, aggregates in components.items()
        for aggregate, value in aggregates.items()
    ]


def make_component_fields(components: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the fields of the record of a step with its components, such as ``acc_mean``."""
    return {f"{name}_{each}": value for name, values in components.items() for each, value in values.items()}


# -- Groups --


def record_groups(counts: Mapping[str, int]) -> None:
    """Record how many groups of a step have each outcome."""
    for outcome, count in counts.items():
        gauge(metric_names.REWARD_GROUPS, ((attr.OUTCOME, outcome),)).set(count)


SIGNAL: Final = "signal"
"""The outcome of a group whose scores differ."""
CUT: Final = "cut"
"""Fact of a sample whose response ended at the limit of tokens."""
_RIGHT: Final = f"{REWARD_FIELD}acc"
"""By convention of verl's reward functions more than 0 for a right answer, whose score may have other parts."""


def count_groups(samples: Sequence[Sample], signals: Mapping[str, bool] | None = None) -> dict[str, int]:
    """Return the number of groups, samples of one prompt with at least two scores, by outcome; empty without groups.

    A group has a signal if its advantages differ, or, where they are not known, its scores (``signal``). The others have equal scores, and
    all answers are right (``solved``): the reward function returned an ``acc`` above 0, or else a score above 0. Or they are not, because each response
    was cut (``truncated``), or otherwise (``failed``). From these GRPO learns nothing.

    Args:
        samples: All samples of the groups.
        signals: By prompt, whether the advantages of its samples differ; as far as they are known.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.uid and sample.score is not None and sample.score == sample.score:
            groups.setdefault(sample.uid, []).append(sample)
    counts = dict.fromkeys((SIGNAL, "solved", "failed", "truncated"), 0)
    for group in groups.values():
        scores = [sample.score or 0.0 for sample in group]
        if len(scores) == 1:
            continue
        if (signals or {}).get(group[0].uid, min(scores) < max(scores)):
            outcome = SIGNAL
        elif all(sample.facts.get(_RIGHT, sample.score or 0.0) > 0 for sample in group):
            outcome = "solved"
        else:
            outcome = "truncated" if all(CUT in sample.facts for sample in group) else "failed"
        counts[outcome] += 1
    return counts if any(counts.values()) else {}


def describe_tail(samples: Sequence[Sample]) -> None:
    """Record upper percentiles of the durations of trajectories, and the parts of the slowest one.

    verl's trainers without TransferQueue log this as ``agent_loop/slowest/*``; the others do not.
    """
    ordered = sorted(sample.seconds for sample in samples)
    for name, value in (("p50", quantile(ordered, 0.5)), ("p95", quantile(ordered, 0.95)), ("max", ordered[-1])):
        gauge(metric_names.ROLLOUT_TAIL_DURATION, ((attr.AGGREGATE, name),)).set(value)
    facts = max(samples, key=lambda sample: sample.seconds).facts
    for part in _PARTS:
        if part in facts:
            gauge(metric_names.ROLLOUT_SLOWEST_DURATION, ((attr.PART, part),)).set(facts[part])
    for kind in _TOKENS:
        if kind in facts:
            gauge(metric_names.ROLLOUT_SLOWEST_TOKENS, ((attr.TOKEN_TYPE, kind),)).set(facts[kind])
    if "preemptions" in facts:
        gauge(metric_names.ROLLOUT_SLOWEST_PREEMPTIONS).set(facts["preemptions"])
    preempted = [sample.facts["preemptions"] for sample in samples if "preemptions" in sample.facts]
    if preempted:
        aggregates = {"min": min(preempted), "mean": sum(preempted) / len(preempted), "max": max(preempted)}
        for name, value in aggregates.items():
            gauge(metric_names.ROLLOUT_TRAJECTORY_PREEMPTIONS, ((attr.AGGREGATE, name),)).set(value)
