# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How far the policy that generated the samples is from the one that trains on them: how much of it comes with the age of the samples.

The rest is there with fresh samples, too: engine and trainer compute other probabilities for the same weights (precision, kernels, attention).
verl logs the difference and the age as means of a step. So steps with fresh samples are compared with the others; no step mixes the two. The age is
in versions: where several updates make one (``separate_async``), only the first of them trains on fresh samples, and no step has only such.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from statistics import fmean, median
from typing import Annotated, Final

from verl_otel.analysis.document import Document, about
from verl_otel.analysis.model import Explanation, Step
from verl_otel.semconv.metric_names import SCALAR_PREFIX

PROBABILITIES: Final = "training/rollout_probs_diff_mean"
AGE: Final = "training/off_policy/trajectory_staleness/mean"
"""Scalar of verl 0.9: versions between a sample's newest weights and those that train on it, mean of a step."""
DIFFERENCES: Final = {
    PROBABILITIES: "difference of the probabilities of tokens",
    "rollout_corr/k3_kl": "KL divergence (k3)",
    "actor/rollout_corr/k3_kl": "KL divergence (k3)",
}
"""Scalars of verl with the difference, never negative, and what they are; the first that a run has counts."""
_UPDATE: Final = "update_actor"
"""Phase in which verl's trainers update the policy."""
USUAL, MOST = 0.005, 0.01
"""Means of `PROBABILITIES` with fresh samples: usual are values below the first; above the second something is wrong with the engine. Both are
from verl's FAQ (docs/faq/faq.rst, "Missmatch between inference and training sequence"). It has none for the KL divergence."""


class OffPolicy(Document):
    """Difference between the policies of engine and trainer, where verl logs it and the age of the samples."""

    key: Annotated[str, about("scalar of verl that has the difference")]
    age: Annotated[float, about("versions that the samples were old, mean of all steps")]
    fresh_steps: Annotated[int, about("steps all of whose samples were fresh: of the weights that they updated")]
    fresh: Annotated[float | None, about("mean difference in those")]
    stale_steps: int
    stale: Annotated[float | None, about("mean difference in the other steps")]
    from_age: Annotated[float | None, about("share of that difference that fresh samples do not have")]
    local_updates: Annotated[int, about("updates for each version of the weights; with more than one no step is fresh")]
    suspicious: Annotated[
        bool, about("precision and kernels do not explain the difference in steps with fresh samples")
    ]


def judge(steps: Iterable[Mapping[str, float]], local_updates: int = 1) -> OffPolicy | None:
    """Return the difference of a run; None if the steps do not have it, or have no age of the samples.

    Args:
        steps: The scalars of each step, by verl's keys.
        local_updates: Updates for each version of the weights, if they are known.
    """
    listed = [step for step in steps if math.isfinite(step.get(AGE, math.nan))]
    for key in DIFFERENCES:
        pairs = [(step[AGE], step[key]) for step in listed if math.isfinite(step.get(key, math.nan))]
        if not any(difference for _, difference in pairs):
            continue  # also 0 throughout: the trainer takes over the probabilities of the engine
        fresh = [difference for age, difference in pairs if age <= 0 and local_updates == 1]
        stale = [difference for age, difference in pairs if age > 0 or local_updates > 1]
        means = (fmean(fresh) if fresh else None, fmean(stale) if stale else None)
        share = None
        if means[0] is not None and means[1]:
            share = max(0.0, 1 - means[0] / means[1])
        age = fmean(age for age, _ in pairs)
        return OffPolicy(
            key=key,
            age=age,
            fresh_steps=len(fresh),
            fresh=means[0],
            stale_steps=len(stale),
            stale=means[1],
            from_age=share,
            local_updates=local_updates,
            suspicious=key == PROBABILITIES and means[0] is not None and means[0] > MOST,
        )
    return None


def judge_run(run: Explanation) -> OffPolicy | None:
    """Return the difference of a recorded run."""
    names = {SCALAR_PREFIX + key.replace("/", "."): key for key in (AGE, *DIFFERENCES)}
    steps: dict[int, dict[str, float]] = {}
    for series in run.series:
        key = names.get(series.name)
        if key is not None:
            for time, value in zip(series.times_ns, series.values, strict=True):
                steps.setdefault(time, {})[key] = value
    updates = [count for count in map(_count_updates, run.steps) if count]
    return judge(steps.values(), round(median(updates or [1])))


def _count_updates(step: Step) -> int:
    """Return how often the trainer updated the policy in a step; 0 if its path is not known any more."""
    return sum(phase == _UPDATE for phase, _ in groupby(segment.phase for segment in step.path))
