# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Recording from where other code was interrupted: signal handlers, garbage collection, ``__del__``. It must not hang."""

import contextlib
import json
import sys

from verl_otel.recording import instruments
from verl_otel.recording.series import CHUNK

BEGIN = """
    import faulthandler, gc, json, signal, sys, threading, time
    faulthandler.dump_traceback_later(60, exit=True)
    import verl_otel
    from verl_otel.model import HistogramValue
    from verl_otel.recording import context, instruments, collection, series_registry, wrapping
    from verl_otel.recording.state import RECORDER

    context.context_access()
    RECORDER.on = True
    wrapping.switch(on=True)
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
        print(json.dumps({"totals": totals, "spans": spans, "dropped": series_registry.dropped(), "open": len(RECORDER.opened), **more}))

    done = verl_otel.counter("done")
    timed = verl_otel.timed("timed")(lambda: None)
    traced = verl_otel.tool("traced")(lambda: None)
    inner = verl_otel.span("inner")(lambda: None)
"""


def run(run_python, script):
    return json.loads(run_python(BEGIN + script))


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


def test_a_signal_handler_may_record_while_its_own_thread_folds(run_python):
    """A handler that interrupts the holder of the fold lock appends, tries to drain, and goes on."""
    found = run(
        run_python,
        """
    def handle(*_):
        for _ in range(3000):
            timed()
        assert collection.collect(wait=0).points == ()

    signal.signal(signal.SIGUSR1, handle)
    with instruments.timer_series("timed").lock:
        signal.raise_signal(signal.SIGUSR1)
    finish()
    """,
    )
    assert found["totals"]["timed"] == 3000
    assert found["dropped"] == 0


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


def test_finalisers_may_record(run_python):
    """Objects that record in ``__del__``, wherever that runs, lose nothing and do not hang."""
    found = run(
        run_python,
        """
    class Noisy:
        def __init__(self):
            self.me = self  # only the collector ends this

        def __del__(self):
            done.add(1)
            inner()
            with verl_otel.tool("finaliser") as span:
                span.get_span_context()

    gc.set_threshold(20, 2, 2)
    for number in range(3000):
        Noisy()
        traced()
        if number % 300 == 0:
            drain()
    gc.collect()
    finish()
    """,
    )
    assert found["totals"]["done"] == 3000
    assert found["spans"] == {"inner": 3000, "execute_tool finaliser": 3000, "execute_tool traced": 3000}


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

    # Held before any thread records: one that is past the check of `spill` would wait for it, as for a fold, which ends, but this does not.
    holder = threading.Thread(target=instruments.timer_series("timed").lock.acquire, daemon=True)
    holder.start()
    holder.join()
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(2000):
        timed()
    import atexit
    atexit.register(lambda: [timed(), traced(), collection.collect(wait=0), print("ended")])
    """
    )
    assert said.split()[-1] == "ended"


def test_an_exception_of_a_signal_handler_leaves_no_lock_held(recorded):
    """Wherever a handler raises while a full buffer is folded, the lock is free afterwards: a drain waits for it."""
    series = instruments.timer_series("interrupted")
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
        assert not series.lock.locked(), place
    assert left > 0, "the places ended before the work did"
