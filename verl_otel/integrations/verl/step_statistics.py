# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of the trajectories of a step: scores, the tail of durations, and the slowest trajectory."""

from __future__ import annotations

import math
from typing import Final

from verl_otel._internal.quantiles import quantile
from verl_otel.integrations.api import gauge
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

_PARTS: Final = ("llm", "tool", "reward")
_TOKENS: Final = ("prompt", "response")


def sum_scores(origins: list[Origin]) -> None:
    """Record mean, spread and percentiles of the scores that a step trains on, by data source."""
    by_source: dict[str, list[float]] = {}
    for origin in origins:
        if origin.score is not None and origin.score == origin.score:
            by_source.setdefault(origin.source, []).append(origin.score)
    for source, scores in by_source.items():
        scores.sort()
        labels = ((attr.DATA_SOURCE, source),) if source else ()
        mean = sum(scores) / len(scores)  # unlike the functions of `statistics` this accepts infinite scores
        statistics = {
            metric_names.REWARD_SCORE_MEAN: mean,
            metric_names.REWARD_SCORE_STDDEV: math.sqrt(
                sum((score - mean) * (score - mean) for score in scores) / len(scores)
            ),
            metric_names.REWARD_SCORE_MIN: scores[0],
            metric_names.REWARD_SCORE_MAX: scores[-1],
            metric_names.REWARD_SCORE_P10: quantile(scores, 0.1),
            metric_names.REWARD_SCORE_P50: quantile(scores, 0.5),
            metric_names.REWARD_SCORE_P90: quantile(scores, 0.9),
        }
        for name, value in statistics.items():
            gauge(name, labels).set(value)


def describe_tail(origins: list[Origin]) -> None:
    """Record upper percentiles of the durations of trajectories, and the parts of the slowest one.

    verl's trainers without TransferQueue log this as ``agent_loop/slowest/*``; the others do not.
    """
    ordered = sorted(origin.seconds for origin in origins)
    for name, value in (("p50", quantile(ordered, 0.5)), ("p95", quantile(ordered, 0.95)), ("max", ordered[-1])):
        gauge(metric_names.ROLLOUT_TAIL_DURATION, ((attr.AGGREGATE, name),)).set(value)
    facts = max(origins, key=lambda origin: origin.seconds).facts
    for part in _PARTS:
        if part in facts:
            gauge(metric_names.ROLLOUT_SLOWEST_DURATION, ((attr.PART, part),)).set(facts[part])
    for kind in _TOKENS:
        if kind in facts:
            gauge(metric_names.ROLLOUT_SLOWEST_TOKENS, ((attr.TOKEN_TYPE, kind),)).set(facts[kind])
    if "preemptions" in facts:
        gauge(metric_names.ROLLOUT_SLOWEST_PREEMPTIONS).set(facts["preemptions"])
    preempted = [origin.facts["preemptions"] for origin in origins if "preemptions" in origin.facts]
    if preempted:
        aggregates = {"min": min(preempted), "mean": sum(preempted) / len(preempted), "max": max(preempted)}
        for name, value in aggregates.items():
            gauge(metric_names.ROLLOUT_TRAJECTORY_PREEMPTIONS, ((attr.AGGREGATE, name),)).set(value)
