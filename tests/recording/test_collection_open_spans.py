# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table of open spans: what is in it, how old it may be, and what it costs."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import verl_otel
from verl_otel.recording import collection
from verl_otel.recording.collection import FEW, MAX_OPEN, OPEN_AFTER, PER_SECOND
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr


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


def test_few_spans_are_recorded_again_at_each_drain(clock, begin):
    """Where few spans are open, an attribute is in the table that is read next."""
    span, *_ = begin(FEW)
    for number in range(3):
        span.set_attribute("number", number)
        assert collection.read_open()[0].span.attributes["number"] == number


def test_many_spans_are_recorded_again_less_often(clock, begin, made):
    """Where many spans are open, their rows stay for so long that `PER_SECOND` are made a second."""
    many = round(2 * PER_SECOND)
    span, *_ = begin(many)
    first = collection.read_open()
    span.set_attribute("late", True)
    clock.now += 1.9
    second = collection.read_open()
    assert len(made) == many
    assert all(row is before for row, before in zip(second, first, strict=True))
    clock.now += 0.2
    third = collection.read_open()
    assert third[0].span.attributes["late"] is True
    assert [row.age - before.age for row, before in zip(third, first, strict=True)] == pytest.approx([2.1] * many)
    assert len(made) == 2 * many


def test_a_new_span_in_the_memory_of_an_old_one_is_another(clock, begin):
    """A span has its own row even if it lies where one lay that has ended since."""
    begin(FEW + 1)
    collection.read_open()
    for number in range(50):
        with verl_otel.span(f"short{number}"):
            rows = collection.read_open()
            assert rows[-1].span.name == f"short{number}"
            assert attr.OPEN_AGE not in rows[-1].span.attributes


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
def test_the_table_is_what_one_made_anew_was_shortly_before(recorded, steps):
    """After any changes the table lists the spans that a new one would, and each row is what it was when it was read."""
    now = collection.clock() + 10
    opened, history = [], {}
    patch = pytest.MonkeyPatch()
    patch.setattr(collection, "clock", lambda: now)
    patch.setattr(collection, "time", SimpleNamespace(time_ns=lambda: round(now * 1e9)))
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
            for span in alive:
                history[span.name, round(now * 1e9)] = (now - span.start, collection.record_open(span))
            rows = collection.read_open()
            assert [row.span.name for row in rows] == [span.name for span in alive]
            assert [(row.age, row.span) for row in rows] == [history[row.span.name, row.read_ns] for row in rows]
            assert all(round(now * 1e9) - row.read_ns <= MAX_OPEN / PER_SECOND * 1e9 for row in rows)
    finally:
        patch.undo()
        for span in reversed(opened):
            span.close()
        RECORDER.open_spans.clear()
        collection.clear_open()
