# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Recording from where other code was interrupted: signal handlers, garbage collection, ``__del__``. It must not hang."""

import contextlib
import json
import sys
import threading

import pytest

from verl_otel.model import Instrument
from verl_otel.recording.api import timer_series
from verl_otel.recording.series import CHUNK, Histogram

BEGIN = """
    import faulthandler, gc, json, signal, sys, threading, time
    faulthandler.dump_traceback_later(60, exit=True)
    import verl_otel
    from verl_otel.model import HistogramValue
    from verl_otel.recording import context, collection, series
    from verl_otel.recording.api import timer_series
    from verl_otel.recording.state import RECORDER

    context.context_access()
    RECORDER.on = True
    totals, ended, open_spans = {}, [], []

    def drain(wait=-1):
        batch = collection.collect(wait=wait)
        for point in batch.points if batch else ():
            value = point.value
            found = value.samples if isinstance(value, HistogramValue) else value
            # A handler that drained in between has put a newer total there.
            totals[point.instrument.name] = max(found, totals.get(point.instrument.name, 0))
        if batch:
            ended.extend([span.name for span in batch.spans])  # in one piece: a handler drains, too

    def finish(**more):
        drain()
        spans = {name: ended.count(name) for name in set(ended)}
        print(json.dumps({"totals": totals, "spans": spans, "dropped": series.dropped(), "open": len(RECORDER.opened), **more}))

    done = verl_otel.counter("done")
    timed = verl_otel.timed("timed")(lambda: None)
    traced = verl_otel.tool("traced")(lambda: None)
    inner = verl_otel.span("inner")(lambda: None)
"""


def run(run_python, script):
    return json.loads(run_python(BEGIN + script))


@pytest.mark.full
def test_signal_handlers_may_record_and_drain(run_python):
    """A handler that interrupts recording, folding and draining thousands of times loses nothing and does not hang."""
    found = run(
        run_python,
        """
    handled = 0

    def handle(*_):
        global handled
        handled += 1
        done.add(1)
        timed()
        inner()
        with verl_otel.step(handled) as step:
            step.get_span_context()
        if handled % 3 == 0:
            drain(wait=0)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    calls = 0
    deadline = time.monotonic() + 60
    while handled < 500 and time.monotonic() < deadline:
        for _ in range(100):
            timed()
            traced()
            done.add(1)
        calls += 100
        if calls % 3000 == 0:
            drain()
    signal.setitimer(signal.ITIMER_REAL, 0)
    finish(handled=handled, calls=calls)
    """,
    )
    handled, calls = found["handled"], found["calls"]
    assert handled >= 500
    assert found["totals"]["timed"] == found["totals"]["done"] == handled + calls
    assert found["totals"]["verl.training.steps"] == handled
    assert found["spans"] == {"inner": handled, "verl.step": handled, "execute_tool traced": calls}
    assert (found["dropped"], found["open"]) == (0, 0)


@pytest.mark.full
def test_garbage_collection_may_record(run_python):
    """Callbacks of the garbage collector that record, run at every moment of our own code, lose nothing."""
    found = run(
        run_python,
        """
    collected = 0

    def on_collection(phase, _):
        global collected
        if phase == "stop":
            collected += 1
            done.add(1)
            timed()
            inner()

    gc.set_threshold(7, 2, 2)
    gc.callbacks.append(on_collection)
    for number in range(6000):
        traced()
        timed()
        if number % 500 == 0:
            drain()
    gc.callbacks.remove(on_collection)
    finish(collected=collected)
    """,
    )
    assert found["collected"] > 50
    assert found["totals"]["done"] == found["spans"]["inner"] == found["collected"]
    assert found["totals"]["timed"] == 6000 + found["collected"]
    assert found["spans"]["execute_tool traced"] == 6000
    assert found["open"] == 0


@pytest.mark.full
def test_the_exit_of_a_process_that_records_in_threads_does_not_hang(run_python):
    """A process ends although threads of it are recording and others hold the fold lock at that moment."""
    said = run_python(
        BEGIN
        + """
    def work():
        while True:
            timed()
            traced()
            collection.collect(wait=0)

    holder = threading.Thread(target=timer_series("timed").lock.run, args=(threading.Event().wait,), daemon=True)
    holder.start()
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(2000):
        timed()
    import atexit
    atexit.register(lambda: [timed(), traced(), collection.collect(wait=0), print("ended")])
    """
    )
    assert said.split()[-1] == "ended"


