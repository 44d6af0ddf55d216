# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""No call waits in its caller's thread for longer than ``docs/reference/bounds.md`` says, whichever thread holds a lock that it needs."""

import contextlib
import importlib.util
import os
import signal
import sys
import threading
import time
import types

import pytest

import verl_otel
from tests.fakes.fold_locks import hold
from verl_otel import session
from verl_otel.exporting.files import FileExporter
from verl_otel.integrations.ray import init_hook as ray_start
from verl_otel.integrations.verl import trainer
from verl_otel.recording import series
from verl_otel.session import lifecycle
from verl_otel.session.lifecycle import Current

pytestmark = pytest.mark.full

ROOM = 4.0
"""Seconds that a busy machine may add."""


@contextlib.contextmanager
def within(seconds):
    """Fail if the block takes longer, and the room that a busy machine needs."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds + ROOM


@contextlib.contextmanager
def held(lock):
    """Have another thread hold a lock."""
    taken, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    taken.wait()
    yield
    done.set()
    thread.join()


CALLS = {
    "flush": (lambda: session.flush(0.3), 0.3),
    "shutdown": (verl_otel.shutdown, 0.3 + 1.0),
    "open_now": (lambda: session.current_session().open_now(), 1.0),
    "wake": (session.wake, 0.0),
    "describe": (lambda: session.describe_resource({"a": 1}), 0.0),
    "a span": (lambda: verl_otel.span("x").__enter__().__exit__(None, None, None), 0.0),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_while_another_thread_drains_for_a_long_time(start, call):
    """Whatever the drain thread waits for, such as a file system that is gone, a caller is not held up by it."""
    start(drain_interval=0.05, exit_timeout=0.3)
    with verl_otel.span("x"):
        pass
    function, seconds = CALLS[call]
    with held(Current.session._collect_lock), within(seconds):
        function()


def test_an_exit_does_not_wait_for_a_file_system_that_does_not_answer(start, monkeypatch, caplog):
    """The files are closed on a thread that is left behind; the log says so."""
    monkeypatch.setattr(lifecycle, "FILE_SECONDS", 0.3)
    ended = threading.Event()
    monkeypatch.setattr(FileExporter, "close", lambda *_: ended.wait(60))
    start(drain_interval=0.05, exit_timeout=0.3)
    with verl_otel.span("x"):
        pass
    with within(0.3 + 0.3):
        verl_otel.shutdown()
    assert "does not answer: the last records may be missing" in caplog.text
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "verl-otel-end":
            thread.join(60)


def test_a_fold_waits_once_for_all_series():
    """The time to wait is that of the whole drain, not of each series."""
    held_series = [series.histogram("verl.phase.duration", (("verl.phase", f"p{number}"),)) for number in range(40)]
    with contextlib.ExitStack() as stack:
        for each in held_series:
            stack.enter_context(hold(each.lock))
        with within(0.2):
            thread = threading.Thread(target=series.fold_all, args=(0.2,))
            thread.start()
            thread.join(60)


def test_the_end_of_a_run_waits_no_longer_than_an_exit_may(start, monkeypatch):
    """``ray.shutdown`` and the end of ``fit`` leave the workers a drain, also with an interval of 20 s only the exit time-out."""
    start(drain_interval=20, exit_timeout=0.3)
    ray = types.ModuleType("ray")
    ray.init, ray.shutdown, ray.is_initialized = lambda: None, lambda: None, lambda: True
    ray._private = types.SimpleNamespace(
        worker=types.SimpleNamespace(WORKER_MODE=1, global_worker=types.SimpleNamespace(mode=0))
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_start, "_begin_job", lambda: None)
    monkeypatch.setattr(ray_start, "_note_earlier_actors", lambda ray: None)
    monkeypatch.setattr(ray_start.cluster, "remove", lambda: None)
    monkeypatch.setattr(
        Current.session.run, "_has_begun", False
    )  # the module that stands for Ray has no cluster to ask
    ray_start.patch_init(ray)
    with within(0.3 + 5.0):
        ray.shutdown()
    assert trainer._last_drain() == 0.3


def test_a_fork_waits_ten_seconds_at_most_for_imports_of_another_thread(monkeypatch):
    """A fork beside a start of telemetry that takes for long goes on, in parent and child."""
    from verl_otel import early_imports

    monkeypatch.setattr(early_imports, "FORK_WAIT", 0.2)
    with held(early_imports._Section.lock), within(0.2):
        child = os.fork()
        if not child:
            signal.alarm(20)
            with early_imports.hold_off_forks():
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_exporter_is_imported_before_any_fork():
    """What an exporter imports on the drain thread would hold import locks beside a fork; each has its modules in the list."""
    from verl_otel import early_imports
    from verl_otel.config import EXPORTERS

    assert set(early_imports._OF_EXPORTERS) == set(EXPORTERS) - {"none"}
    names = {*early_imports._EVERY_SESSION, *early_imports._WATCHDOG}.union(*early_imports._OF_EXPORTERS.values())
    assert not [name for name in names if name.startswith("verl_otel.") and importlib.util.find_spec(name) is None]
