# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Pauses of a process, and the reason of each."""

import ctypes
import os
import subprocess
import time
import types

import pytest

import verl_otel
from verl_otel.recording.span import clock
from verl_otel.watchdog import event_loops, process_pauses

SECONDS = 1.5


def hold_lock():
    """Hold the interpreter lock in one call."""
    begin = time.perf_counter()
    sum(range(1_000_000))
    sum(range(round(1_000_000 * SECONDS / (time.perf_counter() - begin))))


def sleep_with_lock():
    """Hold the interpreter lock in a call that waits, as a library does that reads from a disk and does not give the lock up."""
    ctypes.PyDLL(None).usleep(round(SECONDS * 1e6))


def stop():
    """Stop this process by a signal."""
    with subprocess.Popen(["/bin/sh", "-c", f"kill -STOP {os.getpid()}; sleep {SECONDS}; kill -CONT {os.getpid()}"]):
        pass


def pauses(recorded, reasons):
    """Return the spans of some reasons."""
    return [
        span for span in recorded.spans if span.name == "verl.process.paused" and span.attributes["reason"] in reasons
    ]


@pytest.mark.alone  # on a busy machine a pause has another reason
@pytest.mark.parametrize(
    ("work", "reasons"),
    [(hold_lock, ("interpreter", "cpu")), (sleep_with_lock, ("interpreter",)), (stop, ("process",))],
)
def test_a_pause_is_recorded_with_its_reason(recorded, watcher, wait_for, work, reasons):
    """Its length, and why. On a busy machine the thread that holds the lock may have no CPU."""
    wait_for(lambda: watcher._pauses._checked)
    begin = time.perf_counter()
    work()
    taken = time.perf_counter() - begin
    spans = wait_for(lambda: pauses(recorded, reasons))
    assert sum(span.end_ns - span.start_ns for span in spans) / 1e9 == pytest.approx(taken, abs=0.7)


class Queue:
    """Run queue time of a thread."""

    def __init__(self, seconds):
        self.seconds = seconds

    def take(self):
        return self.seconds


@pytest.mark.parametrize(
    ("late", "used", "queued", "collections", "reason"),
    [
        (0.1, 0.1, 0.0, 1, ""),
        (2.0, 2.0, 0.1, 0, "interpreter"),
        (2.0, 2.0, 0.1, 1, "collection"),
        (2.0, 0.1, 0.1, 1, "process"),
        (2.0, 0.2, 1.5, 0, "cpu"),
        (2.0, 1.0, 1.5, 1, "collection"),
        (2.0, 1.0, 1.9, 1, "cpu"),
        (2.0, 0.2, 1.5, 1, "cpu"),
    ],
)
def test_the_reason_follows_from_what_happened_meanwhile(monkeypatch, late, used, queued, collections, reason):
    """CPU time of the process, time of the thread in the run queue, and collections of the oldest generation."""
    detector, known = process_pauses.PauseDetector(), {"cpu": 5.0, "collections": 3}
    monkeypatch.setattr(process_pauses.time, "process_time", lambda: known["cpu"])
    monkeypatch.setattr(process_pauses.gc, "get_stats", lambda: [{"collections": known["collections"]}])
    assert not detector.check(100.0, 0.0)
    known = {"cpu": 5.0 + used, "collections": 3 + collections}
    detector._own = Queue(queued)
    pause = detector.check(100.25 + late, late)
    assert pause.reason == reason
    assert pause.seconds == pytest.approx(late if reason else 0.0)


def test_what_holds_the_interpreter_lock_may_have_no_cpu(monkeypatch):
    """The thread that looks waits for the lock, and the one that holds it waits for a CPU for most of that time."""
    detector, known = process_pauses.PauseDetector(), {"cpu": 0.0}
    monkeypatch.setattr(process_pauses.time, "process_time", lambda: known["cpu"])
    detector.check(100.0, 0.0)
    detector._own, detector._others[1], known["cpu"] = Queue(0.3), Queue(1.2), 0.8
    pause = detector.check(102.25, 2.0)
    assert (pause.reason, pause.queued) == ("cpu", 1.2)


