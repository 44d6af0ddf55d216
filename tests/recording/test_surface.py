# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The span as others see it: OpenTelemetry's whole span, for instrumentations and users that expect one."""

import inspect
import time

import pytest
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

import verl_otel
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv.spans import STATUS_ERROR, STATUS_OK


def abstract_methods():
    return sorted(trace.Span.__abstractmethods__ | {"add_link"})


@pytest.mark.parametrize("name", abstract_methods())
def test_every_method_of_opentelemetrys_span_is_there(name):
    """Each method of OpenTelemetry's span is there and takes the same parameters in the same order."""
    theirs = list(inspect.signature(getattr(trace.Span, name)).parameters)
    ours = list(inspect.signature(getattr(Span, name)).parameters)
    assert len(ours) >= len(theirs)
    if name != "add_link":  # called by position
        assert ours[: len(theirs)] == theirs


def test_attributes_are_cleaned_and_the_last_one_counts(recorded):
    """Attributes are cleaned like all values, and setting one again replaces it."""
    with verl_otel.span("s", attributes={"given": 1, "replaced": 1}) as span:
        span.set_attribute("replaced", 2)
        span.set_attributes({"list": [1, 2], "none": None})
    assert recorded.span("s").attributes == {"given": 1, "replaced": 2, "list": (1, 2), "none": "None"}


def test_attributes_of_one_call_are_not_those_of_the_next(recorded):
    """What is set on the span of one call is not on that of the next one."""
    from verl_otel.recording.span import current

    @verl_otel.span("s", attributes={"shared": 1})
    def work(number):
        current().set_attribute(f"own {number}", number)

    work(1)
    work(2)
    assert [dict(span.attributes) for span in recorded.spans] == [
        {"shared": 1, "own 1": 1},
        {"shared": 1, "own 2": 2},
    ]


def test_a_span_can_be_renamed(recorded):
    """The last name counts."""
    with verl_otel.span("before") as span:
        span.update_name("after")
        assert span.name == "after"
    assert [each.name for each in recorded.spans] == ["after"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((Status(StatusCode.ERROR, "broken"),), STATUS_ERROR, "broken"),
        ((StatusCode.ERROR, "broken"), STATUS_ERROR, "broken"),
        ((StatusCode.OK,), STATUS_OK, ""),
        ((StatusCode.ERROR, "x" * 5000), STATUS_ERROR, "x" * 1024),
    ],
)
@pytest.mark.parametrize("capture_content", [False, True])
def test_a_status_can_be_set(recorded, monkeypatch, arguments, status, message, capture_content):
    """A status is set as OpenTelemetry's `Status` or `StatusCode`; its description is content, and bounded."""
    monkeypatch.setattr(RECORDER, "capture_content", capture_content)
    with verl_otel.span("s") as span:
        span.set_status(*arguments)
    found = recorded.span("s")
    assert (found.status, found.message) == (status, message if capture_content else "")


def test_a_span_context_is_opentelemetrys(recorded):
    """The span context has the exported ids, is valid and not remote, and carries the trace state."""
    with verl_otel.step(1) as span:
        context = span.get_span_context()
        assert context == span.get_span_context()
    step = recorded.span("verl.step")
    assert isinstance(context, trace.SpanContext)
    assert context.is_valid
    assert not context.is_remote
    assert (context.trace_id, context.span_id) == (step.trace_id, step.span_id)
    assert (context.trace_flags, context.trace_state.to_header()) == (1, "verl=s")


def test_an_end_time_of_the_caller_is_not_believed(recorded):
    """`end` with a time ends the span now: ours are measured on the monotonic clock."""
    with verl_otel.span("s") as span:
        span.end(end_time=1)
    assert recorded.span("s").end_ns >= recorded.span("s").start_ns


@pytest.mark.parametrize("what", ["events", "attributes"])
def test_one_span_does_not_grow_without_bound(recorded, what):
    """A long span to which a loop adds events or ever new attributes keeps a bounded number of them."""
    with verl_otel.step(1) as span:
        for number in range(20_000):
            if what == "events":
                span.add_event("event")
            else:
                span.set_attribute(f"key {number}", number)
    assert len(getattr(recorded.span("verl.step"), what)) <= 1024


@pytest.mark.parametrize(
    "harm",
    [
        lambda span: span.set_attribute(5, "value"),
        lambda span: span.add_event(5),
        lambda span: span.add_event("event", {5: "value"}),
        lambda span: span.add_event("event", timestamp=time.time()),
        lambda span: span.update_name(None) or span.update_name(5),
    ],
    ids=["attribute key", "event name", "event key", "event time", "name"],
)
def test_what_is_recorded_has_the_types_of_the_contract(recorded, harm):
    """Names and keys are texts and times are integers in what is handed to exporters, whatever the user gave."""
    with verl_otel.span("s") as span:
        harm(span)
    (found,) = recorded.spans
    keys = [*found.attributes, *(key for event in found.events for key in event.attributes)]
    assert all(isinstance(each, str) for each in (found.name, *keys, *(event.name for event in found.events)))
    assert all(isinstance(event.time_ns, int) for event in found.events)
