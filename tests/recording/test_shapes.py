# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of thing that may stand below a decorator of ours, or above it, under every verb."""

import enum
import functools
import math
import types

import pytest

import verl_otel
from tests.recording.decorated_shapes import SHAPES, read_property
from verl_otel.testing import capture

VERBS = {
    "span": verl_otel.span,
    "span()": verl_otel.span("name"),
    "step": verl_otel.step,
    "rollout": verl_otel.rollout,
    "trajectory": verl_otel.trajectory,
    "turn": verl_otel.turn,
    "llm": verl_otel.llm,
    "llm()": verl_otel.llm("model"),
    "tool": verl_otel.tool,
    "reward": verl_otel.reward,
    "update": verl_otel.update,
    "phase()": verl_otel.phase("gen"),
    "timed": verl_otel.timed,
    "timed()": verl_otel.timed("shapes"),
    "leaf()": verl_otel.timed("shapes.leaf", span=True),
}


def count(captured):
    """Return how many calls were recorded, as spans or as durations."""
    spans = len([span for span in captured.spans if "shapes.leaf" not in span.name])
    points = [point for point in captured.points if hasattr(point.value, "samples")]
    mine = [point for point in points if not point.instrument.name.startswith(("verl.", "gen_ai."))]
    return spans or sum(point.value.samples for point in mine)


def compiled(decorate):
    """What numba and others make: an object that is called, with the function in it."""

    class Dispatcher:
        def __init__(self, py_func):
            self.py_func = py_func
            functools.update_wrapper(self, py_func)

        def __call__(self, *args):
            return self.py_func(*args)

        def inspect_types(self):
            return "types"

    made = decorate(Dispatcher(lambda: 7))
    assert made.inspect_types() == "types"
    assert made.py_func() == 7
    return made()


@pytest.mark.parametrize("shape", [*SHAPES, compiled], ids=lambda shape: shape.__name__)
def test_what_is_decorated_stays_what_it_is(shape):
    """Under each verb, off and on: it gives 7 as without us, is of the same kind, keeps its attributes, and its one call is recorded."""
    for name, verb in VERBS.items():
        assert shape(verb) == 7, name
        with capture() as captured:
            assert shape(verb) == 7, name
            assert name == "phase()" or count(captured) == 1, name


def test_a_property_gives_its_span_the_name_of_its_function(recorded):
    """What is recorded of a descriptor has the name of the function inside."""
    read_property(verl_otel.span)
    assert [span.name.rpartition(".")[2] for span in recorded.spans] == ["value"]


class Plain:
    pass


@pytest.mark.parametrize(
    ("thing", "advice"),
    [
        (Plain, "the class Plain cannot be decorated: decorate its methods"),
        (int, "decorate its methods"),
        (enum.Enum("Kind", "A"), "decorate its methods"),
        (property(), "'property' objects cannot be decorated: decorate the function inside"),
        (functools.cached_property(len), "'cached_property' objects cannot be decorated: decorate the function inside"),
        (functools.singledispatchmethod(len), "'singledispatchmethod' objects cannot be decorated"),
        (functools.partialmethod(len), "'partialmethod' objects cannot be decorated"),
        (types.DynamicClassAttribute(len), "'DynamicClassAttribute' objects cannot be decorated"),
        (vars(type("Slotted", (), {"__slots__": ("a",)}))["a"], "decorate the function inside"),
    ],
    ids=(
        "a class",
        "a builtin class",
        "an enum",
        "a property",
        "a cached property",
        "a dispatched method",
        "a partial method",
        "a dynamic attribute",
        "a slot",
    ),
)
def test_what_cannot_be_decorated_raises_with_the_form_that_works(thing, advice):
    """Where it is decorated, not where it is called, and whether recording is on or not."""
    for verb in VERBS.values():
        with pytest.raises(TypeError, match=advice):
            verb(thing)


@pytest.mark.parametrize("thing", [math, 5, None, "text", [], Plain()], ids=lambda thing: type(thing).__name__)
def test_what_is_no_function_raises(thing):
    """With brackets a verb is given what it decorates: it has to be a function."""
    for verb in (verb for name, verb in VERBS.items() if name.endswith("()")):
        with pytest.raises(TypeError, match="cannot be decorated"):
            verb(thing)


def test_a_decorated_descriptor_may_be_decorated_again(recorded):
    """Two verbs on one property are two spans."""

    class Owner:
        @verl_otel.span("outer")
        @verl_otel.span("inner")
        @property
        def value(self):
            return 7

    assert Owner().value == 7
    assert recorded.span("inner").parent_id == recorded.span("outer").span_id
