# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The registry of process state: which callbacks run when, and in which order; the event that signal handlers may set."""

import json
import threading
import time
from pathlib import Path

import pytest

import verl_otel
from verl_otel._internal import process_state

SCRIPT = """
import json, os
from verl_otel._internal import process_state

calls = []
for name in "ab":
    process_state.register(
        before_fork=lambda name=name: calls.append(f"before {name}"),
        after_fork_in_parent=lambda name=name: calls.append(f"parent {name}"),
        after_fork=lambda name=name: calls.append(f"child {name}"),
    )
reader, writer = os.pipe()
if not os.fork():
    os.write(writer, json.dumps(calls).encode())
    os._exit(0)
os.wait()
print(json.dumps([calls, json.loads(os.read(reader, 1000))]))
"""


@pytest.fixture
def holders(monkeypatch):
    """Register to a list of this test only."""
    monkeypatch.setattr(process_state, "_holders", [])


@pytest.mark.full
def test_fork_callbacks_run_in_the_order_of_the_interpreter(clean_python):
    """Before a fork the last registered runs first; afterwards the first one does, in parent and child."""
    parent, child = json.loads(clean_python("-c", SCRIPT).stdout)
    assert parent == ["before b", "before a", "parent a", "parent b"]
    assert child == ["before b", "before a", "child a", "child b"]


def test_a_session_clears_records_and_a_test_resets_all(holders):
    """`clear_records` leaves what outlives a session; `reset_all` discards both, the records first."""
    calls = []
    process_state.register(reset=lambda: calls.append("reset"), clear=lambda: calls.append("clear"))
    process_state.clear_records()
    assert calls == ["clear"]
    process_state.reset_all()
    assert calls == ["clear", "clear", "reset"]


def test_a_callback_that_raises_keeps_none_of_the_others_from_running(holders):
    """Every callback runs; the first exception is raised when all have."""
    calls = []

    def fail():
        calls.append("failed")
        raise KeyError("first")

    process_state.register(clear=fail)
    process_state.register(clear=lambda: 1 / 0)
    process_state.register(clear=lambda: calls.append("cleared"))
    with pytest.raises(KeyError, match="first"):
        process_state.clear_records()
    assert calls == ["failed", "cleared"]


def test_no_module_registers_a_fork_handler_of_its_own():
    """Only the registry does, and the session, which restarts after the handlers of the libraries that it imports."""
    top = Path(verl_otel.__file__).parent
    modules = {str(path.relative_to(top)) for path in top.rglob("*.py") if "os.register_at_fork(" in path.read_text()}
    assert modules == {"_internal/process_state.py", "session/__init__.py"}


@pytest.mark.full
def test_a_ring_is_kept_for_who_waits_next_and_taken_once():
    """Ringing twice before anybody waits is one ring."""
    event = process_state.SignalSafeEvent()
    assert not event.wait(0)
    event.set()
    event.set()
    assert event.wait(0)
    assert not event.wait(0.01)


@pytest.mark.full
def test_a_ring_wakes_who_waits():
    """A thread that waits goes on at once."""
    event = process_state.SignalSafeEvent()
    begin = time.monotonic()
    threading.Timer(0.05, event.set).start()
    assert event.wait(20)
    assert time.monotonic() - begin < 10
