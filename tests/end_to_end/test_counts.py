# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The comparisons of the end-to-end tests let a busy machine pass, and nothing else."""

from types import SimpleNamespace

import pytest

from tests.end_to_end import counts
from verl_otel.analysis.model import Verdict

ALIKE = [(1.0, 1.0)] * 20


@pytest.mark.parametrize("unlike", [[], [(0.49, 0.45)], [(0.49, 0.45), (0.45, 0.49)]], ids=["none", "one", "a tenth"])
def test_a_few_late_pairs_pass(unlike):
    """At most a tenth of the pairs, by less than 50 ms."""
    assert counts.find_unlike([*ALIKE, *unlike]) == []


@pytest.mark.parametrize("unlike", [[(0.6, 0.5)], [(0.49, 0.45)] * 3], ids=["far apart", "too many"])
def test_other_pairs_are_returned(unlike):
    """What is measured wrongly is returned."""
    assert counts.find_unlike([*ALIKE, *unlike]) == unlike


def make_verdict(**fields):
    return Verdict(**{"step": 3, "step_seconds": 4.0, "kind": "phase", "subject": "update", "cause": "worker", "cause_name": "", "seconds": 1.0, "saved": 1.0, **fields})  # fmt: skip


def find_unconfirmed(*verdicts, planted=()):
    training = SimpleNamespace(
        scalars=lambda: {number: {"timing_s/update": seconds} for number, seconds in enumerate((2, 2, 3, 2), 1)}
    )
    return counts.find_unconfirmed(training, [SimpleNamespace(number=3, verdicts=verdicts)], planted)


def test_verls_own_timers_confirm_a_verdict():
    """The phase took a second more by verl's own timer, as the verdict says."""
    assert find_unconfirmed(make_verdict()) == []
    assert find_unconfirmed(make_verdict(kind="tool"), planted={3}) == []


@pytest.mark.parametrize("fields", [{"seconds": 1.2}, {"subject": "gen"}, {"kind": "tool"}], ids=str)
def test_other_verdicts_are_unconfirmed(fields):
    """A verdict that says more than the timers, or something that they do not know, is wrong."""
    verdict = make_verdict(**fields)
    assert find_unconfirmed(verdict) == [verdict]
