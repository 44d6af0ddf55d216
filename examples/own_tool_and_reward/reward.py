# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A reward function with the signature that verl calls, with telemetry."""

from collections.abc import Mapping
from typing import Any

import verl_otel


def read_score(arguments: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of one span. ``verl.reward.score`` is the one that metrics and reports are made from."""
    return {"verl.reward.score": result["score"], "answer.length": len(arguments["solution_str"])}


# Without `extract` the score is read from a number, or from a mapping with the key `score`.
@verl_otel.reward("arithmetic", extract=read_score)
def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    """Return 1 for the right answer, 0.1 for any other number, and 0 for anything else."""
    if solution_str == ground_truth:
        return {"score": 1.0, "exact": True}
    return {"score": 0.1 if solution_str.isdigit() else 0.0, "exact": False}
