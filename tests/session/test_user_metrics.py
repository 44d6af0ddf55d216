# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Instruments and sources that do not answer hold nobody: not the drain, not a flush, not an exit."""

import threading
import time

import pytest

from verl_otel.exporting import own_opentelemetry

pytestmark = pytest.mark.full

SLOW = """
import signal, os, sys, time
import verl_otel
from verl_otel import session
from opentelemetry import metrics
verl_otel.init(metric_interval=100, drain_interval=0.05, exit_timeout=2)
def read(options):
    open("asked", "a").close()
    time.sleep(1000)
    return []
metrics.get_meter("mine").create_observable_gauge("my.gauge", callbacks=[read])
with verl_otel.span("first"):
    pass
deadline = time.monotonic() + 60
while not os.path.exists("asked") and time.monotonic() < deadline:
    time.sleep(0.01)
with verl_otel.span("second"):
    pass
began = time.monotonic()
{work}
print(time.monotonic() - began)
"""


@pytest.mark.parametrize("work", ["session.flush(1)", "verl_otel.shutdown()"])
def test_a_callback_that_hangs_holds_nothing(run, files, tmp_path, work):
    """What was recorded while the user's callback hangs is in the files, and a flush and an end take no longer than they may."""
    began = time.monotonic()
    result = run(SLOW.format(work=work))
    assert result.code == 0, result.err
    assert files(tmp_path / "runs" / "r1").names() == ["first", "second"]
    assert time.monotonic() - began < 100  # it sleeps for 1,000 s
    if result.out:
        assert float(result.out) < 20


class Reader:
    """Says how often it was asked; may be held."""

    def __init__(self, to):
        self.to, self.count, self.hold = to, 0, threading.Event()
        self.hold.set()

    def collect(self):
        self.count += 1
        count = self.count
        self.hold.wait(60)
        self.to.put(b"%d" % count)


def test_a_wish_during_a_collection_is_one_for_another():
    """What is collected just now may be older than the wish: who waits gets what was collected after it."""
    tested = own_opentelemetry.UserMetricsThread()
    reader = Reader(tested)
    reader.hold.clear()
    tested.begin((reader,))
    tested.begin((reader,))
    reader.hold.set()
    tested.wait(time.monotonic() + 60)
    assert (reader.count, tested.take()) == (2, [b"1", b"2"])


def test_who_does_not_wait_piles_up_nothing():
    """Collections that nobody takes are bounded, and one that hangs is not begun a second time."""
    tested = own_opentelemetry.UserMetricsThread()
    reader = Reader(tested)
    for _ in range(3 * own_opentelemetry.MAX_MESSAGES):
        tested.begin((reader,))
        tested.wait(time.monotonic() + 60)
    assert len(tested.take()) == own_opentelemetry.MAX_MESSAGES
    reader.hold.clear()
    before = reader.count
    for _ in range(100):
        tested.begin((reader,))
    assert threading.active_count() < 50
    tested.wait(time.monotonic())
    reader.hold.set()
    tested.wait(time.monotonic() + 60)
    assert reader.count <= before + 2


def test_an_interpreter_that_starts_no_thread_collects_at_once(monkeypatch):
    """CPython 3.12 starts none while a process ends: the last values are there nevertheless."""
    tested = own_opentelemetry.UserMetricsThread()

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    tested.begin((Reader(tested),))
    tested.wait(time.monotonic())
    assert tested.take() == [b"1"]
