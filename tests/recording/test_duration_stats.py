# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is noted of ended spans: their durations by name, what moved, what was served."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_otel
from verl_otel.recording import duration_stats
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.duration_stats import DURATIONS
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER

SECONDS = st.lists(st.floats(0.001, 1e5), min_size=1, max_size=30)


@pytest.fixture(autouse=True)
def switched_on():
    """Note what ends, and forget it afterwards."""
    DURATIONS.switch(on=True)
    yield
    DURATIONS.switch(on=False)


def note(name, seconds, parent_id=0):
    notes = duration_stats.DurationLog()
    notes.add(name, seconds, parent_id)
    notes.parents.add(parent_id)
    DURATIONS.add(notes)


def note_all(name, durations):
    for seconds in durations:
        note(name, seconds)
    return DURATIONS.by_name()[name]


@pytest.mark.full
@given(SECONDS)
def test_peers_hold_their_number_and_the_longest(durations):
    """Noted one after the other: how many, and the longest ones in order."""
    DURATIONS.switch(on=True)
    found = note_all("work", durations)
    assert found == (len(durations), tuple(sorted(durations, reverse=True)[: duration_stats.MAX_TOP]))
    assert found.longest == max(durations)


@pytest.mark.full
@given(SECONDS, SECONDS)
def test_peers_of_two_processes_merge_to_those_of_one(one, other):
    """Merged, they are what one process would have noted."""
    DURATIONS.switch(on=True)
    whole = note_all("whole", one + other)
    assert duration_stats.merge(note_all("one", one), note_all("other", other)) == whole


def test_names_are_bounded():
    """A process that makes a name for every span notes a number of them."""
    for number in range(2 * duration_stats.MAX_NAMES):
        note(f"span {number}", 1.0, number)
    assert len(DURATIONS.by_name()) == duration_stats.MAX_NAMES


def test_spans_that_are_not_kept_are_noted_too(recorded, monkeypatch):
    """A trajectory that sampling drops moves its parents and is a peer as any other."""
    monkeypatch.setattr("verl_otel.recording.sampling.POLICY.ratio", 0.0)
    DURATIONS.switch(on=True)
    with verl_otel.trajectory("u", 0) as root:
        with verl_otel.tool("python"):
            pass
        recorded.spans  # noqa: B018 - drains
        assert DURATIONS.take_active() == {root.resolve().span_id}
    recorded.spans  # noqa: B018 - as above
    assert {"verl.trajectory", "execute_tool python"} <= DURATIONS.by_name().keys()
    assert RECORDER.ended_count == 2


@pytest.mark.parametrize("on", [False, True])
def test_nothing_is_noted_while_nobody_asks(recorded, on):
    """Off, a span that is drained leaves nothing; on, its name and what it moves: its parent, while that is open."""
    DURATIONS.switch(on=on)
    with verl_otel.step(1) as step:
        with verl_otel.tool("outer"), Span(CallSite("generate")):
            pass
        assert len(recorded.spans) == 2
        above = step.resolve().span_id
        served = [each.parent_id for each in DURATIONS.served()]
        found = set(DURATIONS.by_name()), DURATIONS.take_active(), len(served)
    noted = {"execute_tool outer", "verl.generate"}, {above}, 1
    assert found == (noted if on else (set(), set(), 0))


@pytest.mark.full
def test_no_move_is_lost_while_another_thread_drains(fast_switching, monkeypatch):
    """A scrape drains beside the drain thread: what one of them notes is taken once, whole."""
    monkeypatch.setattr(duration_stats, "MAX_ACTIVE", 10**9)
    total, taken = 50_000, set()

    def drain(first):
        for parent in range(first, total + 1, 2):
            note("a", 1.0, parent)

    threads = [threading.Thread(target=drain, args=(first,)) for first in (1, 2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken |= DURATIONS.take_active()
    assert len(taken | DURATIONS.take_active()) == total
