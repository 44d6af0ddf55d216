# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A process whose signal handler raises while the library runs: at random times, and at every place where Python lets it.

Usage: ``signal_shots.py shots|sweep NUMBER``. Prints one JSON object by target: tried, lost (the exception did not arrive), strayed
(another span is current than before, or the next span has another parent), open (spans that never ended).
"""

import gc
import json
import random
import signal
import sys

from opentelemetry import context, trace

import verl_otel
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.testing import capture

DRAIN_EVERY = 200


class TimeUpError(Exception):
    """What the handler raises, as time-outs around math graders do."""


@verl_otel.span
def plain(value, *rest, key=1):
    return value


@verl_otel.span
def nested(value):
    return plain(plain(value))


@verl_otel.reward("math")
def scored(data_source, solution):
    return {"score": 1.0}


@verl_otel.update("actor")
def updated(batch):
    return {"loss": 0.5, "grad_norm": 1.0}


@verl_otel.timed("attack.timed")
def measured(value):
    return value


@verl_otel.timed("attack.leaf", span=True)
def leaf(value):
    return value


@verl_otel.span
def generated(count):
    for number in range(count):  # noqa: UP028 - each value passes through this frame
        yield number


@verl_otel.span
async def awaited(value):
    return value


@verl_otel.span
async def generated_async(count):
    for number in range(count):
        yield number


def drive(coroutine):
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")


async def iterate():
    return [number async for number in generated_async(3)]


def failing_block():
    try:
        with verl_otel.span("failing"):
            raise KeyError(1)  # noqa: TRY301 - through the block
    except KeyError:
        pass


def trainer_step():
    with verl_otel.step(1), verl_otel.phase("gen"):
        plain(1)


def agent():
    with verl_otel.trajectory("uid", 0), verl_otel.turn(0):
        with verl_otel.llm("model") as span:
            span.set_attribute("a", 1)
            span.add_event("e", {"b": "c"})
        with verl_otel.tool("calculator"):
            pass


def block():
    with verl_otel.span("block", attributes={"a": 1}):
        pass


def timed_block():
    with verl_otel.timed("attack.block"):
        pass


def leaf_block():
    with verl_otel.timed("attack.leaf_block", span=True):
        pass


COUNTER, HISTOGRAM, GAUGE = (
    verl_otel.counter("attack.counter"),
    verl_otel.histogram("attack.histogram"),
    verl_otel.gauge("attack.gauge"),
)
BOUND = COUNTER.bind(kind="bound")

TARGETS = {
    "function": lambda: plain(1, 2, key=3),
    "nested functions": lambda: nested(1),
    "reward with extraction": lambda: scored("math", "1"),
    "update with extraction": lambda: updated([1]),
    "timed function": lambda: measured(1),
    "timed function with spans": lambda: leaf(1),
    "generator": lambda: list(generated(3)),
    "coroutine": lambda: drive(awaited(1)),
    "async generator": lambda: drive(iterate()),
    "block": block,
    "failing block": failing_block,
    "trainer step": trainer_step,
    "agent": agent,
    "timed block": timed_block,
    "timed block with spans": leaf_block,
    "counter": lambda: COUNTER.add(1, kind="a"),
    "bound counter": lambda: BOUND.add(1),
    "histogram": lambda: HISTOGRAM.record(0.5, kind="a"),
    "gauge": lambda: GAUGE.set(2, kind="a"),
}


def stands_before_exit(error):
    """Return whether an exception was raised before the first instruction of a span's ``__exit__``."""
    trace_back, code = error.__traceback__, Span.__exit__.__code__
    while trace_back is not None:
        if trace_back.tb_frame.f_code is code and trace_back.tb_lineno == code.co_firstlineno:
            return True
        trace_back = trace_back.tb_next
    return False


class Outcome:
    """What came of the attempts on one target."""

    def __init__(self, captured):
        self.captured = captured
        self.tried = self.lost = self.strayed = 0
        self.before = len(RECORDER.opened)

    def check(self, arrived, at_exit, outside):
        """Take in one attempt: whether the exception arrived, and whether ``outside`` is the current span again.

        Before the first instruction of ``__exit__`` no ``try`` can be: a block that is left there stays open.
        """
        if at_exit:
            for span in reversed([span for span in RECORDER.opened if span is not outside]):
                span.close()
        self.tried += 1
        self.lost += not arrived
        strayed = trace.get_current_span() is not outside
        with verl_otel.span("next") as span:
            strayed = strayed or span._parent() is not (outside if isinstance(outside, Span) else None)
        self.strayed += strayed
        if strayed:  # count each attempt by itself
            context.attach(trace.set_span_in_context(outside))
        if self.tried % DRAIN_EVERY == 0:
            self.captured.refresh()
            self.captured._spans.clear()

    def result(self):
        """Return the counts; ``open`` are the spans that a drain still waits for."""
        self.captured.refresh()
        self.captured.refresh()
        return {
            "tried": self.tried,
            "lost": self.lost,
            "strayed": self.strayed,
            "open": len(RECORDER.opened) - self.before,
        }


def shoot(work, outcome, number, outside):
    """Let a timer fire at a random time into a loop that does nothing but ``work``, ``number`` times."""
    dice, fired = random.Random(number), 0

    def fire(_signal, _frame):
        nonlocal fired
        fired += 1
        raise TimeUpError

    signal.signal(signal.SIGALRM, fire)
    for _ in range(number):
        before, arrived, at_exit = fired, False, False
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(5e-6, 2e-4))
            while fired == before:
                work()
        except TimeUpError as error:
            arrived, at_exit = True, stands_before_exit(error)
        outcome.check(arrived, at_exit, outside)


def sweep(work, outcome, rounds, outside):
    """Raise at the first place where Python runs handlers, then at the second, until the work ends before it.

    Python runs them when a function of its own begins and when one written in C returns: a profile function sees just these.
    """
    gc.disable()  # what is raised in a finalizer that the collector runs is lost in any program
    for _ in range(rounds):
        place = 0
        while True:
            place += 1
            arrived, at_exit, reached = raise_at(work, place)
            if not reached:
                break
            outcome.check(arrived, at_exit, outside)


def raise_at(work, place):
    """Return whether the exception arrived, whether it was raised before an exit, and whether there is a place of this number."""
    left = place

    def profile(_frame, event, _argument):
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                raise TimeUpError

    arrived = at_exit = False
    try:
        sys.setprofile(profile)
        work()
    except TimeUpError as error:
        arrived, at_exit = True, stands_before_exit(error)
    finally:
        sys.setprofile(None)
    # the last event of all is our own `setprofile(None)`
    return arrived, at_exit, left <= 0 and (arrived or left == 0)


def main():
    """Attack every target outside of any span, and inside one."""
    attack, number = {"shots": shoot, "sweep": sweep}[sys.argv[1]], int(sys.argv[2])
    results = {}
    with capture() as captured:
        for name, work in TARGETS.items():
            for _ in range(50):
                work()  # so that imports and caches are no part of it
            outcome = Outcome(captured)
            attack(work, outcome, number, trace.get_current_span())
            with verl_otel.span("outside"):
                attack(work, outcome, number, trace.get_current_span())
            results[name] = outcome.result()
            context.attach(context.Context())
    print(json.dumps(results))


if __name__ == "__main__":
    main()
