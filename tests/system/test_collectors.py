# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is read at collection: counters since the first reading, one reader of a node, what is gone, on and off."""

import os
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_otel
from verl_otel.session.lifecycle import Current
from verl_otel.system import collectors
from verl_otel.system.collectors import Collector, DeltaCounter


class Fake(Collector):
    """A source of two series, and what became of it."""

    metrics = ("hw.power",)

    def __init__(self, name, *, once_per_node=False):
        self.name = name
        self.once_per_node = once_per_node
        self.there = ["a", "b"]
        self.closed = self.reads = 0
        self.gate = threading.Event()
        self.gate.set()

    def read(self, scope):
        self.reads += 1
        self.gate.wait()
        return [("hw.power", (("hw.id", f"{self.name} {device}"), ("hw.type", "gpu")), 1.0) for device in self.there]

    def read_late(self):
        return [("hw.power", (("hw.id", f"{self.name} late"), ("hw.type", "gpu")), 1.0)]

    def close(self):
        self.closed += 1


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Begin a session with made-up sources; end it after the test."""
    monkeypatch.setattr(collectors, "_COLLECTORS", {})
    fakes = [Fake("here"), Fake("of node", once_per_node=True)]
    for collector in fakes:
        collectors.add(collector)

    def begin(**keywords):
        given = {"run_dir": tmp_path, "run_id": "r", "exporters": "file", "drain_interval": 60, "metric_interval": 100}
        verl_otel.init(**{**given, **keywords})
        return SimpleNamespace(here=fakes[0], node=fakes[1], state=Current.session.outputs.state)

    yield begin
    for collector in fakes:
        collector.gate.set()
    verl_otel.shutdown()


HERE, NODE = {"here a", "here b"}, {"of node a", "of node b"}


def names(state):
    """The series that exporters see after a collection."""
    Current.session._collect(observe=True)
    return {dict(point.labels)["hw.id"] for point in state.read()[1] if point.instrument.name == "hw.power"}


def test_sources_are_read_by_a_thread(session, wait_for):
    """What a source names is in the state, and no more when it names it no more."""
    begun = session()
    wait_for(lambda: names(begun.state) == HERE | NODE)
    begun.here.there.remove("b")
    wait_for(lambda: names(begun.state) == {"here a"} | NODE)


def test_values_have_the_time_at_which_they_were_read(session, wait_for):
    """A collection that comes later does not make them newer."""
    begun = session(metric_interval=3_600_000)  # one read
    wait_for(lambda: names(begun.state) == HERE | NODE)
    times = []
    for _ in range(2):
        Current.session._collect(observe=True)
        times.append({point.time_ns for point in begun.state.read()[1] if point.instrument.name == "hw.power"})
    assert times[0] == times[1]


def test_what_belongs_to_a_node_is_read_by_one_process(session, wait_for):
    """While another has the lock of the node, only what belongs to the process is read; later both. A reader that steps down closes its sources."""
    begun = session()
    wait_for(lambda: names(begun.state) == HERE | NODE)
    place = collectors.find_node_scope(Current.session.config)
    others = [collectors.LeaderLock(*place, collectors.LOCK_NAME) for _ in range(2)]
    assert not others[0].acquire()
    verl_otel.shutdown()
    assert others[0].acquire()
    begun = session()
    wait_for(lambda: names(begun.state) == HERE)
    os.utime(next(place.folder.glob("reader-*")), (0, 0))
    wait_for(lambda: names(begun.state) == HERE | NODE)
    others[0].renew()
    closed = begun.node.closed
    wait_for(lambda: names(begun.state) == HERE)
    wait_for(lambda: begun.node.closed > closed)
    others[0].release()
    wait_for(lambda: names(begun.state) == HERE | NODE)


def test_a_folder_that_cannot_be_locked_is_said_once(session, monkeypatch, wait_for, caplog):
    """What belongs to the process is read all the same."""

    def fail(_):
        raise OSError("no locks here")

    monkeypatch.setattr(collectors.LeaderLock, "acquire", fail)
    begun = session()
    wait_for(lambda: names(begun.state) == HERE and begun.here.reads > 2)
    assert [record.getMessage().endswith("no locks here") for record in caplog.records] == [True]


def test_a_source_that_fails_costs_its_own_values_only(session, swallow, wait_for):
    """The failure is counted, the others are read, and nothing is raised."""
    begun = session()
    begun.here.there = None
    wait_for(lambda: names(begun.state) == NODE)


def test_a_source_that_hangs_costs_the_values_of_the_hardware(session, wait_for, caplog):
    """What is recorded does not wait for it; old values go, one line in the log names it, and all are back when it answers."""
    begun = session()
    wait_for(lambda: names(begun.state) == HERE | NODE)
    begun.here.gate.clear()
    wait_for(lambda: names(begun.state) == {"here late"})
    reads = begun.here.reads
    for _ in range(5):
        assert names(begun.state) == {"here late"}
    assert begun.here.reads == reads
    with verl_otel.step(1):
        pass
    assert names(begun.state) == {"here late"}
    assert "verl.training.steps" in {point.instrument.name for point in begun.state.read()[1]}
    assert caplog.text.count("'here' waits for it") == 1
    place = collectors.find_node_scope(Current.session.config)
    assert not collectors.LeaderLock(*place, collectors.LOCK_NAME).acquire()
    begun.here.gate.set()
    wait_for(lambda: names(begun.state) == HERE | NODE)


@pytest.mark.full
def test_a_forked_child_reads_a_source_that_hangs_in_its_parent(session, wait_for):
    """The thread of the parent does not exist in the child, which starts its own."""
    begun = session()
    begun.here.gate.clear()
    wait_for(lambda: begun.here.reads)
    child = os.fork()
    if not child:
        code = 1
        try:
            begun.here.gate = threading.Event()
            begun.here.gate.set()
            with verl_otel.span("work"):
                pass
            wait_for(lambda: names(Current.session.outputs.state) == HERE)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("keywords", [{"hardware": False}, {"exporters": "none"}], ids=str)
def test_off_is_off(session, keywords):
    """Nothing is read of the hardware where it is switched off, or where nothing leaves the process."""
    begun = session(**keywords)
    assert names(begun.state) == set()
    assert not [thread for thread in threading.enumerate() if thread.name == "verl-otel-hardware"]


def test_the_end_of_a_session_closes_everything(session, wait_for):
    """Sources are closed, the lock is free, and a later session reads again; without a session nothing is read."""
    begun = session()
    wait_for(lambda: names(begun.state) == HERE | NODE)
    verl_otel.shutdown()
    assert begun.here.closed >= 1
    assert begun.node.closed >= 1
    assert not [thread for thread in threading.enumerate() if thread.name == "verl-otel-hardware"]
    again = session()
    wait_for(lambda: names(again.state) == HERE | NODE)


def test_an_exit_at_which_no_thread_can_be_started_is_silent(session, monkeypatch, wait_for, caplog):
    """As at the exit of Python 3.12.1: hardware was read until then, and nothing is missing."""
    begun = session()
    wait_for(lambda: names(begun.state) == HERE | NODE)
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "verl-otel-hardware"])
    with monkeypatch.context() as patched:
        patched.setattr(collectors.threading.Thread, "start", raise_no_thread)
        verl_otel.shutdown()
    assert "hardware" not in caplog.text


def raise_no_thread(_):
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_a_source_that_is_added_to_a_session_is_read(session, wait_for):
    """The plug-in starts the session before the integrations add their sources."""
    begun = session()
    collectors.add(Fake("late"))
    wait_for(lambda: names(begun.state) == HERE | NODE | {"late a", "late b"})


@pytest.mark.full
@given(st.lists(st.floats(0, 1e15), min_size=1))
def test_a_counter_begins_at_zero_and_never_falls(readings):
    """Whatever it says, such as less than before because it was reset."""
    since = DeltaCounter()
    seen = [since.count("a", reading) for reading in readings]
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert since.count("b", 7) == 0
