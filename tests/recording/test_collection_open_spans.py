# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table of open spans: what is in it, how old it may be, and what it costs."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import verl_otel
from verl_otel.recording import collection
from verl_otel.recording.collection import ENTER_AFTER, MAX_OPEN, OPEN_AFTER, PER_SECOND
from verl_otel.recording.state import RECORDER


@pytest.fixture
def clock(monkeypatch, recorded):
    """The clock of the table, which stands at 10 s after now; ``clock.now`` may be set."""

    class Clock:
        now = collection.clock() + 10

    monkeypatch.setattr(collection, "clock", lambda: Clock.now)
    return Clock


@pytest.fixture
def begin():
    """Open spans that have nothing to do with each other; what a test leaves open ends with it."""
    opened = []

    def open_some(number, name="x"):
        made = [verl_otel.span(f"{name}{index}") for index in range(number)]
        for span in made:
            span.__enter__()
        opened.extend(made)
        return made

    yield open_some
    for span in reversed(opened):
        span.close()


@pytest.fixture
def made(monkeypatch):
    """Count the records that are made of open spans."""
    calls = []
    make = collection.record_open
    monkeypatch.setattr(collection, "record_open", lambda span: calls.append(span.name) or make(span))
    return calls


def test_a_row_is_made_again_when_its_span_has_changed(clock, begin, made):
    """A new attribute, another value of it, a child and an event are in the table that is read next; an unchanged row is the same object."""
    first, _ = begin(2)
    before = collection.read_open()
    for change in (
        lambda: first.set_attribute("number", 1),
        lambda: first.set_attribute("number", 2),
        lambda: first.add_event("seen"),
    ):
        change()
        rows = collection.read_open()
        assert rows[0] is not before[0]
        assert rows[1] is before[1]
        before = rows
    assert before[0].span.attributes["number"] == 2
    with verl_otel.span("child"):
        assert collection.read_open()[1].last_child == "child"
    assert len(made) == 2 + 3 + 2


def test_of_many_spans_only_old_ones_enter_and_stay(clock, begin):
    """Where so many spans begin in a second that each would cost, those enter that stay open for longer; what has entered does not leave."""
    few = begin(10)
    clock.now = few[-1].start + 1.1
    assert len(collection.read_open()) == 10
    many = begin(round(5 * PER_SECOND))
    clock.now = many[-1].start + 4.0
    assert len(collection.read_open()) == 10
    clock.now += 2.0
    assert len(collection.read_open()) == 10 + len(many)


def test_a_new_span_in_the_memory_of_an_old_one_is_another(clock, begin):
    """A span has its own row even if it lies where one lay that has ended since."""
    begin(1)
    collection.read_open()
    for number in range(50):
        with verl_otel.span(f"short{number}"):
            rows = collection.read_open()
            assert rows[-1].span.name == f"short{number}"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.integers(1, 90)),
            st.tuples(st.just("end"), st.integers(0, 10_000)),
            st.tuples(st.just("set"), st.integers(0, 10_000)),
            st.tuples(st.just("wait"), st.sampled_from([0.2, 1.0, 3.0, 9.0])),
        ),
        max_size=30,
    )
)
def test_the_table_is_what_one_made_anew_would_be(recorded, steps):
    """After any changes each row is what its span is now, what is older than a full table needs is listed, and nothing that is too young."""
    now = collection.clock() + 10
    opened = []
    patch = pytest.MonkeyPatch()
    patch.setattr(collection, "clock", lambda: now)
    collection.clear_open()
    try:
        for step, value in [*steps, ("wait", 1.0)]:
            now += 0.001
            if step == "begin":
                for _ in range(value):
                    opened.append(verl_otel.span(f"x{len(opened)}"))
                    opened[-1].__enter__()
                    opened[-1].start = now
            elif step == "wait":
                now += value
            elif opened and step == "set":
                opened[value % len(opened)].set_attribute("value", value)
            elif opened:
                opened[value % len(opened)].close()
            alive = [span for span in opened if not span.stop and now - span.start >= OPEN_AFTER][:MAX_OPEN]
            surely = [span for span in alive if now - span.start >= ENTER_AFTER]
            rows = collection.read_open()
            assert len(surely) <= len(rows) <= len(alive)
            for row, span in zip(rows, alive, strict=False):
                assert row.start == span.start
                assert row.span == collection.record_open(span)
    finally:
        patch.undo()
        for span in reversed(opened):
            span.close()
        RECORDER.open_spans.clear()
        collection.clear_open()
