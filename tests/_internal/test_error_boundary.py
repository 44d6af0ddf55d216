# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import inspect

import pytest

from verl_otel._internal import error_boundary

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


def test_nothing_happens_when_nothing_fails(caplog):
    """Code that works is not counted and not logged."""
    with error_boundary.suppress_errors("place"):
        pass
    assert error_boundary.counts() == {}
    assert not caplog.records


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
