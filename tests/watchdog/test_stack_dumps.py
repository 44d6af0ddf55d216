# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks of threads and tasks, as files and lines without values; signals reach only a process that is frozen in C code."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from verl_otel.system import procfs
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


# -- stacks of another process --

PROGRAM = """
import ctypes, os, re, signal, sys, threading, time
from pathlib import Path
from verl_otel.watchdog.stack_dumps import StackFile

file = StackFile(Path(sys.argv[1]))
file.open()

def drain():
    while True:
        time.sleep(0.05)

def wait_in_the_kernel():
    os.read(os.pipe()[0], 1)

def compute_in_python():
    while True:
        compute_a_little(20)

def compute_a_little(depth):
    return depth and compute_a_little(depth - 1)

def compute_in_c():
    time.sleep(0.2)  # until the main thread waits
    re.match("(a+)+b", "a" * 40)

def compute_in_c_without_signals():
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    compute_in_c()

def wait_in_c():
    time.sleep(0.2)
    print(ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1), flush=True)

drain_thread = threading.Thread(target=globals()[sys.argv[2]], daemon=True)
drain_thread.start()
threads = [threading.Thread(target=globals()[name], daemon=True) for name in sys.argv[3:]]
print(drain_thread.native_id, file.signal, flush=True)
for thread in threads:
    thread.start()

def wait_in_main():
    while True:
        time.sleep(0.01)

wait_in_main()
"""


@pytest.fixture
def start(tmp_path):
    """Start a process: ``start(drain, *functions)``. Returns it with its identity, the id of its drain thread, its signal, and its file."""
    processes = []

    def begin(*functions):
        path = tmp_path / "stacks.txt"
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, path, *functions], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        drain_thread, number = map(int, process.stdout.readline().split())
        return process, procfs.find_process(process.pid), drain_thread, number, path

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.full
def test_a_thread_that_computes_in_c_and_those_that_wait_for_it_are_shown(start, wait_for):
    """The stacks have the thread that holds the interpreter lock and the main thread, which waits for it."""
    process, identity, drain_thread, number, path = start("drain", "compute_in_c")
    names = (
        "in compute_in_c",
        "in wait_in_main",
    )  # more than one request, where the machine is so busy that the first one is cut short
    request = lambda: stack_dumps.request_by_signal(identity, drain_thread, number)  # noqa: E731
    wait_for(lambda: request() and all(name in path.read_text() for name in names), 20)
    assert process.poll() is None


@pytest.mark.full
@pytest.mark.parametrize("busy", [1, 2])
@pytest.mark.parametrize("drain", ["drain", "wait_in_the_kernel"])
def test_a_process_in_which_python_runs_gets_no_signal(start, drain, busy):
    """Whether its drain thread waits for a file or runs: a signal between two instructions of Python can end a process."""
    process, identity, drain_thread, number, path = start(drain, *["compute_in_python"] * busy)
    for _ in range(5):
        assert not stack_dumps.request_by_signal(identity, drain_thread, number)
    assert path.read_text() == ""
    assert process.poll() is None


@pytest.mark.full
def test_a_call_into_c_that_waits_is_not_interrupted(start, wait_for):
    """It holds the interpreter lock and reads: only those that wait for the lock are shown, and it reads what comes."""
    process, identity, drain_thread, number, path = start("drain", "wait_in_c")
    request = lambda: stack_dumps.request_by_signal(identity, drain_thread, number)  # noqa: E731
    wait_for(lambda: request() and "in wait_in_main" in path.read_text(), 60)
    assert "in wait_in_c" not in path.read_text()
    process.stdin.write("x")
    process.stdin.flush()
    assert process.stdout.readline() == "1\n"  # and not -1, as where a signal interrupts it


@pytest.mark.full
def test_a_process_that_is_gone_or_has_no_handler_gets_none(start, dead_pid):
    """Neither raises."""
    _, identity, drain_thread, _, _ = start("drain")
    assert not stack_dumps.request_by_signal(identity, drain_thread, 0)
    assert not stack_dumps.request_by_signal(procfs.Process(dead_pid, 1), dead_pid, 60)


def test_the_own_process_gets_none(monkeypatch):
    """The one that asks runs Python, whatever its threads look like. A jump of the clock makes it look silent."""
    monkeypatch.setattr(stack_dumps, "_waits_for_lock", lambda *_: True)
    monkeypatch.setattr(stack_dumps, "_takes_turns", lambda *_: False)
    monkeypatch.setattr(procfs, "send_signal", lambda *_: pytest.fail("sent"))
    assert not stack_dumps.request_by_signal(procfs.find_process(os.getpid()), threading.get_native_id(), 60)


@pytest.mark.full
def test_a_thread_that_blocks_the_signal_is_left_alone(start, wait_for):
    """The kernel would give its signal to another thread, whose system call would be interrupted."""
    _, identity, drain_thread, number, path = start("drain", "compute_in_c_without_signals")
    request = lambda: stack_dumps.request_by_signal(identity, drain_thread, number)  # noqa: E731
    wait_for(lambda: request() and "in wait_in_main" in path.read_text(), 20)
    assert "in compute_in_c" not in path.read_text()


@pytest.mark.full
def test_nothing_is_sent_once_the_lock_is_free(start, wait_for, monkeypatch):
    """The drain thread no longer waits for the lock after the first signal: the other threads are left alone."""
    _, identity, drain_thread, number, _ = start("drain", "compute_in_c")
    sent = []
    monkeypatch.setattr(procfs, "send_signal", lambda *arguments: sent.append(arguments) or True)
    monkeypatch.setattr(stack_dumps, "_count_wakes", lambda *_: 5)
    wait_for(lambda: stack_dumps.request_by_signal(identity, drain_thread, number), 20)
    assert len(sent) == 1
