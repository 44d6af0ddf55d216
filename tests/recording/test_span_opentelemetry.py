# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The span as others see it: OpenTelemetry's whole span, for instrumentations and users that expect one."""

import inspect
import time

import opentelemetry.context
import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import verl_otel
from verl_otel.model import REMOTE
from verl_otel.recording.context import span_key
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


def test_an_end_time_of_the_caller_is_not_believed(recorded):
    """`end` with a time ends the span now: ours are measured on the monotonic clock."""
    with verl_otel.span("s") as span:
        span.end(end_time=1)
    assert recorded.span("s").end_ns >= recorded.span("s").start_ns


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


TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


@pytest.fixture(autouse=True)
def w3c_headers():
    """Use the W3C headers, whatever else is installed."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()]))
    yield
    propagate.set_global_textmap(before)


def arrive(flags="01", state="vendor=1,other=2"):
    """Make current what a request carries, as a server does; return the token."""
    carrier = {"traceparent": f"00-{TRACE:032x}-{PARENT:016x}-{flags}", "tracestate": state}
    return opentelemetry.context.attach(propagate.extract(carrier))


def test_our_span_is_opentelemetrys(both_paths):
    """Our span is an OpenTelemetry span, and the current one."""
    with verl_otel.step(1) as step:
        assert isinstance(step, trace.Span)
        assert trace.get_current_span() is step
        assert trace.get_current_span(opentelemetry.context.get_current()) is step
        assert step.is_recording()
    assert not step.is_recording()


def test_a_real_span_below_ours_has_our_trace_and_parent(both_paths, sdk):
    """A span of the SDK that is opened inside ours is its child, and ours is exported with the same ids."""
    tracer, exporter = sdk
    with verl_otel.step(1), tracer.start_as_current_span("user"):
        pass
    (user,), step = exporter.get_finished_spans(), both_paths.span("verl.step")
    assert user.context.trace_id == step.trace_id
    assert user.parent.span_id == step.span_id
    assert user.parent.trace_state.to_header() == "verl=s"


def test_ours_below_a_real_span_has_its_trace_and_parent(both_paths, sdk):
    """A span of ours that is opened inside one of the SDK is its child."""
    tracer, exporter = sdk
    with tracer.start_as_current_span("user"), verl_otel.tool("python"):
        pass
    (user,), tool = exporter.get_finished_spans(), both_paths.span("execute_tool python")
    assert (tool.trace_id, tool.parent_id) == (user.context.trace_id, user.context.span_id)
    assert tool.flags == user.context.trace_flags


def test_a_step_is_a_root_even_below_a_real_span(recorded, sdk):
    """A step begins a trace of its own, wherever it is opened."""
    with sdk[0].start_as_current_span("user") as user, verl_otel.step(1):
        pass
    step = recorded.span("verl.step")
    assert step.parent_id == 0
    assert step.trace_id != user.get_span_context().trace_id


def test_use_span_makes_ours_current(recorded, sdk):
    """OpenTelemetry's `use_span` works with ours, for example in a thread, and does not end it."""
    with verl_otel.step(1) as step:
        token = opentelemetry.context.attach(opentelemetry.context.Context())
        with trace.use_span(step), verl_otel.phase("gen"):
            pass
        opentelemetry.context.detach(token)
        assert step.is_recording()
    assert recorded.span("verl.phase.gen").parent_id == recorded.span("verl.step").span_id


