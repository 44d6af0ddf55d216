# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that hang: waited for only so long together, not repeated, few at a time."""

import threading
import time
from functools import partial

import pytest

from verl_otel.integrations.gpu.call_timeout import MAX_THREADS, CallTimeout
from verl_otel.integrations.gpu.device import Unreadable


@pytest.fixture
def gate():
    """What a hung call waits for; opened at the end."""
    event = threading.Event()
    yield event
    event.set()


def running():
    return [thread for thread in threading.enumerate() if thread.name == "verl-otel-gpu"]


def test_an_answer_is_passed_on():
    """The result, or the error, is that of the function, and no thread is left."""
    patience = CallTimeout(5)
    assert patience.call("a", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        patience.call("a", lambda: 1 / 0)
    assert not patience.is_stuck
    assert not running()


def test_a_call_that_hangs_is_left_alone_and_not_repeated(gate):
    """It costs its time once; what it asks for is not asked for again before it has returned; others are."""
    patience = CallTimeout(0.05)
    asked = []

    def hang():
        asked.append(1)
        gate.wait()

    for _ in range(3):
        with pytest.raises(Unreadable, match="timeout"):
            patience.call("a", hang)
    assert asked == [1]
    assert patience.call("b", lambda: 7) == 7


def test_it_is_asked_again_after_it_has_returned(gate, wait_for):
    """A device that thaws is read again."""
    patience = CallTimeout(0.05)
    with pytest.raises(Unreadable):
        patience.call("a", gate.wait)
    gate.set()
    wait_for(lambda: not patience.is_stuck)
    assert patience.call("a", lambda: 7) == 7


def test_few_threads_hang_at_a_time(gate):
    """However many devices hang, no more threads than a few do."""
    patience = CallTimeout(0.02)
    before = len(running())
    for number in range(3 * MAX_THREADS):
        with pytest.raises(Unreadable):
            patience.call(str(number), gate.wait)
    assert len(running()) - before == MAX_THREADS


def test_all_are_asked_at_the_same_time():
    """Each waits until all are asked: one after the other would never end."""
    meeting = threading.Barrier(8)
    answers = CallTimeout(10).call_all({str(number): meeting.wait for number in range(8)})
    assert sorted(answers.values()) == list(range(8))


def test_all_have_one_time_together(gate):
    """Eight that hang cost a collection what one costs; those that answer have answered."""
    patience = CallTimeout(0.5)
    begin = time.monotonic()
    answers = patience.call_all({"quick": lambda: 7} | {str(number): gate.wait for number in range(8)})
    assert time.monotonic() - begin < 8 * 0.5
    assert answers.pop("quick") == 7
    assert {str(answer) for answer in answers.values()} == {"timeout"}


def test_more_than_there_are_threads_are_all_asked():
    """Whoever has an answer takes the next question."""
    answers = CallTimeout(10).call_all({str(number): partial(int, number) for number in range(5 * MAX_THREADS)})
    assert list(answers.values()) == list(range(5 * MAX_THREADS))


def test_what_comes_late_is_the_next_answer(gate, wait_for):
    """A device that takes longer than a collection waits is a collection behind and not unreadable; a newer answer is preferred."""
    patience = CallTimeout(0.05)

    def answer_late():
        gate.wait()
        return "late"

    assert str(patience.call_all({"a": answer_late})["a"]) == "timeout"
    gate.set()
    wait_for(lambda: not patience.is_stuck)
    other = threading.Event()
    try:
        assert patience.call_all({"a": other.wait}) == {"a": "late"}
    finally:
        other.set()
    wait_for(lambda: not patience.is_stuck)
    assert patience.call_all({"a": lambda: "new"}) == {"a": "new"}


def test_what_was_not_begun_is_not_asked_after_the_end(gate, wait_for):
    """Whoever is renewed asks no driver any more that was let go, and the new one is not stuck."""
    patience, asked = CallTimeout(0.02), []
    patience.call_all({str(number): gate.wait for number in range(MAX_THREADS)})
    patience.call_all({"more": lambda: asked.append(1)})
    assert not patience.renew().is_stuck
    gate.set()
    wait_for(lambda: not running())
    assert not asked
