# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An exception that arrives at any instruction of ours: it reaches the caller, and leaves neither a context nor an open span.

A trace function raises before the n-th instruction that runs in our code, for every n: a signal handler may do so at a part of them.
"""

import asyncio
import contextlib
import dis
import functools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import verl_otel
from verl_otel.recording import collection, span_context
from verl_otel.recording.context import CONTEXT
from verl_otel.recording.span import BareSpan
from verl_otel.recording.state import RECORDER

pytestmark = pytest.mark.full

OURS = f"{Path(verl_otel.__file__).parent}{os.sep}"


NEVER = frozenset({"NOP", "RETURN_VALUE", "RETURN_CONST", "JUMP_FORWARD", "PUSH_EXC_INFO", "RERAISE"})
"""Instructions at which no version of CPython looks for signals, and which a ``try`` does not always cover."""

EXIT = f"{BareSpan.__exit__.__qualname__}:{BareSpan.__exit__.__code__.co_firstlineno} at 0 "


class TooLongError(Exception):
    """What the user's signal handler raises."""


@functools.cache
def instructions(code):
    """Return the names of a function's instructions by their offset; those that choose an ``except`` clause are not told apart.

    There CPython does not look for signals either: nothing is called, and nothing jumps back.
    """
    found, choosing = {}, False
    for each in dis.get_instructions(code):
        choosing = choosing or each.opname == "PUSH_EXC_INFO"
        found[each.offset] = "PUSH_EXC_INFO" if choosing else each.opname
        choosing = choosing and not each.opname.startswith(("STORE_FAST", "POP_TOP"))
    names = [(each.opname, each.argval) for each in dis.get_instructions(code)]
    offsets = list(found)
    for index in range(len(names) - 4):
        if names[index : index + 3] == [("LOAD_CONST", None)] * 3:  # a `with` block calls `__exit__`
            for offset in offsets[index : index + 5]:
                found[offset] = "NOP"
    return found


class Interruption:
    """Raises before one instruction of ours."""

    def __init__(self, at):
        self.left = at
        self.where = ""

    def __call__(self, frame, event, argument):
        file = frame.f_code.co_filename
        if not file.startswith((OURS, "<verl_otel ")):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step(frame, "opcode", None)

    def step(self, frame, event, argument):
        if event == "opcode" and (name := instructions(frame.f_code).get(frame.f_lasti, "call")) not in NEVER:
            self.left -= 1
            if self.left < 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} at {frame.f_lasti} {name}"
                sys.settrace(None)
                raise TooLongError
        return self.step


def interrupt(work, at):
    """Run ``work``, interrupted before one instruction of ours. Returns the interruption, None if there are fewer."""
    interruption = Interruption(at)
    before = sys.gettrace()
    try:
        sys.settrace(interruption)
        work()
    except TooLongError:
        assert interruption.left < 0
        return interruption
    finally:
        sys.settrace(before)
    assert interruption.left >= 0, f"the exception was swallowed, raised in {interruption.where}"
    return None


def block():
    with verl_otel.span("block"):
        pass


def nested_blocks():
    with verl_otel.span("outer"), verl_otel.span("block"):
        pass


def step_and_phase():
    with verl_otel.step(1), verl_otel.phase("gen"), verl_otel.phase("gen"):
        pass


def trajectory():
    with verl_otel.trajectory("uid", 0), verl_otel.turn(0), verl_otel.llm("model"):
        pass


def failing_block():
    with contextlib.suppress(KeyError), verl_otel.span("block"):
        raise KeyError


@verl_otel.span
def function():
    return 1


@verl_otel.span
def failing_function():
    raise KeyError


def failing_call():
    with contextlib.suppress(KeyError):
        failing_function()


@verl_otel.step
def step():
    return function()


@verl_otel.tool("tool")
def tool():
    return 1


@verl_otel.tool("tool")
def nested_tools():
    return tool()


