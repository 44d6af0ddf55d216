# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a recorded run learned, from the scalars of verl that it has; those of steps that were trained again do not count."""

from __future__ import annotations

import math
from typing import Final

from verl_otel.analysis.model import Explanation
from verl_otel.analysis.scalars import ABOUT_STEP, StepJoiner, find_keys, read_component, read_steps
from verl_otel.health import signals
from verl_otel.health.conditions import CUT
from verl_otel.health.profiles import from_manifest
from verl_otel.health.signals import Learning
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import LIMIT
from verl_otel.semconv.scalar_keys import CORE_VALIDATION

LONGEST_RESPONSE: Final = "response_length/max"


def judge(run: Explanation) -> Learning:
    """Return how a run learned, by the thresholds of its profile."""
    scores = [key for key in find_keys(run.series) if key.startswith(CORE_VALIDATION)]
    joiner = StepJoiner()
    limit = _find_limit(run)
    components = [key for one in run.series if (key := read_component(one)) is not None]
    for one in read_steps(run.series, [*signals.KEYS, *ABOUT_STEP, *scores, *components, LONGEST_RESPONSE]):
        longest = one.values.pop(LONGEST_RESPONSE, math.inf)
        if longest < limit:  # verl compares with the width of the batch, which may be that of its longest response
            one.values.pop(CUT, None)
        joiner.add(one.step, one.values)
    again = joiner.find_repeated()
    steps = [(step.number, step.values) for place, step in enumerate(joiner.steps) if place not in again]
    return signals.judge(steps, from_manifest(run.manifest))


def _find_limit(run: Explanation) -> float:
    """Return the limit of the tokens of a response; 0: unknown."""
    found = (one for one in run.series if one.name == LIMIT and dict(one.labels).get(attr.LIMIT) == "response_tokens")
    return max((one.values[-1] for one in found if one.values), default=0.0)
