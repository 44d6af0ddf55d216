# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a recorded run learned, from the scalars of verl that it has; those of steps that were trained again do not count."""

from __future__ import annotations

from verl_otel.analysis.model import Explanation
from verl_otel.analysis.scalars import ABOUT_STEP, StepJoiner, find_keys, read_steps
from verl_otel.health import signals
from verl_otel.health.profiles import from_manifest
from verl_otel.health.signals import Learning
from verl_otel.semconv.scalar_keys import CORE_VALIDATION


def judge(run: Explanation) -> Learning:
    """Return how a run learned, by the thresholds of its profile."""
    scores = [key for key in find_keys(run.series) if key.startswith(CORE_VALIDATION)]
    joiner = StepJoiner()
    for one in read_steps(run.series, [*signals.KEYS, *ABOUT_STEP, *scores]):
        joiner.add(one.step, one.values)
    again = joiner.find_repeated()
    steps = [(step.number, step.values) for place, step in enumerate(joiner.steps) if place not in again]
    return signals.judge(steps, from_manifest(run.manifest))
