# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every verb on every shape of callable: it behaves as without the verb, or the decoration raises ``TypeError``."""

import pytest

import verl_otel
from tests.attack import shapes

pytestmark = pytest.mark.attack

VERBS = {
    "span": lambda: verl_otel.span,
    "span(name)": lambda: verl_otel.span("named"),
    "span(attributes)": lambda: verl_otel.span("named", attributes={"a": 1}),
    "step": lambda: verl_otel.step,
    "step(1)": lambda: verl_otel.step(1),
    "phase": lambda: verl_otel.phase("adv"),
    "rollout": lambda: verl_otel.rollout,
    "rollout()": verl_otel.rollout,
    "trajectory": lambda: verl_otel.trajectory,
    "trajectory(uid)": lambda: verl_otel.trajectory("uid", 0),
    "turn": lambda: verl_otel.turn,
    "turn(0)": lambda: verl_otel.turn(0),
    "llm": lambda: verl_otel.llm,
    "llm(model)": lambda: verl_otel.llm("model"),
    "tool": lambda: verl_otel.tool,
    "tool(name)": lambda: verl_otel.tool("calculator"),
    "reward": lambda: verl_otel.reward,
    "reward(source)": lambda: verl_otel.reward("math"),
    "update": lambda: verl_otel.update,
    "update(role)": lambda: verl_otel.update("actor"),
    "timed": lambda: verl_otel.timed("attack.shape"),
    "timed(span)": lambda: verl_otel.timed("attack.shape_with_span", span=True),
}


def differences(shape, verb):
    """Return what is different with the verb, by aspect; nothing if the decoration was refused."""
    plain = shape.look(shape.build(lambda function: function))
    try:
        thing = shape.build(verb)
    except TypeError:
        return {} if shape.may_be_refused else {"decoration": "refused"}
    except Exception as error:
        return {"decoration": repr(error)}
    seen = shape.look(thing)
    return {key: (plain[key], seen.get(key)) for key in plain if plain[key] != seen.get(key)}


@pytest.mark.parametrize("verb", VERBS)
def test_decorated_as_undecorated(verb, verl_otel_capture, attack_counts):
    """Results, exceptions, signature, names, kind and attributes of each shape are as without the verb."""
    failed = {}
    for name, shape in shapes.SHAPES.items():
        found = differences(shape, VERBS[verb]())
        if found:
            failed[name] = found
    attack_counts("decorator shapes", len(shapes.SHAPES), len(failed))
    assert not failed


def test_there_are_as_many_shapes_as_were_tried_before():
    assert len(VERBS) * len(shapes.SHAPES) >= 429
