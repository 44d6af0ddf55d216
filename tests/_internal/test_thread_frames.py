# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The frames of all threads: read without a deadlock."""

import gc
import subprocess
import sys
import threading

import pytest

from verl_otel._internal import thread_frames

PROGRAM = """
import threading, time
from verl_otel.watchdog import stack_dumps

class Cycle:
    def __init__(self):
        self.self = self
        self.local = threading.local()
        self.local.value = 1

def work():
    def descend(depth):
        return depth and descend(depth - 1)
    while True:
        descend(5)
        time.sleep(0)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
end = time.monotonic() + 3
while time.monotonic() < end:
    for _ in range(30):
        Cycle()
    stack_dumps.find_running_loops()
print("done")
"""


@pytest.mark.full
def test_garbage_with_thread_locals_does_not_stop_the_process():
    """Cycles with a `threading.local` are made all the time. Collected while CPython 3.11 lists the frames, they stop every thread."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="only CPython 3.11 has the deadlock")
def test_no_collection_begins_while_the_frames_are_read(monkeypatch):
    """The collector is off just then."""
    states = []
    monkeypatch.setattr(sys, "_current_frames", lambda: states.append(gc.isenabled()) or {})
    assert thread_frames.read() == {}
    assert states == [False]


def test_the_collector_is_as_before():
    """It is on again, or still off; this thread is among those that are returned."""
    assert threading.get_ident() in thread_frames.read()
    assert gc.isenabled()
    gc.disable()
    try:
        thread_frames.read()
        assert not gc.isenabled()
    finally:
        gc.enable()