def test_inject_writes_our_headers(both_paths):
    """Headers carry the ids with which the span is exported, its sampling, and its trace state."""
    carrier = {}
    with verl_otel.trajectory("uid") as trajectory:
        propagate.inject(carrier)
    span = both_paths.span("verl.trajectory")
    assert trajectory.get_span_context().span_id == span.span_id
    assert carrier == {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-03", "tracestate": "verl=t"}


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True), ("02", False)])
def test_a_remote_parent_is_followed(both_paths, flags, sampled):
    """Below a remote parent our spans have its trace, its flags and its trace state, and say that it is remote."""
    token = arrive(flags)
    carrier = {}
    with verl_otel.tool("python"), verl_otel.span("inner"):
        propagate.inject(carrier)
    opentelemetry.context.detach(token)
    assert carrier["traceparent"].startswith(f"00-{TRACE:032x}-")
    assert carrier["traceparent"].endswith(flags)
    assert carrier["tracestate"] == "vendor=1,other=2"
    assert both_paths.value("verl.tool.call.duration") == 1
    if not sampled:
        assert both_paths.spans == []
        return
    tool, inner = both_paths.span("execute_tool python"), both_paths.span("inner")
    assert (tool.trace_id, tool.parent_id, tool.flags) == (TRACE, PARENT, int(flags) | REMOTE)
    assert (inner.parent_id, inner.flags) == (tool.span_id, int(flags))
    assert tool.trace_state == inner.trace_state == "vendor=1,other=2"


def test_a_trajectory_below_a_remote_parent_is_a_root_with_a_link(recorded):
    """A trajectory that another process submitted begins its own trace and links to what submitted it."""
    token = arrive()
    with verl_otel.trajectory("uid"):
        pass
    opentelemetry.context.detach(token)
    span = recorded.span("verl.trajectory")
    (link,) = span.links
    assert span.parent_id == 0
    assert span.trace_id != TRACE
    assert (link.trace_id, link.span_id, link.flags) == (TRACE, PARENT, REMOTE)
    assert link.attributes == {"verl.link.type": "submitted_by"}


def test_a_trajectory_in_a_step_links_to_it(recorded):
    """The link of a trajectory leads to the span in which it was opened."""
    with verl_otel.step(1), verl_otel.phase("gen"), verl_otel.trajectory("uid"):
        pass
    (link,), gen = recorded.span("verl.trajectory").links, recorded.span("verl.phase.gen")
    assert (link.trace_id, link.span_id, link.flags) == (gen.trace_id, gen.span_id, 0)


def test_baggage_above_and_below_survives(both_paths):
    """Baggage set around our span is seen inside it, and baggage set inside it is seen by spans below."""
    above = opentelemetry.context.attach(baggage.set_baggage("above", "1"))
    with verl_otel.step(1):
        below = opentelemetry.context.attach(baggage.set_baggage("below", "2"))
        with verl_otel.phase("gen"):
            assert baggage.get_all() == {"above": "1", "below": "2"}
            carrier = {}
            propagate.inject(carrier)
        opentelemetry.context.detach(below)
        assert baggage.get_all() == {"above": "1"}
    opentelemetry.context.detach(above)
    assert carrier["baggage"] == "above=1,below=2"
    assert both_paths.span("verl.phase.gen").parent_id == both_paths.span("verl.step").span_id


def test_our_span_is_a_context_like_any_other(recorded):
    """What OpenTelemetry asks of a context our span answers: values, copies, lengths."""
    outer = opentelemetry.context.set_value("key", "value")
    token = opentelemetry.context.attach(outer)
    with verl_otel.step(1) as step:
        current = opentelemetry.context.get_current()
        changed = opentelemetry.context.set_value("other", 1, current)
        assert current.get("key") == current["key"] == "value"
        assert current.get("nothing", "default") == "default"
        assert "key" in current
        assert "nothing" not in current
        assert len(current) == len(list(current)) == len(current.keys()) == 2
        assert step in current.values()
        assert ("key", "value") in current.items()
        assert dict(current) == {span_key(): step, "key": "value"}
        with pytest.raises(KeyError):
            current["nothing"]
    opentelemetry.context.detach(token)
    assert trace.get_current_span(changed) is step
    assert changed["other"] == 1
    assert "other" not in outer


def test_a_value_is_found_below_any_number_of_spans(recorded):
    """What a context holds is found inside 2,000 spans, which are all drained."""
    token = opentelemetry.context.attach(baggage.set_baggage("key", "value"))
    blocks = [verl_otel.span("level") for _ in range(2000)]
    for block in blocks:
        block.__enter__()
    try:
        assert baggage.get_baggage("key") == "value"
    finally:
        for block in reversed(blocks):
            block.__exit__(None, None, None)
        opentelemetry.context.detach(token)
    assert len(recorded.spans) == 2000
