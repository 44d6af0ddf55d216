# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGKILL: signals do what they do without telemetry; what is on disk afterwards."""

import os
import signal
import subprocess
import sys

import pytest

from verl_otel.session import signals

WORK = """
import os, signal, sys, time
import verl_otel
{before}
verl_otel.init({settings})
{after}
for number in range(100):
    with verl_otel.step(number):
        pass
print("ready", flush=True)
{work}
time.sleep(60)
"""


def script(before="", settings="drain_interval=60", after="", work=""):
    return WORK.format(before=before, settings=settings, after=after, work=work)


@pytest.fixture
def ready(spawn):
    """Start a script and return once it has recorded 100 steps."""

    def begin(code):
        process = spawn(code)
        line = process.stdout.readline()
        assert line == "ready\n", process.stderr.read()
        return process

    return begin


@pytest.mark.smoke
def test_sigterm_ends_a_process_at_once(ready, written, wait_for):
    """Without a handler of the user the signal ends the process, as without telemetry. What was drained is on disk."""
    process = ready(
        script(
            settings="drain_interval=0.05", work="print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)"
        )
    )
    assert process.stdout.readline() == "True\n"
    wait_for(lambda: len(written.names()) == 100 and written.last("verl.training.steps") == 100)
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM
    assert written.names() == ["verl.step"] * 100
    assert written.last("verl.training.steps") == 100


IN_C = """
import ctypes
libc, lock = ctypes.CDLL(None), (ctypes.c_byte * 64)()
libc.pthread_mutex_init(lock, None)
libc.pthread_mutex_lock(lock)
print("in C", flush=True)
libc.pthread_mutex_lock(lock)
"""


@pytest.mark.smoke
def test_sigterm_ends_a_process_in_a_call_into_c(ready):
    """As a rank that waits in a collective whose peer is gone: a handler of Python would never run there."""
    process = ready(script(work=IN_C))
    assert process.stdout.readline() == "in C\n"
    process.terminate()
    try:
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()


@pytest.mark.smoke
def test_the_handler_of_the_user_stays_the_only_one(ready, written):
    """It runs at once, with its own arguments. If it ends the program in order, everything is written at the exit."""
    before = """
def mine(number, frame):
    print("mine", number, frame is not None, flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, mine)
"""
    process = ready(script(before, work="print(signal.getsignal(signal.SIGTERM) is mine, flush=True)"))
    assert process.stdout.readline() == "True\n"
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert out == "mine 15 True\n"
    assert process.returncode == 7
    assert written.last("verl.training.steps") == 100


def test_a_signal_waits_until_telemetry_has_ended(monkeypatch):
    """A SIGTERM that arrives while the last data is written takes effect after that, as a worker of ``with Pool()`` gets it."""
    order = []
    before = signal.signal(signal.SIGTERM, lambda *_: order.append("handled"))
    try:
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            order.append("written")
        assert order == ["written", "handled"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert order == ["written", "handled", "handled"]
    finally:
        signal.signal(signal.SIGTERM, before)


HUNG_EXIT = """
import threading
from verl_otel.session.lifecycle import Session
def stop(self):
    print("stopping", flush=True)
    time.sleep(60)
Session.stop = stop
sys.exit(0)
"""


@pytest.mark.full
def test_sigterm_ends_a_process_whose_exit_takes_long(ready):
    """Without a handler the signal is not held up by the end of telemetry either, such as by a file system that does not respond."""
    process = ready(script(work=HUNG_EXIT))
    assert process.stdout.readline() == "stopping\n"
    process.terminate()
    assert process.wait(50) == -signal.SIGTERM


GRADED = """
import multiprocessing, os, sys, time
import verl_otel

def grade(begun):
    verl_otel.init(exporters="file", run_dir="runs", run_id="r1")
    with verl_otel.span("grade"):
        begun.set()
        max(range(10**13))

if __name__ == "__main__":
    verl_otel.init(exporters="file", run_dir="runs", run_id="r1")
    context = multiprocessing.get_context(sys.argv[1])
    begun = context.Event()
    child = context.Process(target=grade, args=(begun,))
    child.start()
    begun.wait()
    time.sleep(0.2)  # until it is in the call
    child.terminate()
    child.join(20)
    print(child.exitcode)
    child.kill()
"""


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_in_a_call_into_c_dies_of_the_signal(method, tmp_path):
    """As without telemetry: a parent that gives up on a child, such as one that runs code of a model, does not wait forever."""
    program = tmp_path / "graded.py"
    program.write_text(GRADED)
    command = [sys.executable, program, method]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "-15\n", done.stderr


@pytest.mark.smoke
def test_sigkill_leaves_what_was_open(ready, written, wait_for):
    """A killed process leaves the names of what it was doing, how old it was and what it had begun last."""
    work = """
outer = verl_otel.step(100).__enter__()
inner = verl_otel.phase("gen").__enter__()
with verl_otel.span("load"):
    pass
"""
    process = ready(script(settings="drain_interval=0.05", work=work))
    wait_for(lambda: sorted(written.names("open")) == ["verl.phase.gen", "verl.step"])
    process.kill()
    process.wait(60)
    step, phase = sorted(written.spans("open"), key=lambda span: span.name, reverse=True)
    assert (step.attributes["verl.step.number"], step.attributes["verl.open.last_child"]) == (100, "verl.phase.gen")
    assert phase.attributes["verl.open.last_child"] == "load"
    assert phase.parent == step.id
    assert step.attributes["verl.open.age"] >= phase.attributes["verl.open.age"] >= 1.0
    assert "load" in written.names()