@verl_otel.llm("model")
def llm(prompt_ids):
    return {"token_ids": [1, 2], "finish_reason": "stop"}


@verl_otel.span
async def coroutine_function():
    await asyncio.sleep(0)
    return function()


def run(coroutine):
    """Run a coroutine to its end without an event loop."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        coroutine.close()


def coroutine():
    run(coroutine_function())


@verl_otel.span
def generator_function():
    yield 1
    yield function()


def generator():
    items = generator_function()
    try:
        for _ in items:
            pass
    finally:
        items.close()


@verl_otel.span
async def async_generator_function():
    yield 1
    yield function()


async def consume():
    items = async_generator_function()
    try:
        async for _ in items:
            pass
    finally:
        await items.aclose()


def async_generator():
    run(consume())


timed = verl_otel.timed("interrupted.timed")(lambda: None)
leaf = verl_otel.timed("interrupted.leaf", span=True)(lambda: None)
timed_generator = verl_otel.timed("interrupted.generator")(generator_function.__wrapped__)
plain = verl_otel.span("plain")(functools.partial(int, "5"))
timed_plain = verl_otel.timed("interrupted.plain")(functools.partial(int, "5"))
counter = verl_otel.counter("interrupted.counter")
bound = counter.bind(kind="bound")


def timed_block():
    with verl_otel.timed("interrupted.block"):
        pass


def instruments():
    counter.add(1, kind="other")
    bound.add(1)
    verl_otel.gauge("interrupted.gauge").set(1)
    verl_otel.histogram("interrupted.histogram").record(1)


WORK = [
    block, nested_blocks, step_and_phase, trajectory, failing_block, function, failing_call, step, tool, nested_tools,
    functools.partial(llm, [1]), coroutine, generator, async_generator, timed, leaf, lambda: list(timed_generator()),
    plain, timed_plain, timed_block, instruments,
]  # fmt: skip


@pytest.mark.skipif(
    not (3, 11) <= sys.version_info < (3, 13),
    reason="which instructions look for signals is known for 3.11 and 3.12; real signals are in test_reentrancy.py",
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("around", [False, True], ids=["alone", "in a span"])
@pytest.mark.parametrize("work", WORK, ids=lambda work: getattr(work, "__name__", "work"))
def test_an_interruption_at_any_instruction_leaves_nothing_behind(recorded, work, around):
    """The exception reaches the caller, the context is what it was, no span is open, and the next span is no child."""
    if work in (generator, async_generator) and sys.version_info >= (3, 12):
        pytest.skip("CPython 3.12 runs handlers at a jump back that no `try` covers: the span stays open")
    with ThreadPoolExecutor(
        1
    ) as thread:  # an interrupted `except` clause leaves its exception behind as the context of later ones
        thread.submit(interrupt_everywhere, recorded, work, around).result()


def interrupt_everywhere(recorded, work, around):
    work()
    bad = []
    for at in range(100_000):
        outer = verl_otel.span("around").__enter__() if around else None
        before = CONTEXT.get()
        interruption = interrupt(work, at)
        if interruption is not None and interruption.where.startswith(EXIT):
            recorded.refresh()  # no `try` of ours is around the first instruction: the next drain finds what was left
        if span_context._ids_lock._is_owned():
            bad.append(f"lock left by {interruption.where}")
            span_context._ids_lock.release()
        if CONTEXT.get() is not before:
            bad.append(f"context left by {interruption.where}")
            CONTEXT.set(before)
        for span in RECORDER.opened:
            if span is not outer:
                bad.append(f"{span.name} open after {interruption.where}")
                span.close()
        if unfinished := [span for span in RECORDER.begun if not span.stop and span is not outer]:
            bad.append(f"{len(unfinished)} begun after {interruption.where}")
            for span in unfinished:
                span.start = span.stop = 1.0
        if outer is not None:
            outer.close()
        if at % 100 == 0:
            collection.collect()
        if interruption is None:
            break
    assert not bad, "\n".join(dict.fromkeys(bad))
