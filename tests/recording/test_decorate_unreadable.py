# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of callables that have no parameters to read, and the names of the arguments of calls."""

import functools
import inspect
import math
import pickle
import threading
import types

import pytest

import verl_otel
from verl_otel.recording.decorate import ArgumentBinder
from verl_otel.testing import capture


def renamed(function, *names):
    """Return a function whose code has parameters with other names: names that nobody can write."""
    code = function.__code__.replace(co_varnames=names)
    return types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)


@pytest.mark.parametrize("name", [".0", "a b", "1"])
def test_a_function_whose_parameters_cannot_be_written_is_decorated(recorded, name):
    """A function made by a tool, with parameter names that are no names, is called and recorded as any other."""

    def double(value):
        return 2 * value

    odd = renamed(double, name)
    assert verl_otel.span("odd")(odd)(21) == 42
    assert verl_otel.timed("odd.timed")(odd)(21) == 42
    assert recorded.value("odd.timed") == len(recorded.spans) == 1


def test_a_failure_of_a_c_function_is_recorded(recorded):
    """A C function that raises is a failed span and a failed duration, and the user gets its exception."""
    for verb in (verl_otel.tool("int"), verl_otel.timed("int.timed")):
        with pytest.raises(ValueError):
            verb(math.sqrt)(-1)
    assert recorded.span("execute_tool int").attributes["error.type"] == "ValueError"
    assert recorded.value("int.timed", error_type="ValueError") == 1


def test_the_extractor_gets_arguments_by_name(recorded):
    """An extractor sees the arguments of a partial under the names of their parameters, defaults too."""
    seen = []

    def work(code, limit, *, retries=2):
        return code * limit

    decorated = verl_otel.tool("t", extract=lambda arguments, _: seen.append(dict(arguments)))(
        functools.partial(work, "ab")
    )
    assert decorated(limit=2) == "abab"
    assert seen == [{"limit": 2, "retries": 2}]


def test_arguments_without_names_are_positions():
    """The arguments of a C function that tells no signature are ``args`` and ``kwargs``."""
    assert ArgumentBinder(max).bind((1, 2), {"key": len}) == {"args": (1, 2), "kwargs": {"key": len}}


class Proxy:
    """What stands for something else: a name that the other does not know is an error of its own kind."""

    __name__ = __qualname__ = "proxy"
    broken = False

    def __getattr__(self, name):
        if type(self).broken or name == "__signature__":
            raise LookupError(name)
        raise AttributeError(name)

    def __call__(self, value):
        return 2 * value


@pytest.mark.parametrize("extract", [None, lambda arguments, result: {"seen": str(arguments), "result": result}])
def test_a_callable_that_tells_nothing_gives_its_result(recorded, monkeypatch, extract):
    """A proxy that raises whatever is asked of it is called as ever; what it returns is what the user gets."""
    decorated = verl_otel.tool("proxy", extract=extract)(Proxy())
    monkeypatch.setattr(Proxy, "broken", True)
    assert decorated(21) == 42
    span = recorded.span("execute_tool proxy")
    assert "error.type" not in span.attributes
    if extract is not None:
        assert (span.attributes["seen"], span.attributes["result"]) == ("{'args': (21,), 'kwargs': {}}", 42)


def test_the_signature_is_read_once(recorded, monkeypatch):
    """Reading a signature takes longer than all else: a call does not, and one without an extractor binds no arguments."""
    asked = []
    read = inspect.signature
    monkeypatch.setattr(inspect, "signature", lambda function: asked.append(function) or read(function))
    bind = verl_otel.tool("t", extract=lambda arguments, _: {"n": arguments["n"]})(functools.partial(lambda n: n))
    for number in range(3):
        bind(number)
    assert len(asked) == 1
    assert [span.attributes["n"] for span in recorded.spans] == [0, 1, 2]


def test_arguments_that_cannot_be_bound_cost_attributes_only(recorded, monkeypatch, swallow):
    """What fails while the arguments are named, after the function has succeeded, fails no call."""

    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(ArgumentBinder, "bind", fail)
    work = verl_otel.tool("t", extract=lambda arguments, _: {"n": 1})(functools.partial(lambda n: n))
    assert work(3) == 3
    assert list(verl_otel.span("g", extract=lambda *_: {})(renamed(lambda n: (yield n), "a b"))(4)) == [4]
    assert all("error.type" not in span.attributes for span in recorded.spans)


def test_what_cannot_be_pickled_in_a_signature_stays_where_it_is():
    """The parameters of a function that is pickled by its name are read anew where they arrive."""
    arrived = pickle.loads(pickle.dumps(ArgumentBinder(with_lock)))
    assert arrived.bind((1,), {})["number"] == 1


def with_lock(number, lock=threading.Lock()):  # noqa: B008 - a default that cannot be pickled is the point
    return number, lock


def test_a_c_function_decorated_while_off_records_later():
    """A C function decorated before recording begins records when it is on, and is only called when it is off."""
    length = verl_otel.timed("plain.length")(len)
    assert length("abc") == 3
    with capture() as captured:
        assert length("abc") == 3
        assert captured.value("plain.length") == 1
    assert length("abc") == 3
