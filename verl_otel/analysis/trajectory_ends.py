# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How the trajectories of the training ended, and how many of them no step trained on: from the counters of all processes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from verl_otel.analysis.model import Series
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import ROLLOUT_DROPPED, ROLLOUT_TRAJECTORIES


class TrajectoryEnds(NamedTuple):
    """Numbers of trajectories, without those of validations."""

    ended: dict[str, int]
    """By how they ended, the most first."""
    dropped: dict[str, int]
    """Those that no step trained on, by reason, the most first."""


def count(series: Iterable[Series], restarts: Iterable[int] = ()) -> TrajectoryEnds:
    """Add up the counters of a run.

    Args:
        series: The scalars of the run.
        restarts: The start of each attempt but the first: the counters begin again, whatever their values are.
    """
    starts = sorted(restarts)
    found: dict[str, Counter[str]] = {ROLLOUT_TRAJECTORIES: Counter(), ROLLOUT_DROPPED: Counter()}
    for one in series:
        labels = dict(one.labels)
        if one.name in found and labels.get(attr.VALIDATE) != "true":
            key = labels.get(attr.TRAJECTORY_END) or labels.get(attr.REASON, "")
            points = (
                (bisect_right(starts, time_ns), value) for time_ns, value in zip(one.times_ns, one.values, strict=True)
            )
            # a process that was started again begins at 0
            rises = (
                after - before if after >= before and attempt == last else after
                for (last, before), (attempt, after) in pairwise(((0, 0.0), *points))
            )
            found[one.name][key] += round(sum(rises))
    return TrajectoryEnds(*(dict(counts.most_common()) for counts in found.values()))
