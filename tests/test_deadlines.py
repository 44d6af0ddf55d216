# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Deadlines of the tests have room for a busy machine, except where a test asserts an upper bound."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def clock(wait_for, monkeypatch):
    """A clock for ``wait_for`` that only its pauses move."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setitem(wait_for.__globals__, "time", clock)
    return clock


@pytest.mark.parametrize(("seconds", "takes"), [(2, 50), (20, 50), (60, 170), (0, 59)])
def test_a_condition_has_room(wait_for, clock, seconds, takes):
    """What takes 20 s on an idle machine may take a minute on a busy one, and nothing has less than a minute."""
    wait_for(lambda: clock.now >= takes, seconds, 0.5)
    assert clock.now == pytest.approx(takes, abs=1)


def test_a_condition_that_never_holds_fails_with_its_last_value(wait_for, clock):
    """After the deadline, with what it was."""
    with pytest.raises(pytest.fail.Exception, match=r"not within 90 s: .* is 0"):
        wait_for(lambda: 0, 30, 0.5)


def test_an_upper_bound_is_kept_to_the_letter(wait_for, clock):
    """A test that says that something happens within 2 s gets no room."""
    with pytest.raises(pytest.fail.Exception, match="not within 2 s"):
        wait_for(lambda: clock.now > 3, interval=0.5, at_most=2)
