# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A process in which nothing happens is drained less often, and nothing that happens is written later for that."""

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import verl_otel
from tests.builders.exporting_records import make_span
from verl_otel.model import Instrument, Point
from verl_otel.recording import collection
from verl_otel.session import lifecycle
from verl_otel.session.lifecycle import Current


@pytest.fixture
def resting(start, monkeypatch):
    """A session that was drained by hand and rests; its own thread does not drain. ``turn`` is one turn of that thread."""

    class Resting:
        drains = 0
        now = time.monotonic()

        def __init__(self):
            self.files = start(drain_interval=60, metric_interval=60_000)
            collect = collection.collect

            def count(**keywords):
                self.drains += 1
                return collect(**keywords)

            monkeypatch.setattr(collection, "collect", count)
            monkeypatch.setattr(lifecycle.time, "monotonic", lambda: self.now)
            self.session = Current.session
            with verl_otel.step(1):
                pass
            for _ in range(3):
                self.session._run_once()
                self.session.outputs.user.metrics.wait(self.now + 10)
            self.turn()  # takes what the instruments of the user have reported
            assert self.turn() == 0

        def turn(self):
            """Return how many drains one turn of the thread has made."""
            before = self.drains
            self.session._run_once(woken=False)
            return self.drains - before

    return Resting()


def test_nothing_is_drained_while_nothing_happens(resting, monkeypatch):
    """Turns without anything new drain nothing for a minute, then once; where a span is open, for five seconds."""
    assert [resting.turn() for _ in range(10)] == [0] * 10
    for pause in (lifecycle.IDLE_SECONDS, lifecycle.MAX_REST_SECONDS):
        resting.now += pause - 0.1
        assert resting.turn() == 0
        resting.now += 0.2
        assert [resting.turn(), resting.turn()] == [1, 0]
        if pause == lifecycle.IDLE_SECONDS:
            monkeypatch.setattr(lifecycle.collection, "OPEN_AFTER", 0.0)
            open_span(resting.session)
            assert [resting.turn(), resting.turn()] == [1, 0]
    resting.session.held.close()


def test_an_idle_process_wakes_up_every_two_seconds(resting, monkeypatch):
    """After ten seconds without a drain; not while a span is open."""
    waits = []

    def wait(seconds):
        waits.append(seconds)
        resting.session._stopping = True

    monkeypatch.setattr(resting.session, "_wake", SimpleNamespace(wait=wait, set=resting.session._wake.set))
    monkeypatch.setattr(resting.session.run, "config", replace(resting.session.config, drain_interval=1.0))
    resting.now = resting.session._schedule._drained_at
    for later, held in ((9.9, False), (0.2, False), (0.0, True)):
        resting.now += later
        resting.session._stopping = False
        with verl_otel.span("held") if held else nullcontext():
            resting.session._run()
    assert waits == [1.0, 2.0, 1.0]


def add_span(session):
    with verl_otel.span("x"):
        pass


def open_span(session):
    session.held = verl_otel.span("held")
    session.held.__enter__()


def add_point(session):
    collection.add_points([Point(Instrument("verl.x", "gauge", "", ""), (), 1, 2, 3.0)])


def report_metrics(session):
    session.outputs.user.metrics.put(ExportMetricsServiceRequest().SerializeToString())


HAPPENING = {
    "a span": add_span,
    "a span that begins": open_span,
    "a counter": lambda _: verl_otel.counter("test.rest.counter").add(1),
    "a gauge": lambda _: verl_otel.gauge("test.rest.gauge").set(1.0),
    "a timer": lambda _: verl_otel.timed("test.rest.timer")(len)(""),
    "a point": add_point,
    "a record of the run log": lambda _: verl_otel.log("reward", x=1),
    "a span of the user": lambda session: session.user_spans.append(make_span(9)),
    "metrics of the user": report_metrics,
}


@pytest.mark.parametrize("happen", HAPPENING.values(), ids=HAPPENING)
def test_whatever_happens_is_drained_at_the_next_turn(resting, happen):
    """One turn after anything has happened there is a drain."""
    happen(resting.session)
    assert resting.turn() >= 1  # a flush drains, too
    if getattr(resting.session, "held", None):
        resting.session.held.close()


def test_open_spans_stay_in_their_file(resting, monkeypatch):
    """While work is open and nothing else happens, its file stays, and is written at each drain."""
    with verl_otel.span("held"):
        monkeypatch.setattr(lifecycle.collection, "OPEN_AFTER", 0.0)
        assert [resting.turn(), resting.turn()] == [1, 0]
        assert resting.files.names("open") == ["held"]
        (path,) = resting.files.paths("open")
        written = path.stat().st_size
        resting.now += lifecycle.MAX_REST_SECONDS + 0.1
        assert resting.turn() == 1
        assert resting.files.names("open") == ["held"]
        assert path.stat().st_size > written
    resting.turn()
    assert not resting.files.paths("open")


def test_the_heart_beats_while_the_process_rests(resting):
    """At rest the heartbeat is renewed, and a request for stacks is answered at once."""
    (heartbeat,) = (resting.files.folder / "black-box").glob("beat-*")
    os.utime(heartbeat, (1, 1))
    resting.now += 1
    assert resting.turn() == 0
    assert heartbeat.stat().st_mtime > 1
    request = heartbeat.with_name(heartbeat.name.replace("beat-", "ask-"))
    request.touch()
    resting.now += 1
    assert resting.turn() == 0
    assert not request.exists()
