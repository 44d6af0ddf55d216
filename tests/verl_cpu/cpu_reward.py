# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bed's reward function: plain, as users write it."""

import itertools
import time

import cpu_log
import cpu_plant

_calls = itertools.count(1)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Return 1 when the right number is among the words, and a little for their count."""
    time.sleep(cpu_plant.find_delay("reward", next(_calls)))
    words = solution_str.split()
    hit = float(ground_truth in words)
    score = hit + 0.1 * (len(words) % 3)
    cpu_log.write("score", data_source=data_source, score=score)
    return {"score": score, "acc": hit}
