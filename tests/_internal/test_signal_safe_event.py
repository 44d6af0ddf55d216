# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bell by which threads and signal handlers wake each other."""

import threading
import time

import pytest

from verl_otel._internal.signal_safe_event import SignalSafeEvent

pytestmark = pytest.mark.full


def test_a_ring_is_kept_for_who_waits_next_and_taken_once():
    """Ringing twice before anybody waits is one ring."""
    event = SignalSafeEvent()
    assert not event.wait(0)
    event.set()
    event.set()
    assert event.wait(0)
    assert not event.wait(0.01)


def test_a_ring_wakes_who_waits():
    """A thread that waits goes on at once."""
    event = SignalSafeEvent()
    begin = time.monotonic()
    threading.Timer(0.05, event.set).start()
    assert event.wait(20)
    assert time.monotonic() - begin < 10
