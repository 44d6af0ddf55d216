# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import enum
import errno
import http
import math
from decimal import Decimal
from pathlib import PurePosixPath
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.recording.attribute_values import (
    MAX_ITEMS,
    MAX_NAME,
    MAX_SEQUENCE,
    MAX_TEXT,
    coerce_attribute,
    error_name,
    first,
    to_name,
    to_number,
    to_text,
)


class Color(str, enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        ("x" * (MAX_TEXT + 1), "x" * MAX_TEXT),
        (True, True),
        (7, 7),
        (1.5, 1.5),
        (np.float32(1.5), 1.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.str_("text"), "text"),
        (Color.RED, "red"),
        (http.HTTPStatus.OK, 200),
        ([http.HTTPStatus.OK, 201], (200, 201)),
        (Decimal("1.5"), 1.5),
        ([1, 2], (1, 2)),
        ((1, 2.5), (1.0, 2.5)),
        (["a", "b"], ("a", "b")),
        ([True, 1], ("True", "1")),
        ([1, "a"], ("1", "a")),
        ([[1], [2]], ("(1,)", "(2,)")),
        ([], ()),
        (list(range(1000)), tuple(range(MAX_ITEMS))),
        (PurePosixPath("/a/b"), "/a/b"),
        (None, "None"),
        (b"bytes", "<bytes len=5>"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_values_become_what_opentelemetry_may_hold(value, expected):
    """Plain values stay, numbers of numpy become numbers, sequences tuples of one kind, everything else bounded text."""
    made = coerce_attribute(value)
    assert made == expected
    assert type(made) is type(expected)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ANYTHING = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner))


@pytest.mark.full
@given(ANYTHING)
@settings(deadline=None, max_examples=80, database=None)
def test_whatever_comes_out_is_valid(value):
    """The result is a text, a bool, a number, or a tuple of one kind of these; cleaning it again changes nothing."""
    made = coerce_attribute(value)
    items = made if isinstance(made, tuple) else (made,)
    assert len({type(item) for item in items}) <= 1
    assert all(type(item) in (str, bool, int, float) for item in items)
    assert coerce_attribute(made) == made or made != made or any(item != item for item in items)


def test_a_nested_sequence_is_bounded():
    """A list of lists of long texts becomes at most as many characters as a list of long texts."""
    made = coerce_attribute([["x" * MAX_TEXT] * MAX_ITEMS] * 3)
    assert all(len(item) <= MAX_TEXT for item in made)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (True, True),
        (http.HTTPStatus.OK, 200),
        (np.float64(0.5), 0.5),
        (np.array(3), 3),
        (Decimal("0.5"), 0.5),
        (SimpleNamespace(item=lambda: 4), None),
        (SimpleNamespace(is_cpu=False, item=lambda: 1 / 0), None),
        (SimpleNamespace(item=lambda: "text"), None),
        (2**63 - 1, 2**63 - 1),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (np.uint64(2**64 - 1), float(2**64)),
        (np.array([1, 2]), None),
        ("5", None),
        (b"5", None),
        (None, None),
        ([1], None),
        (object(), None),
    ],
)
def test_numbers_are_recognised(value, expected):
    """What is a number becomes one; text and collections do not, and nothing is read from a device."""
    assert to_number(value) == expected


def test_not_a_number_is_a_number():
    """NaN passes: a loss that is NaN must be seen."""
    assert math.isnan(to_number(math.nan))
    assert math.isnan(coerce_attribute(np.float32("nan")))


def test_text_is_bounded():
    """Text of any value is cut."""
    assert len(to_text("x" * 10_000)) == MAX_TEXT
    assert len(to_text(["x" * 10_000] * 1000)) == MAX_TEXT
    assert sum(map(len, coerce_attribute(["x" * 10_000] * 100))) == MAX_SEQUENCE
    assert len(to_name("x" * 10_000)) == MAX_NAME


@pytest.mark.parametrize(
    ("error", "name"), [(ValueError(), "ValueError"), (np.linalg.LinAlgError(), "numpy.linalg.LinAlgError")]
)
def test_an_exception_is_named_by_its_qualified_class(error, name):
    """Builtin exceptions are named without a module, others with theirs."""
    assert error_name(error) == name


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_an_error_of_the_system_is_named_by_its_code(number):
    """A full disk, too many open files and a broken disk have no class of their own, as other errors of the system have."""
    assert error_name(OSError(number, "full")) == f"OSError.{errno.errorcode[number]}"
    assert error_name(OSError("broken")) == "OSError"
    assert error_name(PermissionError(errno.EACCES, "no")) == "PermissionError"


class BaseExceptionGroup(Exception):  # noqa: N818 - the name of Python 3.11
    """As in Python 3.11, and in its backport."""

    def __init__(self, *exceptions):
        super().__init__("unhandled errors in a TaskGroup")
        self.exceptions = exceptions


def test_a_group_of_exceptions_is_named_by_the_first_one():
    """Also one inside of another: "ExceptionGroup" does not say why a task group failed. One that contains itself has an end."""
    assert error_name(BaseExceptionGroup(BaseExceptionGroup(KeyError(), ValueError()))) == "KeyError"
    endless = BaseExceptionGroup()
    endless.exceptions = (endless,)
    assert error_name(endless).endswith("BaseExceptionGroup")


def test_an_exception_of_another_process_is_named_by_its_own_type():
    """Ray raises one of a class of its own, whose name is no identifier."""
    exceptions = pytest.importorskip("ray.exceptions", reason="Ray is not installed in this environment")
    remote = exceptions.RayTaskError(
        "update", "", np.linalg.LinAlgError("x"), proctitle="worker", pid=1, ip="127.0.0.1"
    )
    assert error_name(remote) == error_name(remote.as_instanceof_cause()) == "numpy.linalg.LinAlgError"
    assert error_name(exceptions.RayActorError()) == "ray.exceptions.RayActorError"


def test_first_takes_the_first_that_is_there():
    """The first name with a value that is not None counts; 0 and empty values are values."""
    assert first({"a": None, "b": 0, "c": 1}, "a", "b", "c") == 0
    assert first({}, "a") is None
