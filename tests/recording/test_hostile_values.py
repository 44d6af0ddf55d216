# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""No call of a public verb raises because of a value or a name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_otel
from tests.fakes.hostile_values import VALUES

HOSTILE = [name for name in VALUES if name not in ("hostile type", "type")]
"""Classes are left out: in the place of a name they are what is decorated, which is refused."""
SPANS = {
    "step": verl_otel.step,
    "phase": verl_otel.phase,
    "rollout": lambda value: verl_otel.rollout(extract=value),
    "trajectory": lambda value: verl_otel.trajectory(
        value, value, step=value, agent=value, validate=value, extract=value
    ),
    "turn": verl_otel.turn,
    "llm": lambda value: verl_otel.llm(value, provider=value, operation=value, extract=value),
    "tool": lambda value: verl_otel.tool(value, extract=value),
    "reward": lambda value: verl_otel.reward(value, extract=value),
    "update": lambda value: verl_otel.update(value, extract=value),
    "span": lambda value: verl_otel.span(value, extract=value),
    "span with attributes": lambda value: verl_otel.span("name", attributes=value),
    "span with an attribute": lambda value: verl_otel.span("name", attributes={"key": value}),
    "timed": verl_otel.timed,
    "timed with spans": lambda value: verl_otel.timed(value, span=True),
}


def use_span(value):
    """Give a value to everything that a span can do."""
    with verl_otel.span("name") as span:
        span.set_attribute("key", value)
        span.set_attribute(value, 1)
        span.set_attributes(value)
        span.set_attributes({"key": value})
        span.add_event(value, value, value)
        span.add_event("event", {"key": value}, value)
        span.add_link(value, value)
        span.add_link(span.get_span_context(), value)
        span.add_link(span.get_span_context(), {"key": value})
        span.record_exception(value, value, value, value)
        span.record_exception(ValueError(value), {"key": value})
        span.set_status(value, value)
        span.set_status(2, value)
        span.update_name(value)
        span.end(value)


def use_instruments(value):
    """Give a value to everything that an instrument can do."""
    for make in (verl_otel.counter, verl_otel.gauge, verl_otel.histogram):
        make(value, unit=value, description=value)
    verl_otel.histogram(value, bounds=value)
    verl_otel.histogram("hostile.bounds", bounds=(value, 1)).record(1)
    verl_otel.counter("hostile.counter").add(value)
    verl_otel.counter("hostile.counter").add(1, label=value)
    verl_otel.counter("hostile.counter").bind(label=value).add(1)
    verl_otel.gauge("hostile.gauge").set(value, label=value)
    verl_otel.histogram("hostile.histogram").record(value, label=value)


@pytest.mark.full
@pytest.mark.parametrize("name", HOSTILE)
def test_no_verb_raises(recorded, name):
    """A verb with a hostile argument opens and closes as any other, and what it recorded can be drained."""
    for make in SPANS.values():
        try:
            with make(VALUES[name]()):
                pass
        finally:
            assert recorded.spans is not None


@pytest.mark.full
@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_method_of_a_span_raises(recorded, monkeypatch, name, content):
    """A span takes hostile values in all of its methods, with and without content, and is recorded."""
    monkeypatch.setattr(verl_otel.recording.state.RECORDER, "capture_content", content)
    use_span(VALUES[name]())
    assert len(recorded.spans) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_no_instrument_raises(recorded, name):
    """Instruments take hostile names, units, bounds, values and labels."""
    use_instruments(VALUES[name]())
    assert recorded.points


@pytest.mark.parametrize("name", HOSTILE)
def test_an_exception_with_hostile_arguments_passes_unchanged(recorded, name):
    """What is raised inside a span is what arrives outside of it."""
    error = ValueError(VALUES[name]())
    with pytest.raises(ValueError) as caught, verl_otel.tool("python"):
        raise error
    assert caught.value is error
    assert recorded.span("execute_tool python").status == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_a_decorated_function_takes_and_returns_anything(recorded, name):
    """Attributes are extracted from the arguments and the result, or by a function of the user: the result arrives unchanged."""
    for make in (verl_otel.reward, verl_otel.update, verl_otel.rollout, verl_otel.llm, verl_otel.trajectory):
        value = VALUES[name]()
        assert make(lambda data_source, batch=None: data_source)(value, value) is value
        assert make(extract=lambda arguments, result: value)(lambda: 5)() == 5  # noqa: B023 - called at once
        assert make(extract=lambda arguments, result: {"key": value})(lambda: 5)() == 5  # noqa: B023 - called at once
    assert len(recorded.spans) == 15


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.characters()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(SCALARS, inner), max_leaves=20
)


@pytest.mark.full
@given(ANYTHING)
@settings(deadline=None, max_examples=60, database=None)
def test_no_plain_value_makes_a_verb_raise(value):
    """Any mixture of plain values may be given to any verb."""
    with verl_otel.testing.capture() as captured:
        for make in SPANS.values():
            with make(value):
                pass
        use_span(value)
        use_instruments(value)
        assert captured.spans
