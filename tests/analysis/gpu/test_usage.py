# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Times that overlap count once, and what a trajectory waits for lies within it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.analysis.gpu.trajectory_usage import COUNTED, INDEX, find_use, unite

pytestmark = pytest.mark.full

TIMES = st.lists(st.tuples(st.integers(-5, 20), st.integers(-2, 9)).map(lambda each: (each[0], sum(each))), max_size=8)


def ticks(times):
    """The ticks that lie in at least one of some times."""
    return {tick for start, end in times for tick in range(start, end)}


@given(TIMES)
def test_united_times_cover_the_same_and_do_not_touch(times):
    """Every tick once, in order, with a gap before the next part; parts without length are left out."""
    found = list(unite(times))
    assert ticks(found) == ticks(times)
    bounds = [bound for part in found for bound in part]
    assert bounds == sorted(set(bounds))


@given(TIMES, TIMES, st.booleans(), st.booleans())
def test_what_it_waits_for_is_counted_while_it_is_open(tools, calls, served, validate):
    """At each tick: it is open from its start to its end, in a tool where one of its calls is; an LLM call without a server hides."""
    spans = [("tool", "t", "a", *each, None, False) for each in tools]
    spans += [("llm", "m", "a", *each, None, False) for each in calls]
    spans += [("server", "", "s", 1, 3, None, False)] if served else []
    replicas, changes = find_use(0, 15, spans, validate=validate, whole=True)
    assert replicas == ([("s", 1, 3)] if served else [])
    expected = {"validating": range(15)} if validate else {"open": range(15), "in tool": ticks(tools)}
    if not served and not validate:
        expected["hidden"] = ticks(calls)
    for name in COUNTED:
        for tick in range(-6, 30):
            count = sum(by for when, what, by in changes if what == INDEX[name] and when <= tick)
            assert count == (0 <= tick < 15 and tick in expected.get(name, ()))
