# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of the trajectories of a step: scores, the tail of durations, and the slowest trajectory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from verl_otel._internal.quantiles import quantile
from verl_otel.recording.series_registry import gauge
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
        """Those that are known of ``llm``, ``tool`` and ``reward`` in seconds, ``prompt`` and ``response`` in tokens, and ``preemptions``."""


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
    """Record mean, spread and percentiles of the scores that a step trains on, by data source, and how many groups differ in them."""
    by_source: dict[str, list[float]] = {}
    by_prompt: dict[str, list[float]] = {}
    for sample in samples:
        if sample.score is not None and sample.score == sample.score:
            by_source.setdefault(sample.source, []).append(sample.score)
            by_prompt.setdefault(sample.uid, []).append(sample.score)
    _count_groups([scores for uid, scores in by_prompt.items() if uid and len(scores) > 1])
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


def _count_groups(groups: Sequence[Sequence[float]]) -> None:
    """Record the groups of a step by outcome. A step without groups, as with one sample for each prompt, has none."""
    if not groups:
        return
    counts = dict.fromkeys(("signal", "solved", "failed"), 0)
    for scores in groups:
        counts["signal" if min(scores) < max(scores) else "solved" if scores[0] > 0 else "failed"] += 1
    for outcome, count in counts.items():
        gauge(metric_names.REWARD_GROUPS, ((attr.OUTCOME, outcome),)).set(count)


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
