# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The cost of the tokens of a step: GPU seconds, and wasted response tokens.

A trajectory is counted once, under the first reason that applies. Tokens of `NEVER_TRAINED` did not reach the optimizer; the others did,
without or with a misleading gradient:

* ``zero_variance``: all scores of a group are equal. The advantage of GRPO and similar estimators is a score's distance to the mean of its group,
  so the policy gradient of such a group is zero (DAPO, arXiv 2503.14476, section 3.2; other terms, as KL loss, are ignored).
* ``truncated``: the response was cut at its limit of tokens (DAPO, section 3.4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.model import Cost, DeviceTime, Step, Trajectory

NEVER_TRAINED: Final = ("aborted", "failed", "dropped")
"""Reasons for tokens that never reached the optimizer. All other reasons are for tokens that did."""
UNKNOWN: Final = ("padding", "recomputed", "joules")
"""Not recorded by any span: padding is added and removed inside verl, an engine counts preemptions but not their tokens."""
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


class TotalCost(NamedTuple):
    """The cost of several steps together."""

    gpu_seconds: float
    trained_tokens: int
    wasted_tokens: dict[str, int]
    generated_tokens: int
    """See `count_generated`."""


def of_step(step: Step, members: Sequence[Trajectory], devices: Sequence[DeviceTime], *, algorithm: str = "") -> Cost:
    """Return the cost of a step.

    Args:
        step: The step; it says which trajectories it consumed.
        members: Trajectories that it consumed and, if known, those that were generated for it and that no step consumed.
        devices: GPU time of the step.
        algorithm: verl's advantage estimator; if unknown, equal scores of a group are taken to have no gradient.
    """
    consumed = set(step.trajectories)
    flat = _find_flat_groups([member for member in members if member.trace_id in consumed], algorithm)
    trained = 0
    wasted: dict[str, int] = defaultdict(int)
    for member in members:
        if member.validate:
            continue
        if member.trace_id in consumed:
            trained += member.response_tokens
            reason = _find_waste_reason(member, flat)
        else:
            reason = find_unused_reason(member)
        if reason and member.response_tokens:
            wasted[reason] += member.response_tokens
    nanoseconds = sum(sum(device.nanoseconds.values()) for device in devices)
    return Cost(nanoseconds / 1e9, trained, dict(wasted))


def sum_costs(steps: Sequence[Step], unused: Mapping[str, int] | None = None) -> TotalCost | None:
    """Return the total cost of steps; None where no step's cost is known.

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
    trained = sum(cost.trained_tokens for cost in costs)
    gpu_seconds = sum(cost.gpu_seconds for cost in costs)
    return TotalCost(gpu_seconds, trained, dict(wasted), count_generated(trained, wasted))


def count_generated(trained: int, wasted: Mapping[str, int]) -> int:
    """Return how many tokens were generated: the denominator of every share of wasted tokens.

    Wasted tokens of reasons other than `NEVER_TRAINED` are among the trained ones and do not count twice.

    Args:
        trained: Tokens that reached the optimizer.
        wasted: Wasted tokens by reason.
    """
    return trained + sum(wasted.get(reason, 0) for reason in NEVER_TRAINED)


def find_unused_reason(trajectory: Trajectory) -> str:
    """Return the reason why a trajectory was never trained on."""
    if trajectory.finish in _ABORTED or trajectory.outcome == "cancelled":
        return "aborted"
    return "failed" if trajectory.failed or trajectory.outcome == "failure" else "dropped"


def _find_waste_reason(trajectory: Trajectory, flat: Mapping[str, bool]) -> str:
    """Return the reason why training on a trajectory was of no use; empty if it was of use."""
    if flat.get(trajectory.uid):
        return "zero_variance"
    return "truncated" if trajectory.finish in _CUT else ""


def _find_flat_groups(members: Sequence[Trajectory], algorithm: str) -> dict[str, bool]:
    """Return by uid whether all scores of a group are equal; groups with an unknown score are not judged."""
    if algorithm and algorithm not in GROUP_RELATIVE:
        return {}
    scores: dict[str, list[float | None]] = defaultdict(list)
    for member in members:
        scores[member.uid].append(member.score)
    return {
        uid: len(values) > 1 and None not in values and len(set(values)) == 1 for uid, values in scores.items() if uid
    }
