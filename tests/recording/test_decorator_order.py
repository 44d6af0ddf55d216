# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Above and below the decorators of others: each row of the table in the guide, called once, is one span with the value as before."""

import abc
import functools
import re
from pathlib import Path

import pytest

import verl_otel

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "instrument-code.md"
BOTH, BELOW, NEVER = ("yes", "yes"), ("TypeError", "yes"), ("TypeError", "TypeError")


def call_method(*decorators):
    """A method with these decorators, the outer one first."""

    class Owner:
        def get(self):
            return 7

        for decorate in reversed(decorators):
            get = decorate(get)

    return Owner


def use_method(other, *places):
    return call_method(*places)().get()


def use_attribute(other, *places):
    return call_method(*places)().get


def use_function(other, *places):
    def get():
        return 7

    for decorate in reversed(places):
        get = decorate(get)
    return get()


def use_class_method(other, *places):
    class Owner:
        def get(*_):
            return 7

        for decorate in reversed(places):
            get = decorate(get)

    return Owner.get()


def use_abstract(other, *places):
    base = call_method(*places)
    assert base.get.__isabstractmethod__
    return base().get()


def use_torch(other, *places):
    pytest.importorskip("torch")
    return use_method(other, *places)


def no_grad(function):
    return pytest.importorskip("torch").no_grad()(function)


def ray_method(function):
    return pytest.importorskip("ray").method(num_returns=2)(function)


def ray_remote(thing):
    return pytest.importorskip("ray").remote(thing)


def verl_register(function):
    module = pytest.importorskip("verl.single_controller.base.decorator")
    return module.register(dispatch_mode=module.Dispatch.ONE_TO_ALL)(function)


def use_ray_method(other, *places):
    """Ray reads how many results a method has from an attribute of the function."""
    owner = call_method(*places)
    assert owner.get.__ray_num_returns__ == 2
    return owner().get()


def use_register(other, *places):
    """How to dispatch a method is read from an attribute of the function."""
    owner = call_method(*places)
    module = pytest.importorskip("verl.single_controller.base.decorator")
    assert getattr(owner.get, module.MAGIC_ATTR)["dispatch_mode"] == module.Dispatch.ONE_TO_ALL
    return owner().get()


def use_remote_function(other, *places):
    """What Ray sends to a worker is the function below ``@ray.remote``."""

    def get():
        return 7

    for decorate in reversed(places):
        get = decorate(get)
    return get._function()


ROWS = {
    "@property": (property, use_attribute, BOTH),
    "@functools.cached_property": (functools.cached_property, use_attribute, BELOW),
    "@staticmethod": (staticmethod, use_class_method, BOTH),
    "@classmethod": (classmethod, use_class_method, BOTH),
    "@functools.lru_cache": (functools.lru_cache, use_function, BOTH),
    "@abc.abstractmethod": (abc.abstractmethod, use_abstract, BOTH),
    "@torch.no_grad()": (no_grad, use_torch, BOTH),
    "@ray.method": (ray_method, use_ray_method, BOTH),
    "@register of verl": (verl_register, use_register, BOTH),
    "@ray.remote on a function": (ray_remote, use_remote_function, BELOW),
}
"""By the name of another decorator: it, how to call what it decorates, and whether ours works above and below it."""


@pytest.mark.parametrize("place", ["above", "below"])
@pytest.mark.parametrize("row", ROWS)
def test_a_decorator_works_where_the_table_says(recorded, row, place):
    """One span, and the value that the function returns; where it cannot work, `TypeError` says what to write instead."""
    other, use, works = ROWS[row]
    places = (verl_otel.span, other) if place == "above" else (other, verl_otel.span)
    if works[place == "below"] == "TypeError":
        with pytest.raises(
            TypeError, match=r"write @ray\.remote above|decorate the function inside, below the other decorator"
        ):
            use(other, *places)
        return
    assert use(other, *places) == 7
    assert len(recorded.spans) == 1


@pytest.mark.parametrize("decorate", [verl_otel.tool, verl_otel.tool("x"), verl_otel.update("actor"), verl_otel.timed])
def test_a_class_and_an_actor_class_are_refused(decorate):
    """The message names the methods as what to decorate, or the order."""

    class Agent:
        pass

    with pytest.raises(TypeError, match="decorate its methods"):
        decorate(Agent)
    with pytest.raises(
        TypeError, match=r"write @ray\.remote above, and this decorator directly at the function or method"
    ):
        decorate(ray_remote(Agent))


def test_the_guide_has_each_row():
    """The table in the guide says what is tested here."""
    table = GUIDE.read_text("utf-8").partition("## Order of decorators")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(@[\w.()]+)`([^|]*) \| (\w+|`\w+`) \| (\w+|`\w+`) \|$", table, re.MULTILINE)
    documented = {f"{name}{rest}": (above.strip("`"), below.strip("`")) for name, rest, above, below in rows}
    assert documented == {**{row: works for row, (_, _, works) in ROWS.items()}, "@ray.remote on a class": NEVER}
