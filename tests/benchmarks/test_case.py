# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The cases: found by their files, and promising what was promised."""

import pytest

from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Variant, load_cases
from benchmarks.results import UNITS

CASES = load_cases()


def variant(name):
    return Variant(name, "as it is", lambda: Operation(float))


def test_a_target_of_nobody_is_refused():
    """A case whose target names a variant that it does not have would be promised and never measured."""
    with pytest.raises(ValueError, match="targets only of variants"):
        Case("x", "x", (variant(OURS),), (Target("x", 1, {"nobody": 2}),))
    with pytest.raises(ValueError, match="each variant once"):
        Case("x", "x", (variant(OURS), variant(OURS)))


def test_a_figure_and_a_null_test_are_there_or_refused():
    """A promise of something that nobody finds would never be judged; without a baseline there is nothing to double."""
    variants = (variant(BASELINE), variant(OURS))
    with pytest.raises(ValueError, match="targets only of figures"):
        Case("x", "x", variants, (Target("x", 1, figure="share"),), figures={"bytes": "MB"})
    with pytest.raises(ValueError, match="a baseline and its double"):
        Case("x", "x", variants, null="again")


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_case_can_be_read(case):
    """It has a baseline or says none, units and clocks that are known, and text for each variant."""
    assert case.unit in UNITS
    assert case.clock in {"wall", "cpu"}
    assert case.suite in {"hot", "total", "ray", "end_to_end"}
    assert all(each.text for each in case.variants)
    assert case.suite != "hot" or case.variant(BASELINE)
    assert all(target.at_most is not None or target.ratios for target in case.targets)


def test_every_promise_is_measured():
    """The promises of the hot path, as they were made: overhead, then how many times it the others are."""
    promised = {
        (case.name, target.ours): (target.at_most, tuple(sorted(target.ratios.values(), reverse=True)))
        for case in CASES.values()
        if case.suite == "hot"
        for target in case.targets
    }
    assert promised == {
        ("decorator-metrics", OURS): (180, (50, 6)),
        ("decorator-metrics-async", OURS): (260, (30,)),
        ("with-metrics", OURS): (330, (28, 4)),
        ("decorator-span", f"{OURS}, leaf"): (170, (200,)),
        ("decorator-span", OURS): (420, (85,)),
        ("decorator-span-async", OURS): (600, (50,)),
        ("with-span", OURS): (520, (55,)),
        ("counter", OURS): (20, (300, 15)),
        ("drain-and-scrape", OURS): (260, (30,)),
        ("agent-loop", OURS): (None, (20,)),
        ("kept-spans", OURS): (2.5, (25,)),
        ("longest-call", f"{OURS}, folding itself"): (1000, ()),
        ("marked-timer", OURS): (None, (5,)),
        ("ray-peers", OURS): (None, (400,)),
        ("ray-peers", f"{OURS}, span"): (None, (400,)),
        ("off-metrics", OURS): (50, ()),
        ("off-span", OURS): (50, ()),
        ("import", OURS): (10, ()),
    }
