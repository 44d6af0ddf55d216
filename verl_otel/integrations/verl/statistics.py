# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of one step over the trajectories that it trains on: their scores, their tail, and what the slowest one did."""

from __future__ import annotations

import math
from typing import Final

from verl_otel.integrations.verl.origins import Origin
from verl_otel.recording import registry
from verl_otel.semconv import attributes as attr

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
        mean = sum(scores) / len(scores)  # unlike the functions of `statistics` this takes infinite scores
        facts = {
            "mean": mean,
            "stddev": math.sqrt(sum((score - mean) * (score - mean) for score in scores) / len(scores)),
            "min": scores[0],
            "max": scores[-1],
            "p10": quantile(scores, 0.1),
            "p50": quantile(scores, 0.5),
            "p90": quantile(scores, 0.9),
        }
        for name, value in facts.items():
            registry.gauge(f"verl.reward.score.{name}", labels).set(value)


def quantile(ordered: list[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated linearly (as numpy does by default)."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def describe_tail(origins: list[Origin]) -> None:
    """Record how long trajectories took at the end of their distribution, and on what the slowest spent its time.

    verl's trainers without TransferQueue log this as ``agent_loop/slowest/*``; the others have lost it.
    """
    ordered = sorted(origin.seconds for origin in origins)
    for name, value in (("p50", quantile(ordered, 0.5)), ("p95", quantile(ordered, 0.95)), ("max", ordered[-1])):
        registry.gauge("verl.rollout.tail.duration", ((attr.AGGREGATE, name),)).set(value)
    facts = max(origins, key=lambda origin: origin.seconds).facts
    for part in _PARTS:
        if part in facts:
            registry.gauge("verl.rollout.slowest.duration", ((attr.PART, part),)).set(facts[part])
    for kind in _TOKENS:
        if kind in facts:
            registry.gauge("verl.rollout.slowest.tokens", ((attr.TOKEN_TYPE, kind),)).set(facts[kind])
    if "preemptions" in facts:
        registry.gauge("verl.rollout.slowest.preemptions").set(facts["preemptions"])
    preempted = [origin.facts["preemptions"] for origin in origins if "preemptions" in origin.facts]
    if preempted:
        known = {"min": min(preempted), "mean": sum(preempted) / len(preempted), "max": max(preempted)}
        for name, value in known.items():
            registry.gauge("verl.rollout.trajectory.preemptions", ((attr.AGGREGATE, name),)).set(value)
