# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang: waited for only so long."""

import threading

import pytest

from verl_otel._internal.call_timeout import call_for

NAME = "verl-otel-test"
PATIENCE = 60.0
"""Seconds for a call that must answer."""


def test_an_answer_is_passed_on():
    """The result, or the error, is that of the function, and no thread is left."""
    assert call_for(PATIENCE, NAME, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_for(PATIENCE, NAME, lambda: 1 / 0)
    assert NAME not in [thread.name for thread in threading.enumerate()]


def test_a_call_that_hangs_is_left_alone():
    """The caller goes on; what the call returns later is dropped."""
    gate = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="timeout"):
            call_for(0.05, NAME, gate.wait)
    finally:
        gate.set()


def test_without_a_thread_it_is_a_time_out(monkeypatch):
    """Where no thread can be started, as at the end of CPython 3.12.1, the caller goes on at once."""

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(TimeoutError, match="new thread"):
        call_for(PATIENCE, NAME, lambda: 7)
