# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What exceptions do: they pass unchanged through every verb in every form, and the span says what happened."""

import asyncio
import builtins
import concurrent.futures
import json
import multiprocessing
import re
import signal
import traceback
from concurrent.futures.process import BrokenProcessPool

import pytest

import verl_otel
from verl_otel.recording.span import current_span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv.spans import STATUS_ERROR, STATUS_UNSET


class Outer:
    class FailureError(Exception):
        """Has a qualified name with a dot in it."""


class OrderCancelledError(Exception):
    """An error like any other, whatever its name."""


class Stopped(asyncio.CancelledError):
    """A cancellation by inheritance, whatever its name."""


class TaskCancelledError(Exception):
    """What `ray.get` raises for a task that was cancelled, by its names: Ray is not loaded here."""

    __module__ = "ray.exceptions"


MESSAGE = "the secret answer is 42"
ERRORS = [
    ValueError(MESSAGE),
    Outer.FailureError(MESSAGE),
    OrderCancelledError(MESSAGE),
    Stopped(MESSAGE),
    KeyboardInterrupt(MESSAGE),
    SystemExit(MESSAGE),
    StopAsyncIteration(MESSAGE),
    asyncio.CancelledError(MESSAGE),
    concurrent.futures.CancelledError(MESSAGE),
    GeneratorExit(MESSAGE),
    TaskCancelledError(MESSAGE),
]
if hasattr(builtins, "ExceptionGroup"):  # named by its first exception
    ERRORS.append(builtins.ExceptionGroup(MESSAGE, [ValueError(MESSAGE)]))
CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError, GeneratorExit, TaskCancelledError)
VERBS = {
    "step": lambda: verl_otel.step(1),
    "phase": lambda: verl_otel.phase("adv"),
    "rollout": verl_otel.rollout,
    "trajectory": lambda: verl_otel.trajectory("uid", 0),
    "turn": lambda: verl_otel.turn(0),
    "llm": lambda: verl_otel.llm("qwen"),
    "tool": lambda: verl_otel.tool("python"),
    "reward": lambda: verl_otel.reward("math"),
    "update": lambda: verl_otel.update("actor"),
    "span": lambda: verl_otel.span("own"),
    "timed": lambda: verl_otel.timed("own.timed"),
}


def drive(awaitable):
    """Run a coroutine to its end without an event loop."""
    try:
        while True:
            awaitable.send(None)
    except StopIteration as stop:
        return stop.value


def explode(error):
    raise error


def as_block(verb, error):
    with verb():
        explode(error)


def as_function(verb, error):
    verb()(lambda: explode(error))()


def as_coroutine(verb, error):
    @verb()
    async def function():
        explode(error)

    drive(function())


def as_generator(verb, error):
    @verb()
    def function():
        yield 1
        explode(error)

    for _ in function():
        pass


def as_async_generator(verb, error):
    @verb()
    async def function():
        yield 1
        explode(error)

    generator = function()
    drive(generator.__anext__())
    drive(generator.__anext__())


FORMS = [as_block, as_function, as_coroutine, as_generator, as_async_generator]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("form", FORMS)
def test_every_exception_passes_unchanged(recorded, is_outside, form, error):
    """The same exception object, with the line that raised it, leaves every verb in every form; spans end, context too."""
    if form is as_async_generator and isinstance(error, StopAsyncIteration):
        pytest.skip("Python itself turns it into a RuntimeError there")
    kind = type(error)
    named = kind if kind.__qualname__ != "ExceptionGroup" else type(error.exceptions[0])
    name = named.__qualname__ if named.__module__ == "builtins" else f"{named.__module__}.{named.__qualname__}"
    cancelled = isinstance(error, CANCELLED)
    for verb, make in VERBS.items():
        with pytest.raises(kind) as caught:
            form(make, error)
        assert caught.value is error
        assert traceback.extract_tb(error.__traceback__)[-1].name == "explode"
        error.__traceback__ = None
        assert is_outside(), verb
    spans = recorded.spans
    assert len(spans) == len(VERBS) - 1  # `timed` makes none; the phase comes after the step of an own loop
    for span in spans:
        if cancelled:
            assert span.status == STATUS_UNSET
            assert span.attributes["verl.outcome"] == "cancelled"
            assert "error.type" not in span.attributes
            assert span.events == ()
        else:
            assert span.status == STATUS_ERROR
            assert span.attributes["error.type"] == name
            if named is kind:
                assert re.fullmatch(
                    r"recording/test_span_errors\.py:\d+ in explode", span.attributes["verl.error.line"]
                )
            assert [event.name for event in span.events] == ["exception"]
            assert span.events[0].attributes["exception.type"] == name
    assert MESSAGE not in repr(spans)
    if not cancelled:
        timed = {point.labels for point in recorded.points if point.instrument.name == "own.timed"}
        assert timed == {(("error.type", name),)}
        assert recorded.value("verl.phase.duration", verl_phase="adv", error_type=name) == 1


