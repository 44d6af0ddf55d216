# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A decorated function has the parameters of the plain one, in every respect that a caller can see."""

import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_otel
from verl_otel.testing import capture

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


def test_a_mutable_default_is_the_same_object(recorded):
    """A mutable default is shared with the plain function, as between its calls."""

    @verl_otel.span("s")
    def collect(item, into=[], *, also={}):  # noqa: B006 - this is what is tested
        into.append(item)
        also[item] = True
        return into, also

    collect(1)
    first, also = collect(2)
    assert first == [1, 2]
    assert set(also) == {1, 2}
    assert collect.__wrapped__(3)[0] is first


NAMES = ["function", "site", "bind", "series", "span", "result", "error", "wrapper", "self", "args", "kwargs", "x"]


@pytest.mark.full
@pytest.mark.parametrize("verb", VERBS)
@given(st.permutations(NAMES), st.lists(st.integers(0, 2), min_size=3, max_size=3), st.data())
@settings(deadline=None, max_examples=60, database=None)
def test_any_function_gets_what_its_caller_gave(verb, names, numbers, data):
    """Whatever the kinds and names of parameters, the function gets the same arguments, decorated or not, on or off."""
    only_position, either, only_name = (names[4 * kind : 4 * kind + number] for kind, number in enumerate(numbers))
    declared = [*only_position, *(["/"] if only_position else []), *either, *(["*"] if only_name else [])]
    declared += [f"{name}=D" for name in only_name]
    everything = [*only_position, *either, *only_name]
    space = {"D": []}
    exec(f"def function({', '.join(declared)}): return [{', '.join(everything)}]", space)
    function = space["function"]
    decorated = verb()(function)
    by_name = data.draw(st.integers(0, len(either)))
    args = [object() for _ in (*only_position, *either[by_name:])]
    if by_name:  # parameters given by name must not come before those given by position
        args = args[: len(only_position)]
    named = [*(either if by_name else []), *(name for name in only_name if data.draw(st.booleans()))]
    kwargs = {name: object() for name in named}
    expected = function(*args, **kwargs)
    assert decorated(*args, **kwargs) == expected
    with capture():
        assert decorated(*args, **kwargs) == expected


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
