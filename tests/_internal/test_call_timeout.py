# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that hang: waited for only so long together, not repeated, few at a time."""

import threading
import time
from functools import partial

import pytest

from verl_otel._internal.call_timeout import MAX_THREADS, CallTimeout, NoThreadError

pytestmark = pytest.mark.full

NAME = "verl-otel-test"
PATIENCE = 60.0
"""Seconds for a call that must answer."""


@pytest.fixture
def gate():
    """What a hung call waits for; opened at the end."""
    event = threading.Event()
    yield event
    event.set()


def running():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_an_answer_is_passed_on():
    """The result, or the error, is that of the function, and no thread is left."""
    calls = CallTimeout(5, NAME)
    assert calls.call("a", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls.call("a", lambda: 1 / 0)
    assert not calls.is_stuck
    assert not running()


def test_a_call_that_hangs_is_left_alone_and_not_repeated(gate, wait_for):
    """It costs its time once; what it asks for is not asked for again before it has returned; others are."""
    calls = CallTimeout(0.05, NAME)
    asked = []

    def hang():
        asked.append(1)
        gate.wait()

    for _ in range(3):
        with pytest.raises(TimeoutError, match="timeout"):
            calls.call("a", hang)
    wait_for(lambda: asked)
    assert asked == [1]
    calls._seconds = PATIENCE
    assert calls.call("b", lambda: 7) == 7


def test_it_is_asked_again_after_it_has_returned(gate, wait_for):
    """A device that thaws is read again."""
    calls = CallTimeout(0.05, NAME)
    with pytest.raises(TimeoutError):
        calls.call("a", gate.wait)
    gate.set()
    wait_for(lambda: not calls.is_stuck)
    calls._seconds = PATIENCE
    assert calls.call("a", lambda: 7) == 7


def test_few_threads_hang_at_a_time(gate, wait_for):
    """However many devices hang, no more threads than a few do."""
    wait_for(lambda: not running())
    calls = CallTimeout(0.02, NAME)
    for number in range(3 * MAX_THREADS):
        with pytest.raises(TimeoutError):
            calls.call(str(number), gate.wait)
    assert len(running()) == MAX_THREADS


def test_all_are_asked_at_the_same_time():
    """Each waits until all are asked: one after the other would never end."""
    meeting = threading.Barrier(8)
    answers = CallTimeout(10, NAME).call_all({str(number): meeting.wait for number in range(8)})
    assert sorted(answers.values()) == list(range(8))


def test_all_have_one_time_together(gate):
    """Eight that hang cost a collection what one costs; those that answer have answered."""
    calls = CallTimeout(0.5, NAME)
    begin = time.monotonic()
    answers = calls.call_all({"quick": lambda: 7} | {str(number): gate.wait for number in range(8)})
    assert time.monotonic() - begin < 8 * 0.5
    assert answers.pop("quick") == 7
    assert {str(answer) for answer in answers.values()} == {"timeout"}


def test_more_than_there_are_threads_are_all_asked():
    """A thread whose call has returned takes the next call."""
    answers = CallTimeout(10, NAME).call_all({str(number): partial(int, number) for number in range(5 * MAX_THREADS)})
    assert list(answers.values()) == list(range(5 * MAX_THREADS))


def test_what_comes_late_is_the_next_answer(gate, wait_for):
    """A device that takes longer than a collection waits is a collection behind and not unreadable; a newer answer is preferred."""
    calls = CallTimeout(0.05, NAME)

    def answer_late():
        gate.wait()
        return "late"

    assert str(calls.call_all({"a": answer_late})["a"]) == "timeout"
    gate.set()
    wait_for(lambda: not calls.is_stuck)
    other = threading.Event()
    try:
        assert calls.call_all({"a": other.wait}) == {"a": "late"}
    finally:
        other.set()
    wait_for(lambda: not calls.is_stuck)
    calls._seconds = PATIENCE
    assert calls.call_all({"a": lambda: "new"}) == {"a": "new"}


def test_what_was_not_begun_is_not_asked_after_the_end(gate, wait_for):
    """Waiting calls of an instance that was renewed are not made, and the new instance is not stuck."""
    calls, asked = CallTimeout(0.02, NAME), []
    calls.call_all({str(number): gate.wait for number in range(MAX_THREADS)})
    calls.call_all({"more": lambda: asked.append(1)})
    assert not calls.renew().is_stuck
    gate.set()
    wait_for(lambda: not running())
    assert not asked


def test_without_a_thread_it_says_so_and_asks_again_later(monkeypatch):
    """Where no thread can be started, as at the end of CPython 3.12.1, a call is answered at once and is not taken for one that hangs."""

    def start(self):
        raise RuntimeError("can't start new thread")

    calls = CallTimeout(PATIENCE, NAME)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        with pytest.raises(NoThreadError):
            calls.call("a", lambda: 7)
    assert not calls.is_stuck
    assert calls.call("a", lambda: 7) == 7