@pytest.mark.parametrize("form", FORMS)
def test_messages_are_kept_when_content_is(recorded, form):
    """With content capture on, the message is in the span's status and in its event, and not longer than 1,024."""
    RECORDER.capture_content = True
    error = ValueError(MESSAGE + "x" * 5000)
    with pytest.raises(ValueError):
        form(VERBS["tool"], error)
    (span,) = recorded.spans
    assert span.message == span.events[0].attributes["exception.message"] == str(error)[:1024]


def test_an_exception_of_a_library_is_at_the_line_that_called_it(recorded):
    """The line of a failed span is the user's own, and not that of the standard library or of an installed package."""
    with pytest.raises(ValueError), verl_otel.step(1):
        json.loads("{")
    (span,) = recorded.spans
    assert span.attributes["verl.error.line"].endswith(
        " in test_an_exception_of_a_library_is_at_the_line_that_called_it"
    )


@pytest.mark.parametrize("name", ["<string>", "def answer():\n    raise ValueError"])
def test_generated_code_is_not_where_an_exception_was_raised(recorded, name):
    """A model may have written it, and its text or its names are content: the line is that which ran it."""
    code = compile("def answer():\n    raise ValueError\nanswer()", name, "exec")
    with pytest.raises(ValueError), verl_otel.step(1):
        exec(code, {})
    (span,) = recorded.spans
    assert span.attributes["verl.error.line"].endswith(" in test_generated_code_is_not_where_an_exception_was_raised")


@pytest.mark.full
def test_a_broken_pool_is_recorded_with_the_death_that_broke_it(recorded):
    """The exception says that some process ended; the span has its pid and signal, and not those of what the pool then ended."""
    with (
        concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool,
        pytest.raises(BrokenProcessPool),
        verl_otel.step(1),
    ):
        pool.submit(signal.raise_signal, signal.SIGKILL).result()
    (span,) = recorded.spans
    assert re.fullmatch(r"process \d+ was killed by SIGKILL", span.attributes["verl.error.child"])


@pytest.mark.full
def test_a_broken_pipe_is_recorded_with_the_death_that_broke_it(recorded):
    """A worker that was killed: its parent reads the end of the pipe to it, and no more."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=signal.raise_signal, args=(signal.SIGKILL,))
    worker.start()
    theirs.close()
    with pytest.raises(EOFError), verl_otel.step(1):
        ours.recv()
    worker.join()
    (span,) = recorded.spans
    assert span.attributes["verl.error.child"] == f"process {worker.pid} was killed by SIGKILL"


def test_an_exception_marks_every_span_that_it_leaves(recorded):
    """Each span that an exception passes on its way is marked, and none around the place where it is caught."""
    with verl_otel.step(1), pytest.raises(ValueError), verl_otel.phase("gen"), verl_otel.turn():
        explode(ValueError())
    status = {span.name: span.status for span in recorded.spans}
    assert status == {"verl.turn": STATUS_ERROR, "verl.phase.gen": STATUS_ERROR, "verl.step": STATUS_UNSET}


def test_a_failed_step_is_no_completed_step(recorded):
    """A step that raised has a duration with its error; neither it nor one that was cancelled is counted as completed."""
    with pytest.raises(ValueError), verl_otel.step(1):
        explode(ValueError())
    with pytest.raises(asyncio.CancelledError), verl_otel.step(2):
        explode(asyncio.CancelledError())
    assert recorded.value("verl.step.duration", error_type="ValueError") == 1
    assert "verl.training.steps" not in {point.instrument.name for point in recorded.points}


def test_an_exception_without_text_still_ends_its_span(swallow, recorded):
    """With content capture on, an exception whose text cannot be made passes unchanged, and its span is recorded."""
    RECORDER.capture_content = True

    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    with pytest.raises(UnprintableError), verl_otel.tool("python"):
        explode(UnprintableError())
    assert not RECORDER.opened
    assert recorded.span("execute_tool python").status == STATUS_ERROR


def test_a_failure_of_ours_changes_nothing_for_the_user(swallow, recorded, monkeypatch):
    """When our own measuring fails, the user gets his own exception or result, and the spans end and are recorded."""
    monkeypatch.setattr(
        "verl_otel.recording.span_metrics._select_labels", lambda *_, **__: explode(RuntimeError("ours"))
    )
    with pytest.raises(ValueError, match="mine"):
        as_function(VERBS["tool"], ValueError("mine"))
    assert verl_otel.tool("python")(lambda: 1)() == 1
    assert not RECORDER.opened
    assert len(recorded.spans) == 2


def test_an_exception_that_the_user_recorded_is_kept(recorded):
    """A span with an exception that the user recorded himself has that event, with its attributes, and ours."""
    block = verl_otel.tool("python")

    @block
    def work():
        current_span().record_exception(KeyError(), {"key": "value"}, escaped=True)
        explode(ValueError())

    with pytest.raises(ValueError):
        work()
    first, second = recorded.spans[0].events
    assert first.attributes == {"exception.type": "KeyError", "key": "value", "exception.escaped": True}
    assert second.attributes == {"exception.type": "ValueError"}
