# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What every exporter has, and the metric state from which exporters read."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.exporting_records import make_point, steady
from verl_otel._internal.safe_files import file_word
from verl_otel.exporting.base import MAX_HISTORY, Exporter, MetricState


class Silent(Exporter):
    """An exporter that overrides nothing but what it must."""

    name = "silent"

    def open(self, resource, scope, state):
        """Do nothing."""


def test_each_reason_is_said_once(caplog):
    """The first loss for a reason is a line that names exporter, reason and counter; the next ones are silent."""
    exporter = Silent()
    for reason in ("full", "full", "refused", "full"):
        exporter.drop("spans", 1, reason)
    first, second = (record.getMessage() for record in caplog.records)
    assert "silent exporter: full" in first
    assert "verl.otel.spans.dropped" in first
    assert "silent exporter: refused" in second


def test_losses_of_several_threads_add_up():
    """Losses that several threads count at once are all in the sum."""
    exporter = Silent()

    def lose():
        for _ in range(500):
            exporter.drop("spans", 1, "full")

    threads = [threading.Thread(target=lose) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exporter.dropped("spans") == {"full": 4000}


@given(st.text())
def test_any_text_becomes_a_part_of_a_files_name(text):
    """It leads to no other folder, hides no file, and is left alone the second time."""
    word = file_word(text)
    assert not set(word) & set("/\0 \n")
    assert not word.startswith(".")
    assert file_word(word) == word
    assert file_word("trainer-0.node") == "trainer-0.node"


NAMES = ("verl.a", "verl.b")
LABELS = ((), (("x", "1"),), (("x", "2"),))
updates = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(LABELS), st.integers(0, 99)), max_size=4).map(
    tuple
)
actions = st.lists(st.one_of(updates, st.integers(0, 2)), max_size=40)


class Reader:
    """What one reader knows: the latest point of every series that it was shown."""

    def __init__(self, state):
        self.state, self.cursor, self.known = state, 0, {}

    def read(self):
        self.cursor, points = self.state.read(self.cursor)
        self.known.update({(point.instrument.name, point.labels): point.value for point in points})
        return points


@pytest.mark.full
@steady
@given(actions)
def test_every_reader_ends_with_the_latest_points(script):
    """Whatever is updated and read in whatever order, each reader knows the latest point of every series in the end."""
    state, latest = MetricState(), {}
    readers = [Reader(state) for _ in range(3)]
    for action in script:
        if isinstance(action, int):
            readers[action].read()
            assert readers[action].known == latest
        else:
            state.update([make_point(name, value=value, labels=labels) for name, labels, value in action])
            latest.update({(name, labels): value for name, labels, value in action})
    for reader in readers:
        reader.read()
        assert reader.known == latest


@pytest.mark.full
@steady
@given(actions)
def test_a_reader_of_the_history_is_shown_every_value_of_a_gauge_once(script):
    """Whatever is updated and read in whatever order, each value of a gauge is shown once, in its order."""
    state, cursor, shown, latest = MetricState(), 0, [], []
    for action in [*script, 0]:
        if isinstance(action, int):
            cursor, points = state.read_history(cursor)
            shown += points
        else:
            points = [make_point(name, "gauge", value, labels=labels) for name, labels, value in action]
            state.update(points)
            latest += points
    for key in {(point.instrument.name, point.labels) for point in latest}:
        of_series = [
            [point.value for point in points if (point.instrument.name, point.labels) == key]
            for points in (latest, shown)
        ]
        assert of_series[0] == of_series[1]


def test_the_history_has_gauges_only_and_is_bounded():
    """What is cumulative is shown once, with its latest value; of a gauge without a reader the oldest values are dropped."""
    state = MetricState()
    for value in range(MAX_HISTORY + 10):
        state.update([make_point("verl.a", "gauge", value), make_point("verl.b", "counter", value)])
    _, points = state.read_history()
    assert [point.value for point in points if point.instrument.name == "verl.b"] == [MAX_HISTORY + 9]
    assert [point.value for point in points if point.instrument.name == "verl.a"] == [*range(10, MAX_HISTORY + 10)]


def test_a_series_that_is_not_named_any_more_is_gone():
    """Of a metric that comes as a whole only what came last is there; other metrics keep their series, and the history its values."""
    state = MetricState()
    old, kept, other = (
        make_point("verl.a", "gauge", 1, labels=(("x", "1"),)),
        make_point("verl.a", "gauge", 2, labels=(("x", "2"),)),
        make_point("verl.b", "counter", 3),
    )
    state.update([old, kept, other], {"verl.a"})
    state.update([kept], {"verl.a"})
    assert state.read()[1] == [kept, other]
    assert state.read_history()[1] == [old, kept, other]
    state.update([], {"verl.a", "verl.b"})
    assert state.read()[1] == []


def test_nothing_is_missed_under_concurrent_updates(fast_switching):
    """With four writers and three readers at work, every reader sees each series only grow, and ends with its last value."""
    state, last, done = MetricState(), 400, threading.Event()
    problems = []

    def write(writer):
        for value in range(1, last + 1):
            state.update([make_point(f"verl.{writer}.{series}", value=value) for series in range(3)])

    def read(reader):
        ended = False
        while not ended:
            ended = done.is_set()
            before = dict(reader.known)
            reader.read()
            problems.extend(key for key, value in before.items() if reader.known[key] < value)

    readers = [Reader(state) for _ in range(3)]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
    for thread in writers + threads:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    for reader in readers:
        assert len(reader.known) == 12
        assert set(reader.known.values()) == {last}
