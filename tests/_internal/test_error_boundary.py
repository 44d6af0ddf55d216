# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a guard swallows, and what it lets pass: exceptions of signal handlers and trace functions."""

import functools
import inspect
import queue
import signal
import sys

import pytest

import verl_otel
from verl_otel._internal import error_boundary
from verl_otel.recording.callsite import CallSite

USERS_TEST = """
import os

from verl_otel._internal import error_boundary


def test_something():
    assert "PYTEST_CURRENT_TEST" in os.environ
    with error_boundary.suppress_errors("place"):
        raise ValueError("broken")
    assert error_boundary.counts() == {"place": 1}
"""


def fail():
    raise ValueError("broken")


def test_a_failure_of_ours_is_swallowed_counted_and_said_once(swallow, caplog):
    """In the field our own failures leave no exception behind: one line for each place, and a count."""
    for _ in range(3):
        with error_boundary.suppress_errors("place"):
            fail()
    with error_boundary.suppress_errors("other place"):
        fail()
    assert error_boundary.counts() == {"place": 3, "other place": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "place failed and was skipped: ValueError: broken" in caplog.text


@pytest.mark.full
def test_in_the_tests_of_a_user_a_failure_of_ours_is_swallowed(clean_python, tmp_path):
    """Under somebody else's pytest our failures are swallowed as everywhere: they are not what is tested there."""
    (tmp_path / "test_of_a_user.py").write_text(USERS_TEST)
    clean_python("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_of_a_user.py")


def test_our_own_tests_raise_a_failure_of_ours():
    """With the switch of our own tests a failure of ours is raised, so that it is seen; it is counted as well."""
    with pytest.raises(ValueError, match="broken"), error_boundary.suppress_errors("place"):
        fail()
    assert error_boundary.counts() == {"place": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_ordinary_exception_passes(swallow, error):
    """An interrupt or an exit passes through, and is not counted as a failure of ours."""

    def leave():
        raise error

    with pytest.raises(error), error_boundary.suppress_errors("place"):
        leave()
    with pytest.raises(error):
        error_boundary.never_raises("place")(leave)()
    assert error_boundary.counts() == {}


def test_a_guarded_function_returns_none_when_it_fails(swallow):
    """A guarded function hands on its result; when it fails it returns None."""

    @error_boundary.never_raises("place")
    def divide(a, b=1):
        """Divide."""
        return a / b

    assert divide(6, b=3) == 2
    assert divide(1, 0) is None
    assert error_boundary.counts() == {"place": 1}
    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    assert str(inspect.signature(divide)) == "(a, b=1)"


def test_a_line_is_said_once_per_key(caplog):
    """A line is logged once for each key, until everything is forgotten."""
    for key in ("a", "b", "a"):
        error_boundary.warn_once(key, "said %s", key)
    assert [record.getMessage() for record in caplog.records] == ["said a", "said b"]
    error_boundary.reset()
    error_boundary.warn_once("a", "said again")
    assert caplog.records[-1].getMessage() == "said again"


def test_the_counts_are_a_copy():
    """Changing the counts that were handed out changes nothing."""
    error_boundary.counts()["place"] = 5
    assert error_boundary.counts() == {}


# -- exceptions of code that interrupted ours --


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


def test_a_time_out_passes_although_our_code_calls_the_handler(swallow):
    """A handler that is called by code of ours raises out of it."""
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
