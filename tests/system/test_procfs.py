# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Identity, state and memory of processes; a signal is only sent to a process with a handler."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from verl_otel.system import procfs
from verl_otel.system.procfs import Process

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


@pytest.mark.full
def test_a_process_is_its_id_and_its_start(sleeper, wait_for):
    """The same id with another start is another process: gone."""
    process = procfs.find_process(sleeper.pid)
    wait_for(lambda: procfs.read_state(process) == "sleeping")
    assert procfs.read_state(process._replace(start=process.start + 1)) == procfs.GONE


@pytest.mark.full
def test_a_process_that_ended_and_was_not_reaped_is_gone(sleeper, wait_for):
    """A zombie has an id and does nothing any more."""
    process = procfs.find_process(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    wait_for(lambda: procfs.read_state(process) == procfs.GONE)
    assert procfs.find_process(sleeper.pid) is None


@pytest.mark.full
def test_a_stopped_process_is_called_so(sleeper, wait_for):
    """SIGSTOP shows."""
    process = procfs.find_process(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_for(lambda: procfs.read_state(process) == "stopped")


@pytest.mark.full
def test_an_unprepared_process_is_never_signalled(sleeper):
    """A real-time signal would kill it: it is not sent."""
    assert not procfs.send_signal(procfs.find_process(sleeper.pid), NUMBER)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.2)


@pytest.mark.full
def test_a_prepared_process_is_signalled_and_lives(prepared, tmp_path, wait_for):
    """One that has a handler writes its stacks and goes on."""
    assert procfs.send_signal(procfs.find_process(prepared.pid), NUMBER)
    wait_for(lambda: "most recent call first" in (tmp_path / "stacks").read_text())
    assert prepared.poll() is None


@pytest.mark.full
def test_a_process_that_got_the_id_of_another_is_not_signalled(prepared):
    """The id fits and there is a handler, but it was started at another time."""
    process = procfs.find_process(prepared.pid)
    assert not procfs.send_signal(Process(process.pid, process.start - 1), NUMBER)


@pytest.mark.full
def test_who_is_gone_or_has_no_signal_is_not_signalled(dead_pid, prepared):
    """No process, no signal."""
    assert not procfs.send_signal(Process(dead_pid, 1), NUMBER)
    assert not procfs.send_signal(procfs.find_process(prepared.pid), 0)


@pytest.mark.full
def test_without_handles_of_processes_it_is_as_careful(prepared, sleeper, monkeypatch, tmp_path, wait_for):
    """A Python that was built for old kernels sends by id, after the same look."""
    monkeypatch.delattr(os, "pidfd_open")
    assert not procfs.send_signal(procfs.find_process(sleeper.pid), NUMBER)
    assert procfs.send_signal(procfs.find_process(prepared.pid), NUMBER)
    wait_for((tmp_path / "stacks").read_text)


def test_children_are_those_of_the_parents_that_are_asked_for():
    """This process is a child of its parent, and runs some program; no other process has a known parent."""
    assert os.getpid() in procfs.list_children({os.getppid()})
    assert procfs.list_children(set()) == []
    assert procfs.read_program(os.getpid())


def test_a_place_is_a_part_of_the_names_of_files(monkeypatch):
    """Whatever a node is called, one file of the folder has its place in its name, with the space of its processes if it is known."""
    monkeypatch.setattr(socket, "gethostname", lambda: "../a node/1")
    assert re.fullmatch(r"_a_node_1-[0-9a-f]{8}", procfs.read_node_name())


def test_a_free_signal_is_an_unused_one(monkeypatch):
    """A signal with a handler is passed over; so is one that is ignored."""
    first = procfs.find_free_signal()
    assert signal.SIGRTMIN < first <= signal.SIGRTMAX
    before = signal.signal(first, signal.SIG_IGN)
    try:
        second = procfs.find_free_signal()
        assert second != first
    finally:
        signal.signal(first, before)
    assert procfs.find_free_signal() == first


@pytest.mark.full
def test_memory_and_outputs_are_those_of_the_kernel(sleeper, tmp_path):
    """Resident memory of a Python is more than a MiB; without a process it is 0; outputs are regular files only."""
    assert procfs.read_memory(sleeper.pid) > 1 << 20
    assert procfs.read_memory(1 << 30) == 0
    code = "from verl_otel.system import procfs; import sys; sys.stderr.write(repr(procfs.read_output_files()))"
    with (tmp_path / "errors.log").open("w") as errors:
        subprocess.run([sys.executable, "-c", code], stderr=errors, stdout=subprocess.PIPE, check=True)
    assert (tmp_path / "errors.log").read_text() == repr([str(tmp_path / "errors.log")])


def test_an_output_in_a_closed_folder_is_no_output(monkeypatch):
    """A descriptor that was opened by another user, as by `sudo` or a service: the path cannot be looked at."""

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(procfs.os, "readlink", lambda _: "/closed/log.txt")
    monkeypatch.setattr(procfs.Path, "is_file", refuse)
    assert procfs.read_output_files() == []


def test_the_kernels_kills_are_a_number():
    """Whatever this machine's control groups are, the answer is a number."""
    assert procfs.count_oom_kills() >= 0


def test_a_thread_that_waits_for_a_disk_is_told_from_others(monkeypatch):
    """The kernel's D, of that thread alone."""
    own_process = procfs.find_process(os.getpid())
    assert not procfs.waits_for_device(own_process, threading.get_native_id())
    assert not procfs.waits_for_device(own_process, 0)
    read = procfs._read
    stuck = f"/proc/{own_process.pid}/task/17/stat"
    monkeypatch.setattr(procfs, "_read", lambda path: "17 (a) b) D" + " 1" * 20 if path == stuck else read(path))
    assert procfs.waits_for_device(own_process, 17)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_who_listens_at_a_port(family, address):
    """The user of the process that accepts connections; of a port that is only bound, and of one that is free, none."""
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip("this machine has no address of this family")
        port = listener.getsockname()[1]
        assert procfs.find_listener(port) is None
        listener.listen()
        assert procfs.find_listener(port) == os.getuid()
    assert procfs.find_listener(port) is None
