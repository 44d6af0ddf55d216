# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Blocked event loops: for how long, by what, and that loops which wait are not blocked."""

import asyncio
import contextlib
import subprocess
import threading
import time

import pytest

import verl_otel
from verl_otel.recording import collection
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.watchdog import event_loops

BLOCK = 1.0
LAG = "verl.event_loop.lag"


@contextlib.contextmanager
def running(new_loop=asyncio.new_event_loop):
    """An event loop that runs in another thread."""
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def run(loop, coroutine):
    """Run a coroutine on the loop and return what it returns."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)


def known(watcher, loop, wait_for):
    """Wait until a loop is watched and has answered once."""
    wait_for(lambda: any(state.loop is loop and state.thread for state in list(watcher._states.values())))


def blocked(recorded, function):
    """The spans of loops that a function has blocked; a busy machine delays other loops, too."""
    return [
        span
        for span in recorded.spans
        if span.name == "verl.event_loop.blocked"
        and span.attributes.get("verl.blocked.line", "").endswith(f"in {function}")
    ]


@verl_otel.tool
async def add():
    """Block the loop, as the most common mistake does."""
    await asyncio.sleep(0)
    time.sleep(BLOCK)  # noqa: ASYNC251 - the mistake


async def inline():
    await asyncio.sleep(0)
    with verl_otel.tool("search"):
        time.sleep(BLOCK)  # noqa: ASYNC251 - the mistake


async def plain():
    await asyncio.sleep(0)
    time.sleep(BLOCK)  # noqa: ASYNC251 - the mistake


async def library():
    await asyncio.sleep(0)
    subprocess.run(["sleep", str(BLOCK)], check=True)  # noqa: ASYNC221 - the mistake


@pytest.mark.full
def test_a_loop_of_a_process_with_a_rank_has_a_reason_of_its_own(recorded, wait_for):
    """Ray runs the methods of a worker on its loop, which blocks it as planned. What blocked it is recorded all the same."""
    with verl_otel.span("training"), running() as loop:
        watcher = event_loops.watch(lambda: True)
        try:
            known(watcher, loop, wait_for)
            run(loop, add())
            (span,) = wait_for(lambda: blocked(recorded, "add"))
        finally:
            watcher.stop(10)
    assert span.attributes["reason"] == "worker"
    assert recorded.value("verl.event_loop.blocked", reason="worker") > BLOCK / 2


@pytest.mark.full
@pytest.mark.parametrize(("work", "tool"), [(add, "add"), (inline, "search"), (plain, None), (library, None)])
def test_a_blocked_loop_is_recorded_with_what_blocks_it(recorded, watcher, wait_for, work, tool):
    """Its length, the tool if there is one, and the line, of code that is not of a library; a loop that waits has no record."""
    with running() as loop, running() as idle:
        known(watcher, loop, wait_for)
        known(watcher, idle, wait_for)
        begin = time.perf_counter()
        run(loop, work())
        taken = time.perf_counter() - begin
        (span,) = wait_for(lambda: blocked(recorded, work.__name__))
    assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(taken, abs=0.45)
    assert span.attributes.get("gen_ai.tool.name") == tool
    assert span.attributes["reason"] == "callback"
    assert recorded.value("verl.event_loop.blocked", reason="callback") > BLOCK / 2
    if tool:
        (culprit,) = [other for other in recorded.spans if other.name == f"execute_tool {tool}"]
        assert [link.span_id for link in span.links] == [culprit.span_id]


@pytest.mark.full
def test_a_function_in_c_that_blocks_a_loop_is_named(recorded, watcher, wait_for):
    """It has no frame of its own: asyncio calls it."""
    with running() as loop:
        known(watcher, loop, wait_for)
        loop.call_soon_threadsafe(time.sleep, BLOCK)
        (span,) = wait_for(lambda: blocked(recorded, "sleep"))
    assert span.attributes["reason"] == "callback"


def lag_of(watcher):
    """The lag that a collection reads, by aggregate."""
    return {labels[0][1]: value for labels, value in watcher.read_lag()}


@contextlib.contextmanager
def only(loop, *, has_rank=False):
    """A watcher of one loop, without a thread, its clock, and how to wait for an answer of the loop."""
    times = [10.0]
    watcher = event_loops.LoopWatcher(lambda: has_rank, lambda: times[0])
    watcher.check(0.0, 0.0)
    state = next(each for each in watcher._states.values() if each.loop is loop)
    watcher._states = {id(loop): state}  # other tests may have loops, too
    yield watcher, times, lambda: state.answered


def test_work_that_began_before_the_loop_was_asked_is_named(recorded, wait_for):
    """An idle process asks its loops once a second: what blocks one may have begun nearly a second earlier."""
    began, release = threading.Event(), threading.Event()

    async def search():
        with verl_otel.tool("search"):
            began.set()
            release.wait(60)  # the mistake

    with running() as loop, only(loop) as (watcher, times, has_answered):
        wait_for(has_answered)
        done = asyncio.run_coroutine_threadsafe(search(), loop)
        assert began.wait(60)
        times[0] = clock() + 0.9
        watcher.check(1.0, 0.0)
        watcher.check(1.25, 0.0)
        times[0] += 2.0
        release.set()
        done.result(60)
        wait_for(has_answered)
        watcher.check(1.5, 0.0)
    (span,) = blocked(recorded, "search")
    (culprit,) = [other for other in recorded.spans if other.name == "execute_tool search"]
    assert span.attributes["gen_ai.tool.name"] == "search"
    assert abs(span.start_ns - culprit.start_ns) < 1_000_000, "a float of seconds is rounded"


def test_the_task_that_blocks_is_named_and_not_the_one_that_opened_a_span_last(recorded, wait_for):
    """A rollout blocks the loop in code of its own, while another one waits for a tool that it called later."""
    began, release = threading.Event(), threading.Event()

    async def block(may_block):
        with verl_otel.trajectory("blocks", 0):
            await may_block.wait()
            began.set()
            release.wait(60)  # the mistake

    async def wait(may_block):
        with verl_otel.trajectory("waits", 0), verl_otel.tool("search"):
            may_block.set()
            await asyncio.sleep(0)

    async def roll():
        may_block = asyncio.Event()
        await asyncio.gather(block(may_block), wait(may_block))

    with running() as loop, only(loop) as (watcher, times, has_answered):
        wait_for(has_answered)
        times[0] = clock() - 0.1
        watcher.check(0.75, 0.0)
        wait_for(has_answered)
        done = asyncio.run_coroutine_threadsafe(roll(), loop)
        assert began.wait(60)
        watcher.check(1.0, 0.0)
        watcher.check(1.25, 0.0)
        times[0] += 2.0
        release.set()
        done.result(60)
        wait_for(has_answered)
        watcher.check(1.5, 0.0)
    (span,) = blocked(recorded, "block")
    (culprit,) = [other for other in recorded.spans if other.attributes.get("verl.sample.uid") == "blocks"]
    assert "gen_ai.tool.name" not in span.attributes
    assert [link.span_id for link in span.links] == [culprit.span_id]


def test_a_loop_is_watched_from_its_first_trajectory(recorded, watcher):
    """A search would find it up to a second later."""

    async def roll():
        with verl_otel.trajectory("u", 0):
            return asyncio.get_running_loop() in [state.loop for state in list(watcher._states.values())]

    assert asyncio.run(roll())


def test_a_loop_that_ended_since_the_last_check_was_blocked(recorded, monkeypatch):
    """A training may have a loop for each step, with nothing in it that runs as long as a second."""
    times = [10.0]
    watcher = event_loops.LoopWatcher(lambda: False, lambda: times[0])
    monkeypatch.setattr(RECORDER, "note_root", watcher.note_root)

    def look():
        watcher.check(0.25, 0.0)
        watcher.check(0.5, 0.0)

    @verl_otel.tool
    async def search():
        looks = threading.Thread(target=look)
        looks.start()
        looks.join(60)
        times[0] += 0.6

    async def roll():
        with verl_otel.trajectory("u", 0):
            await search()

    asyncio.run(roll())
    watcher.check(0.75, 0.0)
    (span,) = [
        span
        for span in recorded.spans
        if span.name == "verl.event_loop.blocked" and span.attributes.get("gen_ai.tool.name") == "search"
    ]
    assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(0.6)


def test_the_lag_is_how_late_callbacks_ran(recorded, wait_for):
    """By the clock that was given, whatever the machine does. A callback that is awaited counts already."""
    with running() as loop, only(loop) as (watcher, times, has_answered):
        wait_for(has_answered)
        for lag in (0.0, 0.004, 0.004, 0.07, 3.0):
            release = threading.Event()
            loop.call_soon_threadsafe(release.wait, 60)  # a callback, no task: it runs before that of the watcher
            watcher.check(0.5, 0.0)
            times[0] += lag
            found = lag_of(watcher)["max"]
            release.set()
            assert found == pytest.approx(lag)
            wait_for(has_answered)
        watcher.check(0.5, 0.0)
        wait_for(has_answered)
        assert lag_of(watcher) == {"p50": pytest.approx(0.004), "max": pytest.approx(3.0)}
        times[0] += event_loops.LAG_SECONDS + 1
        assert lag_of(watcher) == {}, "all are too old"
        watcher.check(0.5, 0.0)
        wait_for(has_answered)
        watcher.check(0.5, 0.0)
        assert lag_of(watcher) != {}
    watcher.check(0.5, 0.0)
    assert lag_of(watcher) == {}, "the loop is gone"
    assert recorded.value("verl.event_loop.blocked") == pytest.approx(3.0)


def test_a_process_with_a_rank_has_no_lag(recorded, wait_for):
    """An update runs on its loop, which is as late as that takes."""
    with running() as loop, only(loop, has_rank=True) as (watcher, _, has_answered):
        wait_for(has_answered)
        watcher.check(0.5, 0.0)
        assert lag_of(watcher) == {}


@pytest.mark.full
def test_the_lag_is_told_at_each_collection(recorded, watcher, wait_for):
    """While the watcher runs."""
    with running() as loop:
        known(watcher, loop, wait_for)
        wait_for(lambda: lag_of(watcher))
        batch = collection.collect_observed(collection.collect())
        names = [dict(point.labels)["verl.aggregate"] for point in batch.points if point.instrument.name == LAG]
        assert names == ["p50", "max"]
        assert LAG in batch.asked, "a series that is not returned any more is removed"
        watcher.stop(10)
        assert lag_of(watcher) == {}


@pytest.mark.full
def test_the_line_is_known_while_it_blocks(recorded, watcher, wait_for):
    """A stall report asks for it."""
    with running() as loop:
        known(watcher, loop, wait_for)
        assert not watcher.find_blocked()
        release = threading.Event()
        asyncio.run_coroutine_threadsafe(hold(release), loop)
        assert "in hold" in wait_for(watcher.find_blocked)
        release.set()
        wait_for(lambda: not watcher.find_blocked())


async def hold(release):
    release.wait()


def pause():
    time.sleep(0.012)


@pytest.mark.full
def test_many_callbacks_have_a_reason_of_their_own(recorded, watcher, wait_for):
    """A loop that is busy with many callbacks has no single culprit."""

    async def flood():
        loop = asyncio.get_running_loop()
        for _ in range(100):
            loop.call_soon(pause)

    with running() as loop:
        known(watcher, loop, wait_for)
        run(loop, flood())
        spans = wait_for(lambda: blocked(recorded, "pause"))
    assert "callbacks" in {span.attributes["reason"] for span in spans}


@pytest.mark.full
def test_closed_loops_are_forgotten(recorded, watcher, wait_for):
    """A loop that ended is not watched any more."""
    with running() as loop:
        known(watcher, loop, wait_for)
    wait_for(lambda: not watcher._states)


@pytest.mark.full
def test_an_idle_loop_is_seldom_asked(recorded, watcher, wait_for, monkeypatch):
    """A loop gets a callback each `PING_SECONDS`, and nothing else."""
    asked, ping = [], event_loops.LoopState.ping

    def count(state):
        asked.append(state.loop)
        return ping(state)

    monkeypatch.setattr(event_loops.LoopState, "ping", count)
    with running() as loop:
        begin = time.monotonic()
        known(watcher, loop, wait_for)
        wait_for(lambda: asked.count(loop) >= 5)
        number = asked.count(loop)
        assert number <= (time.monotonic() - begin) / event_loops.PING_SECONDS + 1


def test_in_a_process_without_spans_no_loop_is_asked(recorded, wait_for, monkeypatch):
    """The thread sleeps, and goes on when a drain has found a span; the time in which it slept is no pause."""
    monkeypatch.setattr(event_loops, "REST_SECONDS", 0.0)
    with running() as loop:
        watcher = event_loops.watch()
        try:
            known(watcher, loop, wait_for)
            wait_for(lambda: watcher._sleeps)
            state = next(each for each in watcher._states.values() if each.loop is loop)
            before = state.pinged
            with verl_otel.span("work"):
                watcher.note_activity()
                wait_for(lambda: state.pinged > before)
        finally:
            watcher.stop(10)
    assert "verl.process.paused" not in {span.name for span in recorded.spans}


def test_the_thread_is_awake_from_the_beginning_of_a_step(recorded, wait_for):
    """A drain would wake it up to a second later, and a pause before that would not be found. There is no loop."""
    watcher = event_loops.watch()
    try:
        wait_for(lambda: watcher._sleeps and watcher._pauses._checked)
        slept = watcher._pauses._checked
        with verl_otel.step(1):
            wait_for(lambda: watcher._pauses._checked > slept)
    finally:
        watcher.stop(10)


def test_after_a_step_the_thread_rests_later(recorded, watcher):
    """What the process of the step does between two steps has no spans, and its line has to be seen."""
    watcher.note_activity()
    before = watcher._active_until
    with verl_otel.step(1):
        pass
    watcher.note_activity()
    more = watcher._active_until - before
    assert more >= event_loops.STEP_REST_SECONDS - event_loops.REST_SECONDS


def test_a_loop_that_stops_in_its_callback_is_forgotten(watcher, wait_for, recorded):
    """A loop that ends without an answer keeps neither its place nor the frame of its callback, and its pause is not a blocked time."""
    loop = asyncio.new_event_loop()

    def block_and_stop():
        time.sleep(BLOCK)
        loop.stop()

    async def start():
        await asyncio.sleep(0.6)
        loop.call_soon(block_and_stop)
        await asyncio.sleep(60)

    task = loop.create_task(start())
    loop.run_forever()
    wait_for(lambda: all(state.loop is not loop for state in list(watcher._states.values())))
    assert watcher.find_blocked() == ""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    assert blocked(recorded, "block_and_stop") == []
