# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is read at collection: counters since the first reading, one reader of a node, what is gone, on and off."""

import os
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_otel
from verl_otel._internal.call_timeout import CallTimeout
from verl_otel.recording import collection
from verl_otel.session.lifecycle import Current
from verl_otel.system import collectors
from verl_otel.system.collectors import DeltaCounter


class Fake:
    """A source of two series, and what became of it."""

    metrics = ("hw.power",)

    def __init__(self, once_per_node):
        self.name = f"fake {once_per_node}"
        self.once_per_node = once_per_node
        self.there = ["a", "b"]
        self.closed = 0

    def read(self, place):
        return [("hw.power", (("hw.id", f"{self.name} {device}"), ("hw.type", "gpu")), 1.0) for device in self.there]

    def close(self):
        self.closed += 1


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Begin a session with made-up sources; end it after the test."""
    monkeypatch.setattr(collectors._Registry, "collectors", {})
    fakes = [Fake(once_per_node=False), Fake(once_per_node=True)]
    for collector in fakes:
        collectors.add(collector)

    def begin(**keywords):
        verl_otel.init(**{"run_dir": tmp_path, "run_id": "r", "exporters": "file", "drain_interval": 60, **keywords})
        return SimpleNamespace(here=fakes[0], node=fakes[1], state=Current.session.state)

    yield begin
    verl_otel.shutdown()


def names(state):
    """The series that exporters see after a collection."""
    Current.session._collect(observe=True, ask_sources=True)
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
    place = collectors.find_node_scope(Current.session.config)
    place.folder.mkdir(parents=True, exist_ok=True)
    other = collectors.LeaderLock(place.folder, place.node, collectors.LOCK_NAME)
    assert other.acquire()
    assert names(begun.state) == {"fake False a", "fake False b"}
    other.release()
    assert len(names(begun.state)) == 4


def test_a_reader_that_steps_down_closes_its_collectors(session):
    """Whoever stood in for a frozen reader closes its sources when that one reads again."""
    begun = session()
    place = collectors.find_node_scope(Current.session.config)
    place.folder.mkdir(parents=True, exist_ok=True)
    other = collectors.LeaderLock(place.folder, place.node, collectors.LOCK_NAME)
    other.acquire()
    lock = next(place.folder.glob("reader-*"))
    os.utime(lock, (0, 0))
    assert len(names(begun.state)) == 4
    other.renew()
    closed = begun.node.closed
    assert names(begun.state) == {"fake False a", "fake False b"}
    assert begun.node.closed == closed + 1
    other.release()


def test_a_folder_that_cannot_be_locked_is_said_once(session, monkeypatch, caplog):
    """What belongs to the process is read all the same."""
    begun = session()

    def fail(_):
        raise OSError("no locks here")

    monkeypatch.setattr(collectors.LeaderLock, "acquire", fail)
    for _ in range(2):
        assert names(begun.state) == {"fake False a", "fake False b"}
    assert [record.getMessage().endswith("no locks here") for record in caplog.records] == [True]


def test_a_source_that_fails_costs_its_own_values_only(session, swallow):
    """The failure is counted, the others are read, and nothing is raised."""
    begun = session()
    begun.here.read = lambda place: 1 / 0
    assert names(begun.state) == {"fake True a", "fake True b"}


class ShortForOneSource(CallTimeout):
    """Has a short time-out for the source that hangs, and a long one for the others."""

    def call(self, key, function):
        self._seconds = 0.3 if key == "fake False" else 60.0
        return super().call(key, function)


@pytest.fixture
def hanging(session, monkeypatch):
    """Begin a session in which one source hangs until the event is set; returns session, event and the reads of that source."""
    monkeypatch.setattr(collectors._Registry, "reads", ShortForOneSource(60.0, "verl-otel-collector"))
    begun, thawed, reads = session(), threading.Event(), []
    read = begun.here.read

    def hang(place):
        reads.append(1)
        thawed.wait(60)
        return read(place)

    begun.here.read = hang
    yield begun, thawed, reads
    thawed.set()


@pytest.mark.full
def test_a_source_that_hangs_costs_its_time_once(hanging, wait_for, caplog):
    """A collection waits for it for a bounded time, has all others, does not ask it again while it hangs, and has it when it answers."""
    begun, thawed, reads = hanging
    began = time.monotonic()
    for _ in range(5):
        assert names(begun.state) == {"fake True a", "fake True b"}
    assert time.monotonic() - began < 5 * 0.3 + 4
    assert reads == [1]
    assert caplog.text.count("'fake False' are missing") == 1
    thawed.set()
    wait_for(lambda: len(names(begun.state)) == 4)


def test_a_forked_child_asks_a_source_that_hangs_in_its_parent(hanging):
    """The thread of the parent does not exist in the child."""
    begun, *_ = hanging
    assert len(names(begun.state)) == 2
    assert collectors._Registry.reads.is_stuck
    collectors.after_fork()
    assert not collectors._Registry.reads.is_stuck


@pytest.mark.parametrize(
    ("keywords", "groups"), [({"hardware": False}, {"event loops"}), ({"exporters": "none"}, set())], ids=str
)
def test_off_is_off(session, keywords, groups):
    """Nothing is asked of the hardware where it is switched off, and nothing at all where nothing leaves the process."""
    begun = session(**keywords)
    assert names(begun.state) == set()
    assert {name for name, callback in collection._callbacks.items() if callback.is_group} == groups


def test_the_end_of_a_session_closes_everything(session, tmp_path):
    """Sources are closed, the lock is free, and a later session reads again."""
    begun = session()
    names(begun.state)
    verl_otel.shutdown()
    assert begun.here.closed >= 1
    assert begun.node.closed >= 1
    again = session()
    assert len(names(again.state)) == 4


@pytest.mark.full
@given(st.lists(st.floats(0, 1e15), min_size=1))
def test_a_counter_begins_at_zero_and_never_falls(readings):
    """Whatever it says, such as less than before because it was reset."""
    since = DeltaCounter()
    seen = [since.count("a", reading) for reading in readings]
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert since.count("b", 7) == 0


def test_a_source_that_is_added_to_a_session_is_asked(session):
    """The plug-in starts the session before the integrations add their sources."""
    begun = session()
    late = Fake(once_per_node=False)
    late.name = "late"
    collectors.add(late)
    assert "late" in collection._callbacks
    assert begun.here.name in collection._callbacks


def test_no_source_is_asked_before_a_session_or_after_it(session):
    """Without a session nothing is read."""
    session()
    verl_otel.shutdown()
    late = Fake(once_per_node=False)
    late.name = "late"
    collectors.add(late)
    assert "late" not in collection._callbacks
