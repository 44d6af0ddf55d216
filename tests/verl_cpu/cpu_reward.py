# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bed's reward function: plain, as users write it."""

import itertools

import cpu_log
import cpu_plant

STEP = 8
"""Calls in one step."""
_calls = itertools.count(1)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Return 1 when the right number is among the words, and a little for their count."""
    call = next(_calls)
    cpu_plant.reach("reward", call)
    words = solution_str.split()
    hit = float(ground_truth in words)
    score = hit + 0.1 * (len(words) % 3)
    if cpu_plant.is_reached("score!equal", (call - 1) // STEP + 1):
        score = 1.0
    cpu_log.write("score", data_source=data_source, score=score)
    return {"score": score, "acc": hit, "form": score - hit}
