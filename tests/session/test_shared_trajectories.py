# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories of an own loop reach the process of their step over a cluster, which may not answer."""

import threading

import pytest

import verl_otel
from verl_otel.recording import own_loop
from verl_otel.recording.own_loop import EndedTrajectory, Shared
from verl_otel.session import shared_trajectories
from verl_otel.session.shared_trajectories import SharedTrajectories, decode, encode
from verl_otel.watchdog import cluster_backend

SENT = [Shared(1 << 127, 7, EndedTrajectory(0.5, 1.0, "math", {"llm": 0.25}, 3.0, "p1", False))]


class Cluster:
    """A cluster that keeps messages, and answers while its gate is open."""

    def __init__(self):
        self.messages, self.gate, self.connected = [], threading.Event(), True
        self.gate.set()

    def is_connected(self):
        return self.connected

    def send(self, run_id, message):
        assert self.gate.wait(60)
        self.messages.append(message)

    def take(self, run_id):
        assert self.gate.wait(60)
        taken, self.messages = self.messages, []
        return taken


@pytest.fixture
def cluster(monkeypatch, recorded):
    made = Cluster()
    monkeypatch.setattr(cluster_backend._Current, "backend", made)
    yield made
    made.gate.set()


def exchange_once():
    exchange = SharedTrajectories()
    exchange.exchange("r1")
    if exchange._thread is not None:
        exchange._thread.join(60)
    return exchange


def test_a_message_has_all_that_is_known():
    """Sent and read, trajectories are the same; what is no message of ours has none."""
    assert decode(encode(SENT)) == SENT
    for message in (b"", b"{}", b"[1]", b"[[]]", b'[["x", "y", 1, 1, "", [], 1, "", true, false]]'):
        assert decode(message) == []


def test_what_was_sent_arrives_at_the_step(cluster, recorded):
    """A process without steps sends, and the one with the step takes."""
    with verl_otel.step(1) as step:
        recorded.refresh()
        cluster.messages.append(encode([SENT[0]._replace(step=step.get_span_context().trace_id)]))
        exchange_once()
    exchange = exchange_once()
    recorded.refresh()
    exchange.take_last("r1")
    recorded.refresh()
    assert recorded.value("verl.rollout.tail.duration", verl_aggregate="max") == 0.5


def test_who_has_nothing_to_send_and_no_step_asks_nothing(cluster):
    """As each rank of a training does."""
    cluster.gate.clear()
    assert exchange_once()._thread is None


def test_a_cluster_that_does_not_answer_holds_nobody(cluster, recorded, monkeypatch):
    """The drain goes on, with one thread that waits; the end of the run waits for a bounded time, and reports no part of the step."""
    monkeypatch.setattr(shared_trajectories, "LAST_SECONDS", 0.01)
    cluster.gate.clear()
    exchange = SharedTrajectories()
    with verl_otel.step(1):
        exchange.exchange("r1")
        waiting = exchange._thread
        exchange.exchange("r1")
        assert exchange._thread is waiting
    exchange.take_last("r1")
    assert not own_loop.has_received()


def test_without_a_cluster_no_step_waits(cluster, recorded):
    """After `ray.shutdown`, too."""
    cluster.connected = False
    exchange_once()
    with verl_otel.step(1):
        pass
    recorded.refresh()
    assert not own_loop._Trajectories.incomplete
