# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""No call of a public verb raises because of a value or a name."""

import math
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_otel


def refusing(*names):
    """Return an object whose methods of these names raise."""

    def refuse(self, *args, **kwargs):
        raise RuntimeError("refused")

    return type("Refusing", (), dict.fromkeys(names, refuse))()


class NoClass:
    """Raises when somebody asks for its class, as some proxies do."""

    @property
    def __class__(self):
        raise RuntimeError("no class")


class Word(str):  # noqa: SLOT000 - as users write it
    """A text that refuses to be used as one."""

    def _refuse(self, *args, **kwargs):
        raise RuntimeError("refused")

    __str__ = __repr__ = __format__ = __getitem__ = __len__ = __eq__ = __add__ = __iter__ = _refuse
    strip = lower = encode = replace = startswith = _refuse
    __hash__ = str.__hash__


class Pairs(dict):
    """A dictionary that refuses to be read."""

    def items(self):
        raise RuntimeError("refused")

    __iter__ = __getitem__ = __len__ = keys = items


class Meta(type):
    """The class of a class that refuses to be asked."""

    def __getattribute__(cls, name):
        raise RuntimeError("refused")


class Refused(metaclass=Meta):
    """An object of such a class."""


class Gone:
    """What a weak proxy pointed to."""


def endless():
    made = [1]
    made.append(made)
    return made


def endless_dict():
    made = {}
    made["me"] = made
    return made


HOSTILE = {
    "str fails": lambda: refusing("__str__", "__repr__"),
    "all fails": lambda: refusing(
        "__str__",
        "__repr__",
        "__hash__",
        "__eq__",
        "__bool__",
        "__len__",
        "__iter__",
        "__float__",
        "__int__",
        "__index__",
    ),
    "attributes fail": lambda: refusing("__getattr__"),
    "every attribute fails": lambda: refusing("__getattribute__"),
    "weak proxy": lambda: weakref.proxy(Gone()),
    "no class": NoClass,
    "no metaclass": lambda: object.__new__(Refused),
    "word": lambda: Word("word"),
    "empty word": lambda: Word(""),
    "pairs": lambda: Pairs(a=1),
    "keys that are no text": lambda: {1: 2, None: 3, (1, 2): 4, refusing("__str__", "__repr__"): 5},
    "unhashable": lambda: [[1], {}],
    "huge integer": lambda: 10**5000,
    "negative huge integer": lambda: -(10**400),
    "surrogates": lambda: "\ud800\udfff" * 100,
    "null": lambda: "a\0b\nc\r\t",
    "long": lambda: "x" * 100_000,
    "empty": lambda: "",
    "nan": lambda: math.nan,
    "infinite": lambda: math.inf,
    "none": lambda: None,
    "bytes": lambda: b"\xff\0",
    "endless list": endless,
    "endless dictionary": endless_dict,
    "deep": lambda: eval("[" * 90 + "]" * 90),
    "generator": lambda: (number for number in range(3)),
    "exception": lambda: ValueError(refusing("__str__", "__repr__")),
    "complex": lambda: 1j,
    "object": object,
}

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


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("verb", SPANS)
def test_no_verb_raises(recorded, verb, name):
    """A verb with a hostile argument opens and closes as any other, and what it recorded can be drained."""
    try:
        made = SPANS[verb](HOSTILE[name]())
        with made:
            pass
    finally:
        assert recorded.spans is not None


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_method_of_a_span_raises(recorded, monkeypatch, name, content):
    """A span takes hostile values in all of its methods, with and without content, and is recorded."""
    monkeypatch.setattr(verl_otel.recording.state.RECORDER, "capture_content", content)
    use_span(HOSTILE[name]())
    assert len(recorded.spans) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_no_instrument_raises(recorded, name):
    """Instruments take hostile names, units, bounds, values and labels."""
    use_instruments(HOSTILE[name]())
    assert recorded.points


@pytest.mark.parametrize("name", HOSTILE)
def test_an_exception_with_hostile_arguments_passes_unchanged(recorded, name):
    """What is raised inside a span is what arrives outside of it."""
    error = ValueError(HOSTILE[name]())
    with pytest.raises(ValueError) as caught, verl_otel.tool("python"):
        raise error
    assert caught.value is error
    assert recorded.span("execute_tool python").status == 2


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.characters()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(SCALARS, inner), max_leaves=20
)


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
