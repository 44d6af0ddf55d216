# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Replacements: they look and behave like what they replace, cost detail and never the host, and can be taken back."""

import asyncio
import contextlib
import inspect
import sys

import pytest

import verl_otel
from verl_otel.integrations import patch
from verl_otel.recording import decorate
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import context_access
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER

SITE = CallSite("span", "hooked")
HOST = """
class Base:
    def inherited(self, x):
        return ("inherited", x)

class Worker(Base):
    def method(self, a, b=2, *, c=3):
        '''The method's own words.'''
        return (a, b, c)

    async def later(self, a):
        return a

    def fail(self, error):
        raise error

    async def fail_later(self, error):
        raise error

    @staticmethod
    def static(a):
        return ("static", a)

    @classmethod
    def of_class(cls, a):
        return (cls.__name__, a)

def function(a):
    return a
"""


@pytest.fixture
def host_module(loaded):
    """A module with a class that has methods of every kind."""
    return loaded(HOST)


def begin(_self, args, kwargs):
    """A span with the number of arguments."""
    return Span(SITE, {"arguments": len(args) + len(kwargs)})


def loud(_original):
    return lambda *_, **__: "replaced"


def test_a_method_gets_a_span(host_module, recorded):
    """Each call is a span whose begin sees the arguments and whose finish sees the result."""

    def finish(span, args, kwargs, result):
        span.set_attribute("result", str((args, kwargs, result)))

    patch.replace(host_module.Worker, "method", patch.in_span(begin, finish))
    assert host_module.Worker().method(1, c=5) == (1, 2, 5)
    span = recorded.span("hooked")
    assert span.attributes == {"arguments": 2, "result": "((1,), {'c': 5}, (1, 2, 5))"}


async def test_a_coroutine_gets_a_span_over_its_whole_time(host_module, recorded):
    """The span of an asynchronous method ends with the method and not with its call."""
    patch.replace(host_module.Worker, "later", patch.in_span(begin))
    pending = host_module.Worker().later(7)
    assert not recorded.spans
    assert await pending == 7
    assert recorded.span("hooked").attributes == {"arguments": 1}


def test_a_wrapper_looks_like_what_it_wraps(host_module):
    """Name, words, signature, module and kind of the method are kept."""
    plain = {name: vars(host_module.Worker)[name] for name in ("method", "later")}
    for name in plain:
        patch.replace(host_module.Worker, name, patch.in_span(begin))
    for name, original in plain.items():
        wrapped = vars(host_module.Worker)[name]
        assert wrapped is not original
        assert inspect.signature(wrapped) == inspect.signature(original)
        assert (wrapped.__name__, wrapped.__qualname__) == (original.__name__, original.__qualname__)
        assert (wrapped.__doc__, wrapped.__module__) == (original.__doc__, original.__module__)
        assert inspect.iscoroutinefunction(wrapped) == inspect.iscoroutinefunction(original)
        assert inspect.isfunction(wrapped)


class TimeOut(BaseException):
    """What a signal handler raises."""


def test_a_time_out_leaves_no_span_open(host_module, recorded):
    """Wherever CPython may run a signal handler that raises: the exception arrives, nothing stays open or current, and no span is recorded twice."""
    patch.replace(host_module.Worker, "method", patch.in_span(begin, lambda span, *_: span.set_attribute("seen", True)))
    worker, outside, place = host_module.Worker(), context_access().get(), 0

    def raise_at_the_last(frame, event, _argument):
        nonlocal left
        left -= event in ("call", "c_return") and frame.f_code is not call.__code__
        if left == 0:
            sys.setprofile(None)
            raise TimeOut

    def call():
        try:
            sys.setprofile(raise_at_the_last)
            worker.method(1)
        finally:
            sys.setprofile(None)

    left = 0
    while left <= 0:
        place = left = place + 1
        before = list(recorded.spans)
        with contextlib.suppress(TimeOut):
            call()
        assert not RECORDER.open_spans, place
        assert context_access().get() is outside, place
        assert len(recorded.spans) - len(before) <= 1, place
    assert place > 10, "the places ended before the work did"


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_the_hosts_exceptions_pass_unchanged(host_module, recorded, error):
    """What the host raises arrives as the same object, with the span closed."""
    for name in ("fail", "fail_later"):
        patch.replace(host_module.Worker, name, patch.in_span(begin))
    with pytest.raises(type(error)) as caught:
        host_module.Worker().fail(error)
    assert caught.value is error
    coroutine = host_module.Worker().fail_later(error)
    with pytest.raises(type(error)) as caught:
        coroutine.send(None)
    assert caught.value is error
    assert len(recorded.spans) == 2


