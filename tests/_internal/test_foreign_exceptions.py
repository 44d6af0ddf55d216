# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a guard lets pass: exceptions of signal handlers, trace functions and other threads; and what it swallows."""

import ctypes
import functools
import queue
import signal
import sys
import threading
import time

import pytest

import verl_otel
from verl_otel._internal import error_boundary
from verl_otel._internal.foreign_exceptions import is_foreign
from verl_otel.recording.callsite import CallSite


class TooLongError(Exception):
    """A user's time-out."""


def handle(number, frame):
    raise TooLongError("time is up")


def handle_without_frame(*arguments):
    del arguments
    raise TooLongError


class Limit:
    """A handler with a state, as graders have it."""

    def __call__(self, number, frame):
        self.fail()

    def handle(self, number, frame):
        self.fail()

    def fail(self):
        raise TooLongError("time is up")


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


def restore_and_raise(number, frame):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise TooLongError("the handler is not installed any more")


def raise_builtin(number, frame):
    raise TimeoutError("time is up")


HANDLERS = {
    "function": handle,
    "drops its frame": handle_without_frame,
    "object": Limit(),
    "method": Limit().handle,
    "partial": functools.partial(lambda _, number, frame: handle(number, frame), 5),
    "partial that drops its frame": functools.partial(handle_without_frame),
    "decorated": decorated(handle),
    "restores": restore_and_raise,
    "builtin type": raise_builtin,
}


@pytest.fixture(params=HANDLERS)
def alarm(request):
    """Install a handler and return what has it run now."""
    before = signal.signal(signal.SIGALRM, HANDLERS[request.param])
    yield lambda: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def test_the_exception_of_a_signal_handler_passes_every_guard(swallow, alarm):
    """What a handler raises while our code runs comes out of a guarded block, and is no failure of ours."""
    with pytest.raises((TooLongError, TimeoutError)), error_boundary.suppress_errors("place"):
        alarm()
    assert error_boundary.counts() == {}


def test_the_exception_of_a_signal_handler_passes_a_guarded_function(swallow, alarm):
    """What a handler raises while our code runs comes out of a guarded function."""
    with pytest.raises((TooLongError, TimeoutError)):
        error_boundary.never_raises("place")(alarm)()
    assert error_boundary.counts() == {}


def test_a_time_out_passes_an_extractor(recorded, swallow, alarm):
    """A time-out while an extractor of the user runs ends the call, as it would without us; the span says so."""
    work = verl_otel.span("work", extract=lambda *_: alarm())(lambda: 5)
    with pytest.raises((TooLongError, TimeoutError)):
        work()
    assert recorded.span("work").attributes["error.type"]


def test_an_extractor_that_fails_costs_attributes_only(recorded, swallow):
    """What the extractor itself raises is swallowed."""
    assert verl_otel.span("work", extract=lambda *_: 1 / 0)(lambda: 5)() == 5
    assert "error.type" not in recorded.span("work").attributes


def test_a_time_out_passes_although_our_code_calls_the_handler(swallow):
    """A handler that is called by one of ours, as at SIGTERM, raises out of it."""
    with pytest.raises(TooLongError), error_boundary.suppress_errors("place"):
        CallSite("span").read(type("Stub", (), {"start": 1.0, "host": None})(), {}, None) or handle(14, sys._getframe())


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError(), TimeoutError("x"), TooLongError(), queue.Empty()])
def test_what_our_code_or_a_library_raises_is_swallowed(swallow, error):
    """An exception that was raised by code that we called is a failure of ours, whatever its type."""

    def fail(depth=3):
        if depth:
            fail(depth - 1)
        raise error

    with error_boundary.suppress_errors("place"):
        fail()
    assert error_boundary.counts() == {"place": 1}


def test_what_a_c_function_raises_is_swallowed(swallow):
    """Exceptions without a frame and without arguments that a C function of the standard library raises are failures."""
    for fail in (queue.SimpleQueue().get_nowait, iter(()).__next__, lambda: {}[1]):
        with error_boundary.suppress_errors("place"):
            fail()
    assert error_boundary.counts() == {"place": 3}


def test_an_exception_without_a_traceback_is_ours():
    """Nothing that was never raised is let through."""
    assert not is_foreign(TooLongError())


def test_a_guard_inside_of_a_handler_swallows(swallow):
    """A failure of ours inside of a user's handler is swallowed there: the handler goes on."""
    went_on = []

    def handle(number, frame):
        with error_boundary.suppress_errors("place"):
            raise ValueError("ours")
        went_on.append(number)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert went_on == [signal.SIGALRM]
    assert error_boundary.counts() == {"place": 1}


@pytest.mark.full
@pytest.mark.parametrize("kind", [TooLongError, TimeoutError])
def test_an_exception_set_by_another_thread_passes(swallow, kind):
    """What another thread sets while our code runs (a time-out without signals) passes the guard."""
    inside, outcome = threading.Event(), []

    def work():
        try:
            _drain_for_a_while(inside)
            outcome.append("swallowed")
        except kind:
            outcome.append("passed")

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))
    thread.join(10)
    assert outcome == ["passed"]


def _drain_for_a_while(inside):
    """Run a guarded loop of ours until it is interrupted, or for ten seconds."""
    source = "def loop(inside, clock, until):\n    inside.set()\n    while clock() < until:\n        pass\n"
    namespace = {}
    exec(compile(source, "<verl_otel loop>", "exec"), namespace)
    error_boundary.never_raises("place")(namespace["loop"])(inside, time.monotonic, time.monotonic() + 10)
