# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A decorated function has the parameters of the plain one, in every respect that a caller can see."""

import functools
import inspect
import pickle
import threading

import pytest

import verl_otel
from verl_otel.recording.decorate import ArgumentBinder

MUTABLE = []


def plain(a, b=2): ...
def positional(a, b=MUTABLE, /): ...
def mixed(a, /, b, *, c, d=MUTABLE): ...
def only_keywords(*, a, b=1): ...
def starred(a, *rest, b=1, **options): ...
def everything(a, /, b: int, *rest: str, c: float = 1.5, d, **options: bytes) -> list[int]: ...
def nothing(): ...
def own_names(self, function, site, args, kwargs, span, result, error): ...


FUNCTIONS = [
    plain,
    positional,
    mixed,
    only_keywords,
    starred,
    everything,
    nothing,
    own_names,
    lambda x, *y: (x, y),
]
VERBS = [
    pytest.param(lambda: verl_otel.tool("t", extract=lambda *_: None), id="with extractor"),
    pytest.param(lambda: verl_otel.span("s"), id="without extractor"),
    pytest.param(lambda: verl_otel.timed("t"), id="timed"),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_signature_is_the_same(verb, function):
    """Signature, annotations and names are those of the plain function."""
    decorated = verb()(function)
    assert inspect.signature(decorated) == inspect.signature(function)
    assert decorated.__annotations__ == function.__annotations__
    assert (decorated.__name__, decorated.__qualname__, decorated.__module__, decorated.__doc__) == (
        function.__name__,
        function.__qualname__,
        function.__module__,
        function.__doc__,
    )
    assert decorated.__wrapped__ is function


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_call_names_the_users_function(recorded, verb):
    """A call with wrong arguments raises a TypeError that names the user's function."""

    @verb()
    def needs(one, two):
        return one, two

    with pytest.raises(TypeError, match=r"needs\(\) missing 1 required positional argument: 'two'"):
        needs(1)
    with pytest.raises(TypeError, match=r"needs\(\) got an unexpected keyword argument 'three'"):
        needs(1, 2, three=3)


def test_a_signature_that_somebody_set_is_kept_and_not_believed(recorded):
    """A `__signature__` that names parameters which the code does not take is shown, and calls work as before."""

    def real(*args, **kwargs):
        return args, kwargs

    real.__signature__ = inspect.Signature([inspect.Parameter("shown", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    decorated = verl_otel.span("s")(real)
    assert str(inspect.signature(decorated)) == "(shown)"
    assert decorated(1, 2, three=3) == ((1, 2), {"three": 3})


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
    assert list(verl_otel.span("g", extract=lambda *_: {})(lambda n: (yield n))(4)) == [4]
    assert all("error.type" not in span.attributes for span in recorded.spans)


def test_what_cannot_be_pickled_in_a_signature_stays_where_it_is():
    """The parameters of a function that is pickled by its name are read anew where they arrive."""
    arrived = pickle.loads(pickle.dumps(ArgumentBinder(with_lock)))
    assert arrived.bind((1,), {})["number"] == 1


def with_lock(number, lock=threading.Lock()):  # noqa: B008 - a default that cannot be pickled is the point
    return number, lock
