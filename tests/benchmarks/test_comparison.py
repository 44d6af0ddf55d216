# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side."""

from benchmarks import comparison
from tests.benchmarks.benchmarks_found import measured, results


def run(ours, peer=1000, count=9):
    return results([measured(ours + number / 10, peer + number) for number in range(count)])


def words(a, b):
    return {each.variant: each.outcome for each in comparison.compare(a, b)}


def test_what_costs_more_than_noise_is_told():
    """Ours became slower by a fifth, the peer stayed; the baseline is not compared."""
    assert words(run(100), run(120)) == {"verl_otel": "slower", "peer": "not significant"}
    assert words(run(120), run(100))["verl_otel"] == "faster"


def test_noise_is_not_told():
    """The same run again, a difference of two percent, and three processes that prove nothing."""
    assert set(words(run(100), run(100)).values()) == {"not significant"}
    assert words(run(100), run(102))["verl_otel"] == "not significant"
    assert words(run(100, count=3), run(150, count=3))["verl_otel"] == "not significant"


def test_a_promise_that_is_broken_now_is_told():
    """With what it was before and what it is."""
    text = comparison.render(run(100), run(200))
    assert "a call: met -> not met" in text
    assert "a call / peer: not significant -> not met" in text or "a call / peer: met -> not met" in text
