# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What Ray's record of a dead actor says, and what is asked where there is no Ray."""

import pytest

from verl_otel.integrations import cluster_store
from verl_otel.integrations.ray import cluster
from verl_otel.watchdog import cluster_backend


@pytest.fixture
def records():
    """Ray's own definition of the record."""
    pytest.importorskip("ray", reason="Ray is not installed in this environment")
    from ray.core.generated import common_pb2

    return common_pb2


def died(records, reason, message):
    cause = records.ActorDeathCause()
    context = cause.actor_died_error_context
    context.error_message = message
    context.reason = context.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_name[reason].number
    return cause


LONG = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly "
    "exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL"
)


def test_a_death_that_nobody_wanted_is_told_in_a_few_words(records):
    """The detail without the list of guesses."""
    death = cluster.read_cause(died(records, "WORKER_DIED", LONG))
    assert death == (False, "Ray says: Worker unexpectedly exits with a connection error code 2. End of file.")


@pytest.mark.parametrize("reason", ["RAY_KILL", "OUT_OF_SCOPE", "OWNER_DIED"])
def test_an_end_that_somebody_wanted_is_no_crash(records, reason):
    """Killed by its job, not needed any more, or its owner is gone."""
    assert cluster.read_cause(died(records, reason, "ended")).expected


def test_the_memory_monitor_is_named(records):
    """Ray kills who takes too much memory, and says so."""
    cause = records.ActorDeathCause()
    cause.oom_context.error_message = "Task was killed due to the node running low on memory"
    death = cluster.read_cause(cause)
    assert not death.expected
    assert "out of memory" in death.text


def test_what_ray_does_not_know_is_no_answer(records):
    """No cause, or one of another kind."""
    assert cluster.read_cause(None) is None
    assert cluster.read_cause(records.ActorDeathCause()) is None


def test_without_a_cluster_nothing_is_asked(monkeypatch):
    """Neither Ray nor anybody else is there."""
    monkeypatch.setattr(cluster_store, "is_connected", lambda: False)
    assert cluster.BACKEND.explain("ab") is None
    assert cluster.BACKEND.read("r1") == []
    cluster.BACKEND.publish("r1", "here", {})
    cluster.BACKEND.clear("r1")


@pytest.mark.full
def test_a_cluster_that_does_not_answer_costs_a_moment(monkeypatch, swallow):
    """Who asks goes on without an answer, also when the question fails."""
    import threading

    monkeypatch.setattr(cluster_backend, "QUERY_SECONDS", 0.05)
    monkeypatch.setattr(cluster_backend._Current, "backend", cluster.BACKEND)
    release = threading.Event()
    assert cluster_backend.query(lambda _: release.wait(20)) is None
    release.set()
    assert cluster_backend.query(lambda _: 1 / 0) is None
    assert cluster_backend.query(lambda cluster: cluster) is cluster.BACKEND
