# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""At which line a step or a trajectory stood, by the clock that is given."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import verl_otel
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.watchdog import stack_dumps
from verl_otel.watchdog.event_loops import LoopWatcher


@pytest.fixture
def look(recorded, monkeypatch):
    """Look where everything stands, some seconds from now."""
    watcher = LoopWatcher(lambda: False)
    monkeypatch.setattr(RECORDER, "note_root", watcher.note_root)
    begin = clock()
    with ThreadPoolExecutor(1) as pool:  # whose frames are of the standard library, as a lock's or a queue's
        yield partial(pool.submit, lambda seconds: watcher.check(begin + seconds, 0.0))


def stays(recorded):
    """Function and seconds of what was recorded, and the id of the span that stood."""
    found = [span for span in recorded.spans if span.name == "verl.thread.stood"]
    return [
        (
            span.attributes["verl.blocked.line"].rpartition(" ")[2],
            pytest.approx((span.end_ns - span.start_ns) / 1e9, abs=0.01),
            [link.span_id for link in span.links],
        )
        for span in found
    ]


def write_dump(look, times):
    for seconds in times:
        look(seconds).result()


def test_the_line_of_the_trainer_is_recorded_when_it_goes_on(recorded, look):
    """Half an interval before the first look that saw it there, until half an interval before the first that did not."""
    with verl_otel.step(1):
        look(1.8).result()
        write_dump(look, (2.0, 2.5, 3.0))
        assert not stays(recorded)
        look(3.5).result()
    assert stays(recorded) == [("write_dump", 1.35, [])]


@pytest.mark.parametrize(("stays_before", "steps_between", "count"), [(5, 1, 5), (5, 20, 6), (1, 1, 2)])
def test_what_every_step_does_is_recorded_a_few_times(recorded, look, stays_before, steps_between, count):
    """A line at which each step stands for as long is usual; one that is seldom reached is not."""
    now = 0.0
    for number in range(stays_before + 1):
        for _ in range(steps_between if number == stays_before else 1):
            with verl_otel.step(number):
                pass
        look(now + 1.0).result()
        write_dump(look, (now + 2.0, now + 2.5))
        look(now + 3.0).result()
        now += 3.0
    assert [name for name, _, _ in stays(recorded)].count("write_dump") == count


def hold_back(stage):
    stage.entered.set()
    stage.release.wait(60)


async def wait_for_slot(stage):
    stage.entered.set()
    while not stage.release.is_set():  # noqa: ASYNC110 - another thread sets it
        await asyncio.sleep(0.001)


def test_a_task_that_waits_on_is_not_walked_again(recorded, look, monkeypatch):
    """While it waits for the same future it stands where it stood, and that is recorded in full."""
    walks = []
    walk = stack_dumps.walk_frames
    monkeypatch.setattr(stack_dumps, "walk_frames", lambda coroutine: walks.append(coroutine) or walk(coroutine))

    async def roll_out():
        with verl_otel.trajectory("u", 0):
            slot = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(write_dump, look, (60.0, 60.5, 61.0, 61.5))
            asyncio.get_running_loop().call_soon(slot.set_result, None)
            await slot
            await asyncio.sleep(0)
            look(62.0).result()

    asyncio.run(roll_out())
    assert len(walks) == 2
    assert [seconds for _, seconds, _ in stays(recorded)] == [1.75]


class Stage:
    """One place at which a trajectory stands."""

    def __init__(self):
        self.entered, self.release = threading.Event(), threading.Event()


@pytest.mark.parametrize("way", ["hold_back", "wait_for_slot"])
def test_the_line_of_a_trajectory_is_recorded_with_it(recorded, look, way):
    """In a thread where that is, in a task what it awaits."""
    ids, first, second = [], Stage(), Stage()

    def roll_out():
        with verl_otel.trajectory("u", 0) as span:
            ids.append(span.get_span_context().span_id)
            hold_back(first)
            second.entered.set()
            second.release.wait(60)

    async def roll_out_in_task():
        with verl_otel.trajectory("u", 0) as span:
            ids.append(span.get_span_context().span_id)
            await wait_for_slot(first)
            second.entered.set()
            while not second.release.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.001)

    thread = threading.Thread(target=roll_out if way == "hold_back" else lambda: asyncio.run(roll_out_in_task()))
    thread.start()
    assert first.entered.wait(60)
    for seconds in (60.0, 60.5, 61.0):
        look(seconds).result()
    first.release.set()
    assert second.entered.wait(60)
    look(61.5).result()
    second.release.set()
    thread.join(60)
    assert stays(recorded)[:1] == [(way, 1.25, ids)]
