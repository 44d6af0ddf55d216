# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks of several hosts are brought together as far as cause and effect allow, and no farther than they have to be."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from verl_otel.analysis.traces import clocks
from verl_otel.analysis.traces.clocks import WINDOW_NS, Bound, Clock
from verl_otel.model import LinkRecord, SpanRecord
from verl_otel.semconv.spans import CLIENT, SERVER

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND


def span(number, parent, begin, end, kind=1, trace=1, links=(), status=0, **attributes):
    """A span; times in nanoseconds since the beginning."""
    values = {key.replace("__", "."): value for key, value in attributes.items()}
    return SpanRecord(
        trace, number, parent, "x", kind, T0 + begin, T0 + end, values, tuple(links), (), status, "", 1, ""
    )


def clock_of(spans, reference="a"):
    """The clocks that spans with their hosts tell."""
    return clocks.estimate(clocks.find_bounds(spans), reference, {host for _, host in spans})


def calls(*times, shift=0):
    """Calls from host a to host b: (begin, end) of the caller and of the called, whose clock is ahead by ``shift``."""
    made = []
    for number, (begin, end, inner_begin, inner_end) in enumerate(times):
        made.append((span(number * 2 + 1, 0, begin, end, CLIENT), "a"))
        made.append((span(number * 2 + 2, number * 2 + 1, inner_begin + shift, inner_end + shift, SERVER), "b"))
    return made


CALL = st.tuples(st.integers(0, 100), st.integers(1, 50), st.integers(0, 50), st.integers(1, 50)).map(
    lambda each: (each[0], sum(each), each[0] + each[1], each[0] + each[1] + each[2])
)


@pytest.mark.full
@given(st.lists(CALL, min_size=1, max_size=8), st.integers(-(10**12), 10**12))
def test_a_shift_is_undone_within_the_uncertainty(times, shift):
    """However far a clock is ahead, what is found is off by no more than the uncertainty says."""
    clock = clock_of(calls(*times, shift=shift))["b"]
    (ahead,), (uncertain,) = clock.ahead_ns, clock.uncertain_ns
    assert abs(ahead - shift) <= uncertain
    assert uncertain <= min(end - begin for begin, end, *_ in times)


@pytest.mark.full
@given(st.lists(CALL, min_size=1, max_size=8))
def test_right_clocks_are_left_alone(times):
    """Where no shift is possible, none is made."""
    assert clock_of(calls(*times))["b"].ahead_ns == (0,)


@pytest.mark.full
@given(st.lists(CALL, min_size=1, max_size=6), st.integers(-1000, 1000))
def test_no_smaller_shift_would_do(times, shift):
    """What is found is possible, and the nearest to none that is."""
    clock = clock_of(calls(*times, shift=shift))["b"]
    (ahead,) = clock.ahead_ns

    def possible(each):
        return all(
            begin <= inner + shift - each and inner_end + shift - each <= end for begin, end, inner, inner_end in times
        )

    assert possible(ahead)
    assert not ahead or not possible(ahead - int(math.copysign(1, ahead)))


HOSTS = st.lists(st.integers(-(10**10), 10**10), min_size=1, max_size=4)


