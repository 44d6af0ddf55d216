# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is noted of ended spans: their durations by name, what moved, what was served."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_otel
from verl_otel.recording import progress
from verl_otel.recording.records import Ended
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span

SECONDS = st.lists(st.floats(0.001, 1e5), min_size=1, max_size=30)


@pytest.fixture(autouse=True)
def switched_on():
    """Note what ends, and forget it afterwards."""
    progress.switch(on=True)
    yield
    progress.switch(on=False)


def note(name, seconds, parent_id=0):
    notes = progress.Notes()
    notes.add(name, seconds, parent_id)
    progress.note_all(notes)


def note_all(name, durations):
    for seconds in durations:
        note(name, seconds)
    return progress.read_peers()[name]


@given(SECONDS)
def test_peers_hold_their_number_and_the_longest(durations):
    """Noted one after the other: how many, and the longest ones in order."""
    progress.switch(on=True)
    found = note_all("work", durations)
    assert found == (len(durations), tuple(sorted(durations, reverse=True)[: progress.MAX_TOP]))
    assert found.longest == max(durations)


@given(SECONDS, SECONDS)
def test_peers_of_two_processes_merge_to_those_of_one(one, other):
    """Merged, they are what one process would have noted."""
    progress.switch(on=True)
    whole = note_all("whole", one + other)
    assert progress.merge(note_all("one", one), note_all("other", other)) == whole


def test_names_are_bounded():
    """A process that makes a name for every span notes a number of them."""
    for number in range(2 * progress.MAX_NAMES):
        note(f"span {number}", 1.0, number)
    assert len(progress.read_peers()) == progress.MAX_NAMES


def test_spans_that_are_not_kept_are_noted_too(recorded, monkeypatch):
    """A trajectory that sampling drops moves its parents and is a peer as any other."""
    monkeypatch.setattr("verl_otel.recording.sampling.Policy.ratio", 0.0)
    progress.switch(on=True)
    with verl_otel.trajectory("u", 0) as root:
        with verl_otel.tool("python"):
            pass
        recorded.spans  # noqa: B018 - drains
        assert progress.take_moved() == {root.resolve().span_id}
    recorded.spans  # noqa: B018 - as above
    assert {"verl.trajectory", "execute_tool python"} <= progress.read_peers().keys()
    assert Ended.count == 2


@pytest.mark.parametrize("on", [False, True])
def test_nothing_is_noted_while_nobody_asks(recorded, on):
    """Off, a span that is drained leaves nothing; on, it does."""
    progress.switch(on=on)
    with verl_otel.step(1) as step, Span(Site("generate")):
        pass
    assert len(recorded.spans) == 2
    above = step.resolve().span_id
    noted = {"verl.step", "verl.generate"}, {above}, [above]
    served = [each.parent_id for each in progress.read_served()]
    found = set(progress.read_peers()), progress.take_moved(), served
    assert found == (noted if on else (set(), set(), []))


def test_no_move_is_lost_while_another_thread_drains(fast_switching, monkeypatch):
    """A scrape drains beside the drain thread: what one of them notes is taken once, whole."""
    monkeypatch.setattr(progress, "MAX_MOVED", 10**9)
    total, taken = 50_000, set()

    def drain(first):
        for parent in range(first, total + 1, 2):
            note("a", 1.0, parent)

    threads = [threading.Thread(target=drain, args=(first,)) for first in (1, 2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken |= progress.take_moved()
    assert len(taken | progress.take_moved()) == total
