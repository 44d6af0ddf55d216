# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import itertools
import sys
import threading

import opentelemetry.context
import pytest
from opentelemetry import baggage

import verl_otel
from verl_otel.recording import collection


def enter(name):
    """Enter a block, and return the function that leaves it."""
    block = verl_otel.span(name)
    block.__enter__()
    return lambda: block.__exit__(None, None, None)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_may_be_left_in_any_order(both_paths, is_outside, order):
    """Left in whatever order, also again, three blocks are recorded once each, with the parents that they began with; what follows is outside."""
    leave = [enter(f"s{number}") for number in range(3)]
    for number in (*order, order[0]):
        leave[number]()
    assert is_outside()
    enter("next")()
    spans = {span.name: span for span in both_paths.spans}
    assert len(spans) == len(both_paths.spans) == 4
    assert spans["next"].parent_id == 0
    assert spans["s0"].parent_id == 0
    assert spans["s1"].parent_id == spans["s0"].span_id
    assert spans["s2"].parent_id == spans["s1"].span_id


def test_what_comes_after_a_wrong_order_in_a_step_is_a_child_of_the_step(recorded):
    """Two blocks in a step that were left in the wrong order do not hide the step."""
    with verl_otel.step(1):
        first, second = enter("first"), enter("second")
        first()
        second()
        enter("next")()
    assert recorded.span("next").parent_id == recorded.span("verl.step").span_id


@pytest.mark.full
def test_10_000_overlapping_blocks_are_not_held(recorded, alive_spans):
    """Of blocks each of which begins before the one before it ends, those that were drained are not held, and what follows is outside."""
    leave = enter("s")
    for number in range(10_000):
        leave_next = enter("s")
        leave()
        leave = leave_next
        if number % 100 == 0:
            collection.collect()
    held = alive_spans()
    leave()
    assert held < 300
    enter("next")()
    assert recorded.span("next").parent_id == 0


@pytest.mark.full
def test_a_context_that_was_never_detached_does_not_make_later_spans_children(recorded, alive_spans):
    """Attaching baggage inside a block and forgetting to detach it neither nests later spans nor holds old ones."""
    before = alive_spans()
    for number in range(1000):
        with verl_otel.span("s"):
            opentelemetry.context.attach(baggage.set_baggage("number", str(number)))
    assert {span.parent_id for span in recorded.spans} == {0}
    assert alive_spans() - before < 10


def test_a_block_left_in_a_foreign_task_is_recorded(recorded):
    """A block entered in one task and left in an unrelated one is recorded once, and both tasks go on."""

    async def main():
        entered = asyncio.get_running_loop().create_future()

        async def one():
            entered.set_result(enter("first"))

        async def two():
            (await entered)()
            enter("next")()

        await asyncio.gather(one(), two())

    asyncio.run(main())
    assert recorded.span("next").parent_id == recorded.span("first").parent_id == 0


def test_a_block_left_in_another_thread_is_recorded(recorded):
    """A block left in another thread is recorded once; spans that its own thread opens later are no children of it."""
    leave = enter("first")
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    enter("next")()
    assert {span.name: span.parent_id for span in recorded.spans} == {"first": 0, "next": 0}


def test_leaving_never_costs_recursion(recorded):
    """A block can be entered and left with hardly any stack left."""

    def at_the_bottom(depth):
        if depth:
            return at_the_bottom(depth - 1)
        enter("deep")()
        return None

    frames = 0
    frame = sys._getframe()
    while frame is not None:
        frames, frame = frames + 1, frame.f_back
    at_the_bottom(sys.getrecursionlimit() - frames - 30)
    collection.collect()
