# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import datetime as dt
import enum
import re
import uuid
from pathlib import PurePosixPath

import numpy as np
import pytest

import verl_otel
from verl_otel.recording.attribute_values import coerce_attribute, to_message, to_number, to_text


class Recorder:
    """Writes down every use of itself that reads what it holds."""

    shape, dtype, device, is_cpu = (2, 3), "float32", "cuda:0", False

    def __init__(self):
        self.calls = []

    def _note(name):  # noqa: N805 - makes the methods
        def method(self, *args):
            self.calls.append(name)
            raise RuntimeError(name)

        return method

    for _name in [
        "__str__",
        "__repr__",
        "__float__",
        "__int__",
        "__index__",
        "__bool__",
        "__len__",
        "__iter__",
        "__array__",
        "__getattr__",
        "__format__",
        "__getitem__",
        "__contains__",
        "__eq__",
        "item",
        "tolist",
        "numpy",
        "cpu",
        "detach",
    ]:
        locals()[_name] = _note(_name)
    __hash__ = object.__hash__


PLACES = {
    "itself": lambda thing: thing,
    "in a list": lambda thing: [thing, thing],
    "in a nested list": lambda thing: [[thing], (thing,)],
    "in a dictionary": lambda thing: {"batch": thing, thing: 1},
    "in a nested dictionary": lambda thing: {"outer": {"inner": thing}},
}


@pytest.mark.parametrize("place", PLACES)
def test_an_array_is_never_read(recorded, place):
    """Wherever a tensor is recorded, none of its methods is called, and what is recorded is text."""
    thing = Recorder()
    made = PLACES[place](thing)
    with verl_otel.span("work", attributes={"first": made}) as span:
        span.set_attribute("second", made)
        span.add_event("event", {"third": made})
        span.record_exception(ValueError(made))
        span.update_name(made)
    verl_otel.histogram("test.description").record(thing, label=made)
    assert to_number(thing) is None
    assert thing.calls == []
    assert isinstance(coerce_attribute(made), (str, tuple))


def test_an_array_is_described_by_type_shape_type_of_items_and_device():
    """Numpy arrays and objects with the attributes of a tensor are described by them."""
    assert re.fullmatch(
        r"<ndarray shape=\(2, 3\) dtype=float32( device=cpu)?>", coerce_attribute(np.zeros((2, 3), np.float32))
    )
    assert coerce_attribute(Recorder()) == "<Recorder shape=(2, 3) dtype=float32 device=cuda:0>"
    first, second = coerce_attribute([np.zeros(2), np.zeros(3)])
    assert first.startswith("<ndarray shape=(2) dtype=float64")
    assert second.startswith("<ndarray shape=(3) dtype=float64")


def test_tensors_of_torch_are_described():
    """A CPU tensor of one element is a number, any other tensor its shape, dtype and device."""
    torch = pytest.importorskip("torch")
    assert coerce_attribute(torch.tensor(2.5)) == 2.5
    assert coerce_attribute(torch.tensor([7])) == 7
    assert coerce_attribute([torch.tensor(1), torch.tensor(2)]) == (1, 2)
    assert coerce_attribute(torch.zeros(2, 3)) == "<Tensor shape=(2, 3) dtype=torch.float32 device=cpu>"
    assert coerce_attribute(torch.zeros((), device="meta")) == "<Tensor shape=() dtype=torch.float32 device=meta>"
    assert (
        coerce_attribute(torch.nn.Parameter(torch.zeros(4))) == "<Parameter shape=(4) dtype=torch.float32 device=cpu>"
    )
    assert to_number(torch.zeros((), device="meta")) is None


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.timedelta(seconds=1), "0:00:01"),
        (PurePosixPath("/a"), "/a"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Color.RED, "Color.RED"),
        ({"a": 1, "b": "x", "c": [1, 2]}, "{'a': 1, 'b': 'x', 'c': <list len=2>}"),
        ({1, 2}, "<set len=2>"),
        (bytearray(3), "<bytearray len=3>"),
        (object(), "<object>"),
        ("", ""),
    ],
)
def test_short_values_are_text_and_other_objects_their_type(value, text):
    """Enums, dates, paths and identifiers are recorded by their value, dictionaries with theirs, other objects by type and size."""
    assert to_text(value) == text


def test_a_message_holds_no_array():
    """The message of an exception is its own text; one that was raised with an array is the description of that."""
    assert to_message(KeyError("a")) == "'a'"
    assert to_message(FileNotFoundError(2, "No such file")) == "[Errno 2] No such file"
    assert to_message(ValueError(np.zeros(3))).startswith("<ndarray shape=(3) dtype=float64")
    assert to_message(ValueError("shape", {1, 2})) == "('shape', <set len=2>)"
