# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Generator functions: what a decorated one does is what the plain one does, and its span is current inside it only."""

import contextlib
import gc
import inspect
import threading
import weakref

import opentelemetry.context
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, trace

import verl_otel
from verl_otel.recording.span import current_span
from verl_otel.recording.state import RECORDER
from verl_otel.testing import capture

ACTIONS = st.lists(st.sampled_from(["go on", "fail", "return", "catch", "catch twice", "fail on close"]), max_size=4)
OPERATIONS = st.lists(
    st.sampled_from(["next", "send", "throw ValueError", "throw KeyError", "throw StopIteration", "close"]), max_size=8
)


def machine(actions, log):
    """A generator that does at each ``yield`` what the list says, and logs what it sees."""
    for action in actions:
        try:
            log.append((yield action))
            if action == "fail":
                raise KeyError("own")
            if action == "return":
                return "early"
        except ValueError as error:
            log.append(f"caught {error}")
            if action == "catch twice":
                yield "again"
            elif action != "catch":
                raise
        except GeneratorExit:
            log.append("closing")
            if action == "fail on close":
                raise KeyError("closing") from None
            raise
        finally:
            log.append("left")
    return "end"


def operate(generator, operation):
    """Do one operation and return what came out: a value, or the exception's class and arguments."""
    word, _, argument = operation.partition(" ")
    try:
        if word == "next":
            return next(generator)
        if word == "send":
            return generator.send(5)
        if word == "throw":
            return generator.throw({"ValueError": ValueError, "KeyError": KeyError}.get(argument, StopIteration)("t"))
        return generator.close()
    except BaseException as error:
        return type(error), error.args


@pytest.mark.full
@given(ACTIONS, OPERATIONS)
@settings(deadline=None, max_examples=300, database=None)
def test_a_decorated_generator_does_what_the_plain_one_does(actions, operations):
    """Any sequence of `next`, `send`, `throw` and `close` gives the same results, and the context is never left behind."""
    outcomes = []
    with capture() as captured:
        for decorate in (lambda function: function, verl_otel.span("g")):
            log = []
            generator = decorate(machine)(actions, log)
            results = []
            for operation in operations:
                results.append((operate(generator, operation), inspect.getgeneratorstate(generator)))
                assert trace.get_current_span() is trace.INVALID_SPAN
            results.append(operate(generator, "close"))
            outcomes.append((results, log))
        assert not RECORDER.opened
        begun = "left" in outcomes[1][1] or any(state != "GEN_CREATED" for _, state in outcomes[1][0][:-1])
        assert len(captured.spans) <= int(begun)
    assert outcomes[0] == outcomes[1]


def outcome(generator, operations, log):
    """What came out of each operation, and what the body has seen."""
    return [*(operate(generator, operation) for operation in operations), operate(generator, "close")], log


@pytest.mark.full
@given(ACTIONS, OPERATIONS)
@settings(deadline=None, max_examples=200, database=None)
def test_off_or_timed_a_generator_does_what_the_plain_one_does(actions, operations):
    """Any sequence of `next`, `send`, `throw` and `close` gives the same results, off and timed."""
    log = []
    expected = outcome(machine(actions, log), operations, log)
    for verb in (verl_otel.span("g"), verl_otel.timed("light.g")):
        log = []
        assert outcome(verb(machine)(actions, log), operations, log) == expected
    with capture() as captured:
        log = []
        assert outcome(verl_otel.timed("light.g")(machine)(actions, log), operations, log) == expected
        assert sum(point.value.samples for point in captured.points) <= 1


def test_spans_of_the_consumer_are_no_children_of_the_generator(recorded):
    """What the consumer opens between two items belongs to the consumer; what the body opens, to the generator."""

    @verl_otel.span("g")
    def produce():
        for number in range(2):
            with verl_otel.span("in body"):
                pass
            yield number

    with verl_otel.step(1):
        for _ in produce():
            with verl_otel.span("in consumer"):
                pass
    spans = recorded.spans
    step, generator = recorded.span("verl.step"), recorded.span("g")
    parents = {span.name: span.parent_id for span in spans}
    assert parents["in consumer"] == parents["g"] == step.span_id
    assert parents["in body"] == generator.span_id