@pytest.mark.parametrize(("late", "seconds"), [(1.0, 2.25), (0.0, 1.0)])
def test_a_collection_that_is_seen_before_its_end_is_one_pause(monkeypatch, recorded, late, seconds):
    """It is counted when it ends. Its finalizers run Python, so that the thread that looks may do so before; the next look may be in time."""
    detector, known = process_pauses.PauseDetector(), {"cpu": 0.0, "collections": 0}
    monkeypatch.setattr(process_pauses.time, "process_time", lambda: known["cpu"])
    monkeypatch.setattr(process_pauses.gc, "get_stats", lambda: [{"collections": known["collections"]}])
    with verl_otel.span("work"):
        detector.check(100.0, 0.0)
        known |= {"cpu": 1.0}
        assert detector.check(101.25, 1.0).reason == "interpreter"
        known |= {"cpu": 1.0 + late, "collections": 1}
        detector.check(101.5 + late, late)
        detector.stop()
    (pause,) = pauses(recorded, ("collection", "interpreter"))
    assert pause.attributes["reason"] == "collection"
    assert (pause.end_ns - pause.start_ns) / 1e9 == pytest.approx(seconds)


@pytest.mark.parametrize(("collections", "reason"), [(1, "collection"), (0, "interpreter")])
def test_a_collection_that_shares_its_cpu_is_none_that_sleeps(monkeypatch, collections, reason):
    """Beside other programs it uses less than a quarter of a CPU. The thread that looks is woken to wait for the interpreter lock."""
    detector, known = process_pauses.PauseDetector(), {"collections": 0, "wakes": 0}
    usage = lambda _: types.SimpleNamespace(ru_nvcsw=known["wakes"])  # noqa: E731
    monkeypatch.setattr(process_pauses.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(process_pauses.resource, "getrusage", usage)
    monkeypatch.setattr(process_pauses.gc, "get_stats", lambda: [{"collections": known["collections"]}])
    detector.check(100.0, 0.0)
    known |= {"collections": collections, "wakes": 300}
    assert detector.check(102.25, 2.0).reason == reason


@pytest.mark.parametrize(("queued", "seconds"), [(0.03, 0.0), (0.1, 0.25)])
def test_a_thread_that_computes_waits_for_a_cpu(queued, seconds):
    """Although the one that looks is woken in time."""
    detector = process_pauses.PauseDetector()
    detector.check(100.0, 0.0)
    detector._others[1] = Queue(queued)
    pause = detector.check(100.25, 0.0)
    assert (pause.seconds, pause.reason, pause.queued) == (
        seconds,
        "cpu" if seconds else "",
        queued if seconds else 0.0,
    )


@pytest.mark.parametrize(("queued", "reason"), [(0.5, "callback"), (1.5, "cpu")])
def test_a_callback_that_had_to_share_its_cpu_blocked_its_loop(queued, reason):
    """Only where it waited for a CPU for most of the time is that the reason."""
    state = event_loops.LoopState(None, 0, clock)
    state.pinged = 100.0
    state.note_pause(process_pauses.Pause(100.0, 102.0, "cpu", queued))
    assert state.find_reason(2.0) == reason


def test_the_run_queue_time_is_that_of_the_kernel():
    """It grows, and a thread that does not exist has none."""
    assert process_pauses.QueueTime("/proc/self/task/0/schedstat").take() == 0.0
    known = process_pauses.QueueTime("/proc/thread-self/schedstat")
    begin = time.perf_counter()
    assert 0 <= known.take() <= time.perf_counter() - begin + 1
    known.close()
    assert known.take() == 0.0


def test_short_waits_are_no_pauses():
    """A process that waits for something else, and is woken a little late, is not paused."""
    detector = process_pauses.PauseDetector()
    for turn in range(8):
        detector._own = Queue(0.01)
        assert not detector.check(100.0 + 0.25 * turn, 0.05)


def test_a_loop_that_ends_had_no_free_thread_until_then(recorded):
    """`asyncio.run` in each step ends the loop before the next look."""
    queue = types.SimpleNamespace(qsize=lambda: 1)
    executor = types.SimpleNamespace(_work_queue=queue)
    state = event_loops.LoopState(types.SimpleNamespace(_default_executor=executor), 0, clock)
    with verl_otel.span("work"):
        state.check_executor(clock(), is_running=True)
        state.check_executor(clock() + 2.0, is_running=True)
        state.check_executor(clock() + 9.0, is_running=False)
    (pause,) = [span for span in recorded.spans if span.name == "verl.process.paused"]
    assert pause.attributes["reason"] == "executor"
    assert (pause.end_ns - pause.start_ns) / 1e9 == pytest.approx(
        2.0, abs=1.0
    )  # what came after it may be something else