@pytest.mark.parametrize("name", ["method", "later"])
@pytest.mark.parametrize("where", ["begin", "finish", "nothing"])
def test_our_failures_never_reach_the_host(host_module, recorded, swallow, caplog, name, where, drive):
    """A begin or a finish that raises, or a begin that wants no span, costs the detail and one line in the log."""

    def fail(*_):
        raise RuntimeError("ours")

    first = {"begin": fail, "finish": begin, "nothing": lambda *_: None}[where]
    patch.replace(host_module.Worker, name, patch.in_span(first, fail))
    for _ in range(3):
        result = getattr(host_module.Worker(), name)(1)
        assert (drive(result) if name == "later" else result) == (1 if name == "later" else (1, 2, 3))
    assert len(recorded.spans) == (3 if where == "finish" else 0)
    assert len(caplog.records) == (0 if where == "nothing" else 1)
    assert not [record for record in caplog.records if "ours" not in record.getMessage()]


def test_nothing_is_asked_while_telemetry_is_off(host_module):
    """With recording off a wrapped method calls neither begin nor finish."""
    calls = []
    patch.replace(host_module.Worker, "method", patch.in_span(lambda *_: calls.append(1), lambda *_: calls.append(2)))
    assert host_module.Worker().method(1) == (1, 2, 3)
    assert not calls


def test_a_method_that_the_user_decorated_is_left_alone(host_module, recorded):
    """Hooked and decorated gives one span, the decorator's."""
    host_module.Worker.method = verl_otel.span("mine")(host_module.Worker.method)
    patch.replace(host_module.Worker, "method", patch.in_span(begin))
    host_module.Worker().method(1)
    assert [span.name for span in recorded.spans] == ["mine"]


@pytest.mark.parametrize(
    ("name", "kind"), [("static", staticmethod), ("of_class", classmethod), ("method", type(lambda: 0))]
)
def test_methods_keep_their_kind_and_come_back(host_module, name, kind):
    """Static and class methods stay what they are when replaced, and the very same object is put back."""
    worker = host_module.Worker
    original = vars(worker)[name]
    patch.replace(worker, name, loud)
    assert isinstance(vars(worker)[name], kind)
    assert getattr(worker(), name)("x") == "replaced"
    patch.undo_all()
    assert vars(worker)[name] is original


def test_a_class_method_still_gets_its_class(host_module):
    """A replaced class method is called with the class that it was called on."""
    patch.replace(host_module.Worker, "of_class", lambda original: lambda cls, a: ("seen", original(cls, a)))
    made = type("Sub", (host_module.Worker,), {})
    assert made.of_class(1) == ("seen", ("Sub", 1))


def test_undo_restores_everything_in_any_order(host_module):
    """Functions, methods and assigned values that were replaced, some of them twice, are all as before."""
    before = {**vars(host_module.Worker)}, {**vars(host_module)}
    patch.replace(host_module.Worker, "method", patch.in_span(begin))
    patch.replace(host_module, "function", loud)
    patch.assign(host_module, "function", "assigned")
    patch.assign(host_module, "function", "again")
    patch.replace(host_module.Worker, "static", loud)
    assert host_module.function == "again"
    patch.undo_all()
    assert ({**vars(host_module.Worker)}, {**vars(host_module)}) == before
    patch.undo_all()


def test_a_hook_is_installed_once_until_it_is_undone(host_module, recorded):
    """A second hook on the same method changes nothing; what was put back can be replaced again."""
    for number in (1, 2):
        for _ in range(2):
            patch.replace(host_module.Worker, "method", patch.in_span(begin))
        host_module.Worker().method(1)
        patch.undo_all()
        assert len(recorded.spans) == number


def test_a_missing_name_is_an_attribute_error(host_module):
    """What is not there cannot be replaced, and nothing is left to undo."""
    with pytest.raises(AttributeError):
        patch.replace(host_module.Worker, "nothing", loud)
    with pytest.raises(AttributeError):
        patch.assign(host_module, "nothing", 1)
    patch.undo_all()
    assert not hasattr(host_module.Worker, "nothing")


def test_an_inherited_method_is_replaced_in_the_class_only(host_module):
    """A hook on a class does not change the class that it inherits from."""
    patch.replace(host_module.Worker, "inherited", loud)
    assert host_module.Worker().inherited(1) == "replaced"
    assert host_module.Base().inherited(1) == ("inherited", 1)
    patch.undo_all()
    assert "inherited" not in vars(host_module.Worker)


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [((1, 2), {}, 2), ((1,), {"b": 3}, 3), ((), {"b": None}, None), ((1,), {}, None), ((), {}, None)],
)
def test_an_argument_by_position_or_name(args, kwargs, found):
    """An argument is found where the caller has put it, or None."""
    assert patch.argument(args, kwargs, 1, "b") == found


def test_a_host_that_looks_at_the_stack_sees_one_frame_more(host_module, recorded):
    """A wrapper adds exactly one frame between the caller and the method."""
    host_module.Worker.method = lambda _self: sys._getframe(1).f_code.co_filename
    patch.replace(host_module.Worker, "method", patch.in_span(begin))
    assert host_module.Worker().method() == decorate.__file__
