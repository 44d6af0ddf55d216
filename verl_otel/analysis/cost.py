# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a step's tokens cost: GPU seconds, and which of its response tokens were of no use.

A trajectory is counted once, under the first reason that holds. `NEVER_TRAINED` did not reach the optimiser; `TRAINED_FOR_NOTHING` did,
without or with a misleading gradient:

* ``zero_variance``: all scores of a group are equal. The advantage of GRPO and its kin is a score's distance to the mean of its group,
  so the policy gradient of such a group is zero (DAPO, arXiv 2503.14476, section 3.2; terms besides, as KL loss, are not looked at).
* ``truncated``: the response was cut at its limit of tokens (DAPO, section 3.4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.facts import Cost, DeviceTime, Step, Trajectory

NEVER_TRAINED: Final = ("aborted", "failed", "dropped")
"""Reasons of tokens that never reached the optimiser."""
TRAINED_FOR_NOTHING: Final = ("zero_variance", "truncated")
"""Reasons of tokens that did."""
UNKNOWN: Final = ("padding", "recomputed", "joules")
"""What no span says today: padding is made and taken away inside verl, an engine counts preemptions but not their tokens."""
GROUP_RELATIVE: Final = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
)
"""verl's estimators (0.9.1, ``core_algos.py``) in which equal scores of a group give advantages of zero."""
_ABORTED: Final = ("abort", "aborted", "cancelled")
_CUT: Final = ("length", "max_tokens")


class Price(NamedTuple):
    """The cost of several steps together."""

    gpu_seconds: float
    trained_tokens: int
    wasted_tokens: dict[str, int]


def of_step(step: Step, members: Sequence[Trajectory], devices: Sequence[DeviceTime], *, algorithm: str = "") -> Cost:
    """Return what a step cost.

    Args:
        step: The step; it says which trajectories it consumed.
        members: Trajectories that it consumed and, if known, those that were generated for it and that no step consumed.
        devices: How the GPUs spent the time of the step.
        algorithm: verl's advantage estimator; where it is not known, equal scores of a group are taken for no gradient.
    """
    consumed = set(step.trajectories)
    flat = _find_flat_groups([each for each in members if each.trace_id in consumed], algorithm)
    trained = 0
    wasted: dict[str, int] = defaultdict(int)
    for each in members:
        if each.validate:
            continue
        if each.trace_id in consumed:
            trained += each.response_tokens
            reason = _judge_trained(each, flat)
        else:
            reason = judge_unused(each)
        if reason and each.response_tokens:
            wasted[reason] += each.response_tokens
    nanoseconds = sum(sum(device.nanoseconds.values()) for device in devices)
    return Cost(nanoseconds / 1e9, trained, dict(wasted))


def sum_up(steps: Sequence[Step], unused: Mapping[str, int] | None = None) -> Price | None:
    """Return what steps cost together; None where no step's cost is known.

    Args:
        steps: The steps.
        unused: Tokens that no step trained on and that belong to none of the steps (`Explanation.unused`).
    """
    costs = [step.cost for step in steps if step.cost is not None]
    if not costs:
        return None
    wasted: dict[str, int] = defaultdict(int, unused or {})
    for cost in costs:
        for reason, tokens in cost.wasted_tokens.items():
            wasted[reason] += tokens
    return Price(sum(cost.gpu_seconds for cost in costs), sum(cost.trained_tokens for cost in costs), dict(wasted))


def judge_unused(each: Trajectory) -> str:
    """Return why a trajectory was never trained on."""
    if each.finish in _ABORTED or each.outcome == "cancelled":
        return "aborted"
    return "failed" if each.failed or each.outcome == "failure" else "dropped"


def _judge_trained(each: Trajectory, flat: Mapping[str, bool]) -> str:
    """Return why it was of no use that a trajectory was trained on; empty if it was of use."""
    if flat.get(each.uid):
        return "zero_variance"
    return "truncated" if each.finish in _CUT else ""


def _find_flat_groups(members: Sequence[Trajectory], algorithm: str) -> dict[str, bool]:
    """Return by uid whether all scores of a group are equal; groups with a score that is not known are not judged."""
    if algorithm and algorithm not in GROUP_RELATIVE:
        return {}
    scores: dict[str, list[float | None]] = defaultdict(list)
    for each in members:
        scores[each.uid].append(each.score)
    return {
        uid: len(values) > 1 and None not in values and len(set(values)) == 1 for uid, values in scores.items() if uid
    }