@pytest.mark.full
def test_an_exception_of_a_signal_handler_leaves_no_lock_held(recorded):
    """Wherever a handler raises while a full buffer is folded, the lock is free afterwards: a drain waits for it."""
    series = timer_series("interrupted")
    left = 0

    def raise_at_the_last(_frame, event, _argument):  # Python runs handlers at these two places
        nonlocal left
        left -= event in ("call", "c_return")
        if left == 0:
            raise TimeoutError

    for place in range(1, 40):
        series.buffer[:] = [0.5] * CHUNK
        left = place
        with contextlib.suppress(TimeoutError):
            try:
                sys.setprofile(raise_at_the_last)
                series.record(0.5)
            finally:
                sys.setprofile(None)
        assert not series.lock.is_held, place
    assert left > 0, "the places ended before the work did"


class Rival(Histogram):
    """A histogram whose fold in a thread of the test takes until the test lets it go on."""

    rival, begun, may_end = None, threading.Event(), threading.Event()

    def fold(self):
        if threading.get_ident() == self.rival:
            self.begun.set()
            self.may_end.wait(60)
        super().fold()


def test_a_caller_never_waits_for_a_thread_that_folds():
    """At whatever place a thread with a full buffer is, another thread may begin a fold that does not end: the caller goes on."""
    left, waited = 0, []

    def fold_in_a_thread(series):
        Rival.rival = threading.get_ident()
        series.record(0.5)
        Rival.begun.set()  # the caller holds the lock itself

    def begin_rival_at_the_last(_frame, event, _argument):
        nonlocal left
        left -= event in ("call", "c_return")
        if left == 0:
            sys.setprofile(None)
            rival.start()
            Rival.begun.wait(60)
            late.start()

    for place in range(1, 40):
        Rival.begun.clear()
        Rival.may_end.clear()
        series = Rival(Instrument("rival", "histogram", "s", ""), (), (1.0,))
        series.buffer[:] = [0.5] * CHUNK
        rival = threading.Thread(target=fold_in_a_thread, args=(series,))
        late = threading.Timer(30.0, lambda: (waited.append(True), Rival.may_end.set()))
        left = place
        try:
            sys.setprofile(begin_rival_at_the_last)
            series.record(0.5)
        finally:
            sys.setprofile(None)
            late.cancel()
            Rival.may_end.set()
        assert not waited, f"waited at place {place}"
        if left > 0:
            break
        rival.join()
        series.fold()
        assert series.count == CHUNK + 2
    assert left > 0, "the places ended before the work did"


LOOP = """
    import json, signal, sys, time
    import verl_otel
    from verl_otel.recording import context, collection
    from verl_otel.recording.state import RECORDER

    access = context.context_access()
    RECORDER.on = True

    class TimeOut(Exception):
        pass

    fired = 0

    def handle(number, frame):
        global fired
        fired += 1
        raise TimeOut

    @verl_otel.reward("math", extract=lambda arguments, result: {"score": result})
    def grade(answer):
        return float(answer == 5)

    @verl_otel.timed("parse")
    def parse(text):
        return int(text)

    @verl_otel.span
    def tokens():
        yield 1
        yield 2

    @verl_otel.span
    async def ask():
        return [token async for token in answer()]

    @verl_otel.span
    async def answer():
        yield 3

    def work():
        while True:
            with verl_otel.span("question"), verl_otel.tool("python"):
                grade(parse("5"))
                list(tokens())
                try:
                    ask().send(None)
                except StopIteration:
                    pass

    signal.signal(signal.SIGALRM, handle)
    outside = access.get()
    caught, left, wrong = 0, 0, 0
    deadline = time.monotonic() + 30
    while caught < 1000 and time.monotonic() < deadline:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + caught % 97 * 1e-6)
            work()
        except TimeOut:
            caught += 1
        collection.collect()
        if RECORDER.opened:  # the handler ran before the first instruction of the outermost `__exit__`
            left += 1
            RECORDER.opened[0].close()
        wrong += access.get() is not outside or len(RECORDER.opened)
    print(json.dumps({"fired": fired, "caught": caught, "left": left, "wrong": wrong}))
"""


@pytest.mark.full
def test_every_time_out_reaches_its_caller(run_python):
    """A grader that is timed out a thousand times inside of spans, with nothing between them, gets each exception. Few leave a span open."""
    found = json.loads(run_python(LOOP))
    assert found["caught"] == found["fired"] >= 200
    assert found["left"] < found["caught"] / 20
    assert not found["wrong"]
