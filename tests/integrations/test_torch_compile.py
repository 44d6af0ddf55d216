# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Regions that ``torch.compile`` traces: the result is that without telemetry, in one graph, which is compiled once."""

import functools
import gc
import logging
import types
import weakref

import pytest

import verl_otel
from verl_otel.integrations import torch_compile


@pytest.fixture(scope="module")
def torch():
    """PyTorch with its compiler loaded."""
    torch = pytest.importorskip("torch")
    torch.compile(double, backend="eager")(torch.ones(1))  # loads the compiler, which takes seconds
    return torch


@pytest.fixture
def compiled(torch):
    """Compile a function in one graph, and only once: a graph break or a second compilation raises."""
    torch_compile.install()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield functools.partial(torch.compile, backend="eager", fullgraph=True)
    torch._dynamo.reset()


def double(x):
    return x * 2


def scale(x, /, by=2, *more, plus=0, **named):
    return x * by + sum(more) + plus + sum(named.values())


def decorate_outside(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x) + 100

    return wrapper


@verl_otel.span("my.parts")
def parts(x):
    yield x
    yield x + 1


class Model:
    def __init__(self):
        self.weight = 3

    @verl_otel.update("actor")
    def forward(self, x):
        return self.scaled(x) + self.shifted(x)

    @verl_otel.timed("my.scaled", span=True)
    def scaled(self, x):
        return x * self.weight

    @staticmethod
    @verl_otel.tool
    def shifted(x):
        return x + 1


MODEL = Model()
SPANNED = verl_otel.span("my.loss")(double)
TIMED = verl_otel.timed("my.entropy")(double)
SCORED = verl_otel.reward("math")(double)
WITH_ALL_PARAMETERS = verl_otel.span("my.scale")(scale)
BELOW = decorate_outside(verl_otel.span("my.below")(double))
CALLS = verl_otel.counter("my.calls")
BOUND = verl_otel.counter("my.tokens").bind(kind="prompt")
LENGTH = verl_otel.histogram("my.length")
SIZE = verl_otel.gauge("my.size")


def use_blocks(x):
    with verl_otel.step(1) as step, verl_otel.phase("gen"), verl_otel.rollout(), verl_otel.update("actor"):
        step.set_attribute("key", 1)
        with verl_otel.trajectory("uid", 0, agent="a") as trajectory, verl_otel.turn(0), verl_otel.llm("qwen"):
            trajectory.set_attributes({"a": 1})
            trajectory.add_event("event")
            verl_otel.consume([trajectory])
            with verl_otel.tool("t"), verl_otel.reward("math"), verl_otel.span("s"), verl_otel.timed("t"):
                verl_otel.log("scope", key=1)
                return verl_otel.bind_context(function=double)(x)


def use_instruments(x):
    CALLS.add(1, kind="a")
    CALLS.bind(kind="b").add(1)
    BOUND.add(1)
    LENGTH.record(3.0)
    SIZE.set(1)
    verl_otel.counter("my.inside").add(1)
    return double(x)


def decorate_inside(x):
    @verl_otel.span
    def first(x):
        return x + 1

    @verl_otel.timed("my.second")
    def second(x):
        return x + 2

    return first(x) * second(x)


def fail_inside(x):
    try:
        with verl_otel.span("my.failure"):
            return x + {}["no such key"]
    except KeyError:
        return double(x)


REGIONS = {
    "span": lambda x: SPANNED(x) + 1,
    "timer": lambda x: TIMED(x) + 1,
    "reward": lambda x: SCORED(x) + 1,
    "parameters of every kind": lambda x: WITH_ALL_PARAMETERS(x) + WITH_ALL_PARAMETERS(x, 3, 4, plus=5, more=6),
    "decorator above": lambda x: BELOW(x) + 1,
    "methods": lambda x: MODEL.forward(x) + 1,
    "generator": lambda x: sum(parts(x)),
    "blocks": use_blocks,
    "instruments": use_instruments,
    "decoration": decorate_inside,
    "exception": fail_inside,
}


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_a_compiled_region_computes_the_same_and_records_nothing(region, torch, compiled, recorded):
    x = torch.arange(3.0)
    run = compiled(region)
    got = run(x)
    assert not recorded.spans
    assert not recorded.points
    assert torch.equal(got, region(x))
    assert (
        recorded.spans or recorded.points or region is decorate_inside
    )  # the same code records where it is not traced


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_a_compiled_region_computes_the_same_with_recording_off(region, torch):
    torch._dynamo.reset()
    x = torch.arange(3.0)
    assert torch.equal(torch.compile(region, backend="eager", fullgraph=True)(x), region(x))


def test_values_that_others_record_meanwhile_compile_nothing_again(torch, compiled, recorded):
    x = torch.arange(3.0)
    run = compiled(lambda x: use_instruments(x) + SPANNED(x))
    for _ in range(3):
        run(x)
        use_instruments(x)
        SPANNED(x)
        run(x)
        recorded.refresh()
    assert recorded.value("my.tokens") == recorded.value("my.length") == 3


DECORATED = {
    "span": (verl_otel.span("my.compiled")(double), "my.compiled"),
    "reward": (verl_otel.reward("math")(double), "verl.reward"),
    "method": (Model().forward, "verl.worker Model.forward"),
}


@pytest.mark.parametrize(("function", "name"), DECORATED.values(), ids=DECORATED)
def test_a_decorated_function_that_is_compiled_itself_records_each_call(function, name, torch, compiled, recorded):
    x = torch.arange(3.0)
    run = compiled(function)
    got = [run(x), run(x)]
    assert [span.name for span in recorded.spans if span.name != "my.scaled"] == [name, name]
    assert all(torch.equal(each, function(x)) for each in got)


def test_a_compiled_function_that_is_decorated_records_each_call(torch, compiled, recorded):
    run = verl_otel.span("my.compiled")(compiled(double))
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0))
    assert recorded.span("my.compiled")


def test_compilation_keeps_no_decorated_function_alive(torch, compiled, recorded):
    function = verl_otel.span("my.closure")(lambda x: x + 1)
    run = compiled(functools.partial(lambda function, x: function(x) * 2, function))
    run(torch.ones(2))
    kept = weakref.ref(function)
    del function, run
    torch._dynamo.reset()
    gc.collect()
    assert kept() is None


def test_a_release_of_pytorch_with_other_internals_is_left_alone(swallow, caplog):
    caplog.set_level(logging.DEBUG, "verl_otel")
    torch_compile._patch(types.ModuleType("torch._dynamo"))
    assert len(caplog.records) == 3
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
