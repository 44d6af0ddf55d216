# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Signals for stacks: they reach threads of a process that is frozen in C code, and none of a process that runs."""

import os
import subprocess
import sys
import threading

import pytest

from verl_otel.system import procfs
from verl_otel.watchdog import stack_signals

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
    request = lambda: stack_signals.request(identity, drain_thread, number)  # noqa: E731
    wait_for(lambda: request() and all(name in path.read_text() for name in names), 20)
    assert process.poll() is None


@pytest.mark.full
@pytest.mark.parametrize("busy", [1, 2])
@pytest.mark.parametrize("drain", ["drain", "wait_in_the_kernel"])
def test_a_process_in_which_python_runs_gets_no_signal(start, drain, busy):
    """Whether its drain thread waits for a file or runs: a signal between two instructions of Python can end a process."""
    process, identity, drain_thread, number, path = start(drain, *["compute_in_python"] * busy)
    for _ in range(5):
        assert not stack_signals.request(identity, drain_thread, number)
    assert path.read_text() == ""
    assert process.poll() is None


@pytest.mark.full
def test_a_call_into_c_that_waits_is_not_interrupted(start, wait_for):
    """It holds the interpreter lock and reads: only those that wait for the lock are shown, and it reads what comes."""
    process, identity, drain_thread, number, path = start("drain", "wait_in_c")
    request = lambda: stack_signals.request(identity, drain_thread, number)  # noqa: E731
    wait_for(lambda: request() and "in wait_in_main" in path.read_text(), 60)
    assert "in wait_in_c" not in path.read_text()
    process.stdin.write("x")
    process.stdin.flush()
    assert process.stdout.readline() == "1\n"  # and not -1, as where a signal interrupts it


@pytest.mark.full
def test_a_process_that_is_gone_or_has_no_handler_gets_none(start, dead_pid):
    """Neither raises."""
    _, identity, drain_thread, _, _ = start("drain")
    assert not stack_signals.request(identity, drain_thread, 0)
    assert not stack_signals.request(procfs.Process(dead_pid, 1), dead_pid, 60)


def test_the_own_process_gets_none(monkeypatch):
    """The one that asks runs Python, whatever its threads look like. A jump of the clock makes it look silent."""
    monkeypatch.setattr(stack_signals, "_waits_for_lock", lambda *_: True)
    monkeypatch.setattr(stack_signals, "_takes_turns", lambda *_: False)
    monkeypatch.setattr(procfs, "send_signal", lambda *_: pytest.fail("sent"))
    assert not stack_signals.request(procfs.find_process(os.getpid()), threading.get_native_id(), 60)


@pytest.mark.full
def test_a_thread_that_blocks_the_signal_is_left_alone(start, wait_for):
    """The kernel would give its signal to another thread, whose system call would be interrupted."""
    _, identity, drain_thread, number, path = start("drain", "compute_in_c_without_signals")
    request = lambda: stack_signals.request(identity, drain_thread, number)  # noqa: E731
    wait_for(lambda: request() and "in wait_in_main" in path.read_text(), 20)
    assert "in compute_in_c" not in path.read_text()


@pytest.mark.full
def test_nothing_is_sent_once_the_lock_is_free(start, wait_for, monkeypatch):
    """The drain thread no longer waits for the lock after the first signal: the other threads are left alone."""
    _, identity, drain_thread, number, _ = start("drain", "compute_in_c")
    sent = []
    monkeypatch.setattr(procfs, "send_signal", lambda *arguments: sent.append(arguments) or True)
    monkeypatch.setattr(stack_signals, "_count_wakes", lambda *_: 5)
    wait_for(lambda: stack_signals.request(identity, drain_thread, number), 20)
    assert len(sent) == 1
