# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The inlined entry and exit of generated wrappers records the same as the methods of the span."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace

import verl_otel
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.wrapping import wrap
from verl_otel.testing import capture

pytestmark = pytest.mark.full

CALLS = st.recursive(
    st.fixed_dictionaries(
        {"verb": st.sampled_from(["span", "turn", "worker", "step", "tool"]), "children": st.just([])}
    ),
    lambda calls: st.fixed_dictionaries(
        {
            "verb": st.sampled_from(["span", "turn", "worker", "trajectory", "tool", "foreign", "block"]),
            "children": st.lists(calls, max_size=3),
            "raises": st.booleans(),
            "attribute": st.booleans(),
            "ends": st.booleans(),
        }
    ),
    max_leaves=8,
)
"""A call of a decorated function: its verb, the calls inside it, and what happens besides."""


def make_site(verb, *, inlined):
    """Return a call site whose wrapper uses the inlined entry where it can, or never does."""
    site = CallSite(verb, "" if verb == "step" else f"{verb}.name")
    site.needs_slow_path = site.needs_slow_path or not inlined
    return site


def perform(call, *, inlined):
    """Make a call and those inside it."""

    def body():
        span = trace.get_current_span()
        if call.get("attribute"):
            span.set_attribute("key", call["verb"])
        for child in call["children"]:
            with contextlib.suppress(KeyError):
                perform(child, inlined=inlined)
        if call.get("ends"):
            span.end()
        if call.get("raises"):
            raise KeyError("planned")

    if call["verb"] == "foreign":
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False)), end_on_exit=False):
            body()
    elif call["verb"] == "block":
        with verl_otel.span("block"):
            body()
    else:
        wrap(body, make_site(call["verb"], inlined=inlined))()


def record(call, *, inlined):
    """Return what a call records, without ids, times and the marks that depend on times."""
    with capture() as captured:
        with contextlib.suppress(KeyError):
            perform(call, inlined=inlined)
        assert trace.get_current_span() is trace.INVALID_SPAN
        spans = captured.spans
        names = {span.span_id: span.name for span in spans}
        return (
            [
                (span.name, names.get(span.parent_id, bool(span.parent_id)), {key: value for key, value in span.attributes.items() if not key.startswith("verl.sampling.")}, span.status,
                 [event.name for event in span.events], len(span.links), span.flags)
                for span in spans
            ],
            sorted((point.instrument.name, point.labels, getattr(point.value, "samples", None)) for point in captured.points),
        )  # fmt: skip


@given(CALLS)
@settings(deadline=None, max_examples=150)
def test_the_inlined_entry_records_what_the_methods_record(call):
    """Any nesting of calls gives the same spans and metrics."""
    assert record(call, inlined=True) == record(call, inlined=False)