def test_a_block_around_a_yield_stays_in_the_body(recorded, is_outside):
    """A block that is open across a `yield` is current in the body again afterwards, and never in the consumer."""
    seen = []

    @verl_otel.span("g")
    def produce():
        with verl_otel.span("block"):
            for number in range(3):
                seen.append(current_span().name)
                yield number
        seen.append(current_span().name)

    generator = produce()
    assert not RECORDER.opened  # the span begins with the first resumption
    for _ in generator:
        assert is_outside()
    assert seen == ["block", "block", "block", "g"]
    assert recorded.span("block").parent_id == recorded.span("g").span_id


def test_baggage_set_in_the_body_stays_in_the_body(recorded):
    """What the body attaches to the context is there at its next resumption, and never seen by the consumer."""
    seen = []

    @verl_otel.span("g")
    def produce():
        token = opentelemetry.context.attach(baggage.set_baggage("key", "value"))
        yield 1
        seen.append(baggage.get_baggage("key"))
        opentelemetry.context.detach(token)

    for _ in produce():
        assert baggage.get_baggage("key") is None
    assert seen == ["value"]


def test_a_generator_may_be_closed_in_another_thread(recorded, is_outside):
    """A generator that is closed in another thread ends its span as cancelled, and no context is changed there or here."""

    @verl_otel.span("g")
    def produce():
        yield 1

    generator = produce()
    next(generator)
    left_in = []
    thread = threading.Thread(target=lambda: [generator.close(), left_in.append(trace.get_current_span())])
    thread.start()
    thread.join()
    assert left_in == [trace.INVALID_SPAN]
    assert is_outside()
    span = recorded.span("g")
    assert (span.status, span.attributes["verl.outcome"]) == (0, "cancelled")


def test_the_result_of_a_generator_is_handed_on(recorded):
    """What a generator returns reaches `yield from`, and its extractor, which gets the arguments by name."""

    @verl_otel.tool("python", extract=lambda arguments, result: {**arguments, "result": result})
    def produce(code, *, limit=3):
        yield 1
        return "result"

    def consume():
        return (yield from produce("1 + 1"))

    generator = consume()
    next(generator)
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "result"
    found = recorded.spans[0].attributes
    assert (found["code"], found["limit"], found["result"]) == ("1 + 1", 3, "result")


def test_a_generator_may_survive_a_thrown_generator_exit(recorded):
    """A body that answers a thrown GeneratorExit with another item goes on, decorated or not."""

    @verl_otel.span("g")
    def produce():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    generator = produce()
    next(generator)
    try:
        assert generator.throw(GeneratorExit()) == 2
    finally:
        generator.close()


def test_a_later_exception_of_the_body_has_no_false_cause(recorded):
    """An exception that the body raises after it has handled a thrown one does not name that one as its context."""

    @verl_otel.span("g")
    def produce():
        with contextlib.suppress(ValueError):
            yield 1
        raise KeyError("later")

    generator = produce()
    next(generator)
    with pytest.raises(KeyError) as caught:
        generator.throw(ValueError())
    assert caught.value.__context__ is None


def test_wrong_arguments_leave_nothing_open(recorded):
    """A generator function that is called with wrong arguments raises, and leaves no open span behind."""

    @verl_otel.span("g")
    def produce(needed):
        yield needed

    with pytest.raises(TypeError, match="needed"):
        list(produce())
    assert not RECORDER.opened


class Batch:
    """Stands for a tensor: it must be freed without the garbage collector, which memory of a GPU does not set off."""


@pytest.mark.parametrize("on", [True, False])
def test_a_generator_that_is_left_early_frees_its_variables(on, monkeypatch):
    """No cycle keeps what the body held, whether anything is recorded or not."""

    @verl_otel.span("batches")
    def batches():
        batch = Batch()
        references.append(weakref.ref(batch))
        while True:
            yield batch

    references = []
    with capture() if on else contextlib.nullcontext():
        gc.disable()
        try:
            for _ in batches():
                break
            del _
            assert references[0]() is None
        finally:
            gc.enable()
