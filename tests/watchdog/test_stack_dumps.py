# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks of threads and tasks, as files and lines without values."""

import asyncio
import os
import signal
import threading

import pytest

from verl_otel.watchdog import stack_dumps
from verl_otel.watchdog.stack_dumps import StackFile


@pytest.fixture
def stack_file(tmp_path):
    """The open file of this process."""
    dump = StackFile(tmp_path / "stacks.txt")
    dump.open()
    yield dump
    dump.close()


@pytest.fixture
def loop_thread():
    """Run a coroutine on an event loop in another thread until the test ends."""
    started, ended = [], []

    def run(coroutine):
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=lambda: (loop.run_until_complete(coroutine), loop.close()), name="the loop")
        thread.start()
        started.append(thread)

    yield run, ended.append
    for release in ended:
        release()
    for thread in started:
        thread.join(60)


async def inner(event):
    await event.wait()


async def outer(event):
    await inner(event)


def test_threads_and_tasks_are_shown_by_line(stack_file, loop_thread, wait_for):
    """A waiting thread by its innermost line, tasks down to what they await, equal ones counted; no value of a variable."""
    run, at_end = loop_thread
    events, secret = [], "secret-value"

    async def main():
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        at_end(lambda: loop.call_soon_threadsafe(event.set))
        tasks = [asyncio.create_task(outer(event), name=secret) for _ in range(3)]
        await asyncio.sleep(0)
        events.append(event)
        await asyncio.gather(*tasks)

    run(main())
    wait_for(lambda: events)
    stack_file.write()
    text = stack_file.path.read_text()
    assert "[the loop]" in text
    assert "Tasks of asyncio: 4" in text
    assert "3 tasks (most recent await last):" in text
    lines = text[text.index("3 tasks") :].splitlines()
    assert [line.rpartition(" in ")[2] for line in lines[1:4]] == ["outer", "inner", "wait"]
    assert secret not in text


def test_the_signal_writes_the_stacks_and_is_given_back(stack_file, wait_for):
    """The handler writes all threads; afterwards the signal is free again."""
    number = stack_file.signal
    os.kill(os.getpid(), number)
    wait_for(lambda: "most recent call first" in stack_file.path.read_text())
    stack_file.close()
    assert stack_file.path.exists()
    assert signal.getsignal(number) is signal.SIG_DFL
    again = StackFile(stack_file.path)
    again.open()
    assert again.signal == number
    again.close()


def test_an_empty_file_is_taken_away(stack_file):
    """Nobody asked: nothing is left."""
    stack_file.close()
    assert not stack_file.path.exists()


def test_the_file_is_bounded(stack_file, monkeypatch):
    """With many requests the file is truncated instead of growing."""
    monkeypatch.setattr(stack_dumps, "MAX_BYTES", 2000)
    for _ in range(30):
        stack_file.write()
    assert stack_file.path.stat().st_size < 20_000
