# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import contextlib

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

import verl_otel
from verl_otel._internal import error_boundary
from verl_otel.model import REMOTE, Instrument, LinkRecord, Point
from verl_otel.recording import collection
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.collection import OPEN_AFTER, collect
from verl_otel.recording.span import Span


def remote(trace_id=5, span_id=6):
    return SpanContext(
        trace_id, span_id, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("k", "v")])
    )


@pytest.fixture
def later(monkeypatch):
    """Move the drain's clock on by some seconds."""

    def move(seconds):
        now = collection.clock()
        monkeypatch.setattr(collection, "clock", lambda: now + seconds)

    return move


@pytest.fixture
def observed(monkeypatch):
    """Register observables that are forgotten after the test."""
    monkeypatch.setattr(collection, "_callbacks", {})
    return collection.observe


def test_a_series_is_handed_out_when_it_changed(recorded):
    """A drain hands out the series that changed, each with its total since it began."""
    done = verl_otel.counter("done")
    done.add(2)
    assert [point.value for point in collect().points] == [2]
    assert collect().points == ()
    done.add(3)
    assert [point.value for point in collect().points] == [5]


def test_links_are_recorded_up_to_128(recorded):
    """A span keeps the first 128 links, with ids, attributes, trace state and whether they lead to another process."""
    with verl_otel.span("s") as span:
        for number in range(1, 200):
            span.add_link(remote(number, number), {"number": number})
        span.link_record(LinkRecord(1, 2, {}))
    links = recorded.span("s").links
    assert len(links) == 128
    assert links[9] == LinkRecord(10, 10, {"number": 10}, "k=v", REMOTE)


def test_events_are_recorded(recorded):
    """Events have their name, cleaned attributes, and the time that was given, or now."""
    with verl_otel.span("s") as span:
        span.add_event("first", {"list": [1, 2]}, timestamp=123)
        span.add_event("second")
    first, second = recorded.span("s").events
    assert (first.name, first.time_ns, first.attributes) == ("first", 123, {"list": (1, 2)})
    assert recorded.span("s").start_ns <= second.time_ns + 1_000_000
    assert second.attributes == {}


def test_an_open_span_appears_when_it_is_a_second_old(recorded, later):
    """An open span is shown once it is older than a second: with its verb, attributes and no end."""
    with verl_otel.step(7):
        assert collect().open_spans == ()
        later(OPEN_AFTER + 5)
        (found,) = collect().open_spans
        assert (found.span.name, found.span.end_ns, found.verb) == ("verl.step", 0, "step")
        assert found.span.attributes == {"verl.step.number": 7, "verl.step.lineage": "submitted"}
    batch = collect()
    assert batch.open_spans == ()
    assert batch.spans[0].span_id == found.span.span_id


def test_what_joined_another_span_is_not_open_twice(recorded, later):
    """A decorated function inside a hook is one open span, under its final name."""
    with Span(CallSite("tool", "execute_tool hook", hook=True)), verl_otel.tool("mine"):
        later(10)
        assert [each.span.name for each in collect().open_spans] == ["execute_tool mine"]


def test_an_open_span_that_cannot_be_shown_costs_itself_only(recorded, later, swallow, monkeypatch):
    """Where one open span cannot be turned into a record, the drain hands out all others and raises nothing."""
    resolve = Span.resolve

    def fail(span):
        if span.name == "bad":
            raise RuntimeError("planted")
        return resolve(span)

    with verl_otel.span("outer"), verl_otel.span("bad"):
        later(10)
        with monkeypatch.context() as broken:
            broken.setattr(Span, "resolve", fail)
            assert [each.span.name for each in collect().open_spans] == ["outer"]
    assert error_boundary.counts() == {"open span": 1}


def test_points_that_were_made_as_a_whole_are_handed_on_once(recorded):
    """Points that somebody made himself come out of the next drain, unchanged, and of no other."""
    point = Point(Instrument("verl.x", "gauge", "", ""), (), 1, 2, float("inf"))
    collection.add_points([point])
    assert collect().points == (point,)
    assert collect().points == ()


def test_points_beyond_the_bound_are_dropped(recorded, monkeypatch):
    """While nothing drains, points beyond the bound are not kept."""
    monkeypatch.setattr(collection, "MAX_PENDING", 10)
    for number in range(100):
        collection.add_points([Point(Instrument("verl.x", "gauge", "", ""), (), 1, 2, number)])
    assert [point.value for point in collect().points] == list(range(10))


def test_observables_are_asked_on_demand(recorded, observed):
    """An observable is not called by a drain, and its last registration counts."""
    asked = []
    observed("verl.rollout.active", lambda: asked.append("old") or [])
    observed("verl.rollout.active", lambda: asked.append("new") or [((), 3)])
    assert collection.observed() == {"verl.rollout.active"}
    assert collect().points == ()
    assert asked == []
    (point,) = collection.collect_observed(collect()).points
    assert (point.instrument.name, point.instrument.kind, point.value) == ("verl.rollout.active", "updown", 3)
    assert asked == ["new"]


def test_an_observable_that_fails_spoils_nothing(swallow, recorded, observed):
    """An observable that raises is counted and left out; the others and the spans are there."""
    observed("verl.rollout.active", lambda: 1 / 0)
    observed("verl.rollout.oldest.age", lambda: [((), 1.5)])
    with verl_otel.tool("python"):
        pass
    batch = collect()
    assert [point.value for point in collection.collect_observed(batch).points if point.instrument.kind == "gauge"] == [
        1.5
    ]
    assert len(batch.spans) == 1
    assert error_boundary.counts() == {"observe verl.rollout.active": 1}


def test_one_bad_span_does_not_take_the_others_with_it(swallow, recorded):
    """A span that cannot be recorded, because its parent is a broken object, costs no other span and no metric."""

    class Broken(trace.NonRecordingSpan):
        def get_span_context(self):
            raise RuntimeError("broken")

    with trace.use_span(Broken(remote())), verl_otel.tool("bad"):
        pass
    with verl_otel.tool("good"):
        pass
    with contextlib.suppress(RuntimeError):
        recorded.refresh()
    assert recorded.value("verl.tool.call.duration", gen_ai_tool_name="good") == 1
    assert "execute_tool good" in {span.name for span in recorded.spans}
