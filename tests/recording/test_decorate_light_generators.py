# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Generators where there is nothing to do by the item: off, or only timed. And what a decorated one holds: nothing."""

import gc
import weakref

import pytest

import verl_otel


def produce():
    yield 1
    yield 2
    return 3


def is_handed_on(generator):
    """Whether CPython itself hands the items of the user's generator on."""
    assert next(generator) == 1
    return getattr(generator.gi_yieldfrom, "gi_code", None) is produce.__code__


@pytest.mark.parametrize("verb", [verl_otel.span("g"), verl_otel.timed("light.off")])
def test_off_an_item_costs_nothing(verb):
    """With recording off no code of ours runs between two items."""
    assert is_handed_on(verb(produce)())


def test_an_item_of_a_timed_generator_costs_nothing(recorded):
    """A timed generator is measured at its beginning and its end; no code of ours runs between two items."""
    assert is_handed_on(verl_otel.timed("light.on")(produce)())


def test_a_timed_generator_is_measured_once(recorded):
    """A timed generator makes one measurement of its whole life, in the series of its outcome; one that is left has not failed."""

    @verl_otel.timed("lives")
    def live(fail):
        yield 1
        if fail:
            raise ValueError
        return 2

    list(live(fail=False))
    with pytest.raises(ValueError):
        list(live(fail=True))
    left = live(fail=False)
    next(left)
    left.close()
    found = {point.labels: point.value.samples for point in recorded.points}
    assert found == {(): 2, (("error.type", "ValueError"),): 1}


class Item:
    """Something large."""


@pytest.mark.full
def test_a_generator_does_not_hold_its_items(recorded):
    """An item that the consumer has let go of is freed while the generator waits to be resumed."""

    @verl_otel.span("g")
    def make():
        yield Item()
        yield Item()

    generator = make()
    for _ in range(2):
        item = weakref.ref(next(generator))
        gc.collect()
        assert item() is None
    assert list(generator) == []


@pytest.mark.full
async def test_an_async_generator_does_not_hold_its_items(recorded):
    """The same holds for async generators."""

    @verl_otel.span("g")
    async def make():
        yield Item()

    generator = make()
    item = weakref.ref(await anext(generator))
    gc.collect()
    assert item() is None
    assert [each async for each in generator] == []
