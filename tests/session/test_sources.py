# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is read at collection: counters since the first reading, one reader of a node, what is gone, on and off."""

import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_otel
from verl_otel.recording import recorder
from verl_otel.session import sources
from verl_otel.session.lifecycle import Current
from verl_otel.session.sources import Since


class Fake:
    """A source of two series, and what became of it."""

    metrics = ("hw.power",)

    def __init__(self, once_per_node):
        self.name = f"fake {once_per_node}"
        self.once_per_node = once_per_node
        self.there = ["a", "b"]
        self.closed = 0

    def read(self, place):
        return [("hw.power", (("hw.id", f"{self.name} {each}"), ("hw.type", "gpu")), 1.0) for each in self.there]

    def close(self):
        self.closed += 1


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Begin a session with made-up sources; end it after the test."""
    monkeypatch.setattr(sources._Readers, "known", {})
    made = [Fake(once_per_node=False), Fake(once_per_node=True)]
    for each in made:
        sources.add(each)

    def begin(**keywords):
        verl_otel.init(**{"run_dir": tmp_path, "run_id": "r", "exporters": "file", **keywords})
        return SimpleNamespace(here=made[0], node=made[1], state=Current.session.state)

    yield begin
    verl_otel.shutdown()


def names(state):
    """The series that exporters see after a collection."""
    Current.session.refresh()
    return {dict(point.labels)["hw.id"] for point in state.read()[1] if point.instrument.name == "hw.power"}


def test_sources_are_read_at_a_collection(session):
    """What a source names is in the state, and no more when it names it no more."""
    begun = session()
    assert names(begun.state) == {"fake False a", "fake False b", "fake True a", "fake True b"}
    begun.here.there.remove("b")
    assert names(begun.state) == {"fake False a", "fake True a", "fake True b"}


def test_what_belongs_to_a_node_is_read_by_one_process(session, tmp_path):
    """While another has the lock of the node, only what belongs to the process is read; later both."""
    begun = session()
    place = sources.find_place(Current.session.config)
    place.folder.mkdir(parents=True, exist_ok=True)
    other = sources.Post(place.folder, place.node, sources.NAME)
    assert other.take()
    assert names(begun.state) == {"fake False a", "fake False b"}
    other.leave()
    assert len(names(begun.state)) == 4


def test_who_is_relieved_lets_go(session):
    """Whoever stood in for a frozen reader closes its sources when that one reads again."""
    begun = session()
    place = sources.find_place(Current.session.config)
    place.folder.mkdir(parents=True, exist_ok=True)
    other = sources.Post(place.folder, place.node, sources.NAME)
    other.take()
    lock = next(place.folder.glob("reader-*"))
    os.utime(lock, (0, 0))
    assert len(names(begun.state)) == 4
    other.touch()
    closed = begun.node.closed
    assert names(begun.state) == {"fake False a", "fake False b"}
    assert begun.node.closed == closed + 1
    other.leave()


def test_a_folder_that_cannot_be_locked_is_said_once(session, monkeypatch, caplog):
    """What belongs to the process is read all the same."""
    begun = session()

    def fail(_):
        raise OSError("no locks here")

    monkeypatch.setattr(sources.Post, "take", fail)
    for _ in range(2):
        assert names(begun.state) == {"fake False a", "fake False b"}
    assert [record.getMessage().endswith("no locks here") for record in caplog.records] == [True]


def test_a_source_that_fails_costs_its_own_values_only(session, swallow):
    """The failure is counted, the others are read, and nothing is raised."""
    begun = session()
    begun.here.read = lambda place: 1 / 0
    assert names(begun.state) == {"fake True a", "fake True b"}


@pytest.mark.parametrize("keywords", [{"hardware": False}, {"exporters": "none"}], ids=str)
def test_off_is_off(session, keywords):
    """Nothing is asked where it is switched off or nothing leaves the process."""
    begun = session(**keywords)
    assert names(begun.state) == set()
    assert not recorder._groups


def test_the_end_of_a_session_closes_everything(session, tmp_path):
    """Sources are closed, the lock is free, and a later session reads again."""
    begun = session()
    names(begun.state)
    verl_otel.shutdown()
    assert begun.here.closed >= 1
    assert begun.node.closed >= 1
    again = session()
    assert len(names(again.state)) == 4


@given(st.lists(st.floats(0, 1e15), min_size=1))
def test_a_counter_begins_at_zero_and_never_falls(readings):
    """Whatever it says, such as less than before because it began anew."""
    since = Since()
    seen = [since.count("a", reading) for reading in readings]
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert since.count("b", 7) == 0


@given(st.lists(st.integers(500, 1000), min_size=1))
def test_a_counter_that_falls_a_little_has_not_begun_anew(readings):
    """However it goes up and down, it has grown by what it was above its beginning at most."""
    since = Since()
    for reading in readings:
        grown = since.count("a", reading)
    assert grown == max(readings) - readings[0]
