# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bell by which threads and signal handlers wake each other."""

import threading
import time

from verl_otel.session.bell import Bell


def test_a_ring_is_kept_for_who_waits_next_and_taken_once():
    """Ringing twice before anybody waits is one ring."""
    bell = Bell()
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0.01)


def test_a_ring_wakes_who_waits():
    """A thread that waits goes on at once."""
    bell = Bell()
    begin = time.monotonic()
    threading.Timer(0.05, bell.ring).start()
    assert bell.wait(20)
    assert time.monotonic() - begin < 10
