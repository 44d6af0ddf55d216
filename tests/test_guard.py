# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import inspect

import pytest

from verl_otel import _guard


def fail():
    raise ValueError("broken")


def test_a_failure_of_ours_is_swallowed_counted_and_said_once(swallow, caplog):
    """In the field our own failures leave no exception behind: one line for each place, and a count."""
    for _ in range(3):
        with _guard.swallowed("place"):
            fail()
    with _guard.swallowed("other place"):
        fail()
    assert _guard.counts() == {"place": 3, "other place": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "place failed and was skipped: ValueError: broken" in caplog.text


def test_under_pytest_a_failure_of_ours_is_raised():
    """Under pytest our failures are raised, so that they are seen; they are counted as well."""
    with pytest.raises(ValueError, match="broken"), _guard.swallowed("place"):
        fail()
    assert _guard.counts() == {"place": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_ordinary_exception_passes(swallow, error):
    """An interrupt or an exit passes through, and is not counted as a failure of ours."""

    def leave():
        raise error

    with pytest.raises(error), _guard.swallowed("place"):
        leave()
    with pytest.raises(error):
        _guard.guarded("place")(leave)()
    assert _guard.counts() == {}


def test_a_guarded_function_returns_none_when_it_fails(swallow):
    """A guarded function hands on its result; when it fails it returns None."""

    @_guard.guarded("place")
    def divide(a, b=1):
        """Divide."""
        return a / b

    assert divide(6, b=3) == 2
    assert divide(1, 0) is None
    assert _guard.counts() == {"place": 1}
    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    assert str(inspect.signature(divide)) == "(a, b=1)"


def test_nothing_happens_when_nothing_fails(caplog):
    """Code that works is not counted and not logged."""
    with _guard.swallowed("place"):
        pass
    assert _guard.counts() == {}
    assert not caplog.records


def test_a_line_is_said_once_per_key(caplog):
    """A line is logged once for each key, until everything is forgotten."""
    for key in ("a", "b", "a"):
        _guard.say(key, "said %s", key)
    assert [record.getMessage() for record in caplog.records] == ["said a", "said b"]
    _guard.reset()
    _guard.say("a", "said again")
    assert caplog.records[-1].getMessage() == "said again"


def test_the_counts_are_a_copy():
    """Changing the counts that were handed out changes nothing."""
    _guard.counts()["place"] = 5
    assert _guard.counts() == {}
