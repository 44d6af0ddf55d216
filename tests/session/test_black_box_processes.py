# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of processes, and that nobody is sent a signal who does not wait for it."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from verl_otel.session.black_box import processes
from verl_otel.session.black_box.processes import Process

PREPARED = """
import faulthandler, signal, sys, time
number = int(sys.argv[1])
file = open(sys.argv[2], "a")
faulthandler.register(number, file=file, all_threads=True, chain=False)
print("ready", flush=True)
time.sleep(600)
"""
NUMBER = signal.SIGRTMAX - 4


@pytest.fixture
def sleeper():
    """A process that sleeps and is prepared for nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"], stdout=-1
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def prepared(tmp_path):
    """A process with a handler for the signal."""
    process = subprocess.Popen([sys.executable, "-c", PREPARED, str(int(NUMBER)), tmp_path / "stacks"], stdout=-1)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_its_id_and_its_start(sleeper, wait_for):
    """The same id with another start is somebody else: gone."""
    found = processes.find(sleeper.pid)
    wait_for(lambda: processes.state(found) == "sleeping")
    assert processes.state(found._replace(start=found.start + 1)) == processes.GONE


def test_a_process_that_ended_and_was_not_reaped_is_gone(sleeper, wait_for):
    """A zombie has an id and does nothing any more."""
    found = processes.find(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    wait_for(lambda: processes.state(found) == processes.GONE)
    assert processes.find(sleeper.pid) is None


def test_a_stopped_process_is_called_so(sleeper, wait_for):
    """SIGSTOP shows."""
    found = processes.find(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_for(lambda: processes.state(found) == "stopped")


def test_an_unprepared_process_is_never_signalled(sleeper):
    """A real-time signal would kill it: it is not sent."""
    assert not processes.send(processes.find(sleeper.pid), NUMBER)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.2)


def test_a_prepared_process_is_signalled_and_lives(prepared, tmp_path, wait_for):
    """One that has a handler writes its stacks and goes on."""
    assert processes.send(processes.find(prepared.pid), NUMBER)
    wait_for(lambda: "most recent call first" in (tmp_path / "stacks").read_text())
    assert prepared.poll() is None


def test_a_process_that_got_the_id_of_another_is_not_signalled(prepared):
    """The id fits and there is a handler, but it was started at another time."""
    found = processes.find(prepared.pid)
    assert not processes.send(Process(found.pid, found.start - 1), NUMBER)


def test_who_is_gone_or_has_no_signal_is_not_signalled(dead_pid, prepared):
    """No process, no signal."""
    assert not processes.send(Process(dead_pid, 1), NUMBER)
    assert not processes.send(processes.find(prepared.pid), 0)


def test_without_handles_of_processes_it_is_as_careful(prepared, sleeper, monkeypatch, tmp_path, wait_for):
    """A Python that was built for old kernels sends by id, after the same look."""
    monkeypatch.delattr(os, "pidfd_open")
    assert not processes.send(processes.find(sleeper.pid), NUMBER)
    assert processes.send(processes.find(prepared.pid), NUMBER)
    wait_for((tmp_path / "stacks").read_text)


def test_a_place_is_a_part_of_the_names_of_files(monkeypatch):
    """Whatever a node is called, one file of the folder has its place in its name, with the space of its processes if it is known."""
    monkeypatch.setattr(socket, "gethostname", lambda: "../a node/1")
    assert re.fullmatch(r"_a_node_1-\d{2,}", processes.read_place())
    monkeypatch.setattr(processes, "read_space", lambda: "")
    assert processes.read_place() == "_a_node_1-0"


def test_a_free_signal_is_one_that_nobody_uses(monkeypatch):
    """A signal with a handler is passed over; so is one that is ignored."""
    first = processes.find_free_signal()
    assert signal.SIGRTMIN < first <= signal.SIGRTMAX
    before = signal.signal(first, signal.SIG_IGN)
    try:
        second = processes.find_free_signal()
        assert second != first
    finally:
        signal.signal(first, before)
    assert processes.find_free_signal() == first


def test_memory_and_outputs_are_those_of_the_kernel(sleeper, tmp_path):
    """Resident memory of a Python is more than a MiB; of nobody it is 0; outputs are regular files only."""
    assert processes.read_memory(sleeper.pid) > 1 << 20
    assert processes.read_memory(1 << 30) == 0
    code = "from verl_otel.session.black_box import processes; import sys; sys.stderr.write(repr(processes.read_outputs()))"
    with (tmp_path / "errors.log").open("w") as errors:
        subprocess.run([sys.executable, "-c", code], stderr=errors, stdout=subprocess.PIPE, check=True)
    assert (tmp_path / "errors.log").read_text() == repr([str(tmp_path / "errors.log")])


def test_the_kernels_kills_are_a_number():
    """Whatever this machine's control groups are, the answer is a number."""
    assert processes.count_kills() >= 0


def test_a_thread_that_waits_for_a_disk_is_told_from_others(monkeypatch):
    """The kernel's D, of that thread alone."""
    mine = processes.find(os.getpid())
    assert not processes.waits_for_device(mine, threading.get_native_id())
    assert not processes.waits_for_device(mine, 0)
    read = processes._read
    stuck = f"/proc/{mine.pid}/task/17/stat"
    monkeypatch.setattr(processes, "_read", lambda path: "17 (a) b) D" + " 1" * 20 if path == stuck else read(path))
    assert processes.waits_for_device(mine, 17)