@pytest.mark.full
@given(HOSTS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), CALL), min_size=1, max_size=12))
def test_shifts_are_undone_over_several_hosts(shifts, times):
    """Hosts that never speak to the trainer's are bounded through others; those that nobody speaks to are not known."""
    shifts = [0, *shifts]
    spans = []
    for number, (one, two, (begin, end, inner, inner_end)) in enumerate(times, 1):
        caller, called = one % len(shifts), two % len(shifts)
        own, other = shifts[caller], shifts[called]
        spans.append((span(number * 2, 0, begin + own, end + own, CLIENT), f"h{caller}"))
        spans.append((span(number * 2 + 1, number * 2, inner + other, inner_end + other, SERVER), f"h{called}"))
    assume(all(abs(shift) < WINDOW_NS // 2 for shift in shifts))
    bounds = [bound._replace(time_ns=T0) for bound in clocks.find_bounds(spans)]
    found = clocks.estimate(bounds, "h0", {host for _, host in spans} | {"h0", "alone"})
    assert found["h0"] == Clock((0,), (0,), (0.0,))
    assert found["alone"] == Clock((0,), (0,), (math.inf,))
    for number, shift in enumerate(shifts):
        clock = found.get(f"h{number}")
        if clock is not None:
            assert abs(clock.ahead_ns[0] - shift) <= clock.uncertain_ns[0]


@pytest.mark.full
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc"), st.integers(-(10**18), 10**18)), max_size=20))
def test_contradictions_never_stop_it(times):
    """Whatever the bounds say, a clock comes out for each host."""
    bounds = [Bound(T0, host, other, most) for host, other, most in times if host != other]
    found = clocks.estimate(bounds, "a", "abc")
    assert found.keys() == {"a", "b", "c"}
    assert all(uncertain >= 0 for clock in found.values() for uncertain in clock.uncertain_ns)


def test_a_contradiction_is_met_half_way():
    """Two bounds that exclude each other leave the middle, and their distance as uncertainty."""
    clock = clocks.estimate([Bound(T0, "a", "b", 10), Bound(T0, "b", "a", -50)], "a", "ab")["b"]
    assert (clock.ahead_ns, clock.uncertain_ns) == ((30,), (20.0,))


@pytest.mark.parametrize(
    ("more", "child"),
    [({"verl__call__blocking": False}, {}), ({"status": 2}, {}), ({"kind": 1}, {}), ({}, {"kind": 1})],
    ids=["returns at once", "gave up", "no call", "nothing called"],
)
def test_only_who_waits_bounds_the_end(more, child):
    """A caller that did not wait for the end says nothing of it; the begin of what it called comes after its own all the same."""
    spans = [
        (span(1, 0, 0, 10, **{"kind": CLIENT, **more}), "a"),
        (span(2, 1, 5, 500, **{"kind": SERVER, **child}), "b"),
    ]
    clock = clock_of(spans)["b"]
    assert (clock.ahead_ns, clock.uncertain_ns) == ((0,), (math.inf,))
    (bound,) = clocks.find_bounds(spans)
    assert bound.most_ns == 5


def test_links_are_causes_too():
    """What was submitted begins later than what submitted it; what was consumed had ended before."""
    submitted = LinkRecord(1, 1, {"verl.link.type": "submitted_by"})
    spans = [
        (span(1, 0, 100, 900), "a"),
        (span(5, 0, 30, 80, trace=2, links=[submitted]), "b"),
        (span(2, 1, 500, 600, links=[LinkRecord(2, 5, {"verl.link.type": "consumed"})]), "a"),
        (span(3, 1, 500, 600, links=[LinkRecord(2, 5, {"verl.link.type": "other"})]), "a"),
    ]
    clock = clock_of(spans)["b"]
    assert clock.ahead_ns == (-70,)
    assert clock.uncertain_ns == (450.0,)


def test_a_clock_that_drifts_is_followed():
    """Each five minutes have their own shift, between them it changes evenly, and outside it stays."""
    bounds = []
    for number in range(10):
        time, shift = T0 + number * 2 * WINDOW_NS, number * SECOND
        bounds += [Bound(time, "a", "b", shift + 5), Bound(time, "b", "a", 5 - shift)]
    clock = clocks.estimate(bounds, "a", "ab")["b"]
    assert len(clock.times_ns) == 10
    assert clock.ahead(clock.times_ns[4]) == pytest.approx(4 * SECOND, abs=5)
    assert clock.ahead((clock.times_ns[4] + clock.times_ns[5]) // 2) == pytest.approx(4.5 * SECOND, abs=5)
    assert clock.ahead(0) == clock.ahead_ns[0]
    assert clock.ahead(1 << 62) == clock.ahead_ns[-1]
    assert clock.largest == pytest.approx(9.0)


def test_spans_on_one_host_say_nothing():
    """One host has one clock."""
    spans = [(span(1, 0, 0, 10, CLIENT), "a"), (span(2, 1, 50, 60, SERVER), "a")]
    assert list(clocks.find_bounds(spans)) == []
