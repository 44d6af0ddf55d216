# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while all of them work: of a worker at most a second is gone, of the tiers nothing that was accepted."""

import pytest

from tests.collector.steady import find_units, read_ranks

BUDGET = 1.0
"""Seconds of its spans and points that a killed process may take with it (`VERL_OTEL_DRAIN_INTERVAL`)."""
SLACK = 0.5
"""What two busy cores may add to that before a thread that has woken up runs, and its request is taken."""


def test_a_killed_worker_loses_a_second_at_most(start_pipeline, start_prometheus, start_training, wait_for):
    """Three workers are killed while they record: what each had recorded a second before is there, spans and points, without a hole."""
    prometheus = start_prometheus("pushed_to")
    tiers = start_pipeline(
        "traces-to-file.yaml", "metrics-by-otlp.yaml",
        OTELCOL_TRACE_PERCENT="100", OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    workers = [start_training(tiers.agent.http_url, "trajectory", 0.01, name=f"w{n}", RANK=str(n)) for n in range(3)]
    for number, worker in enumerate(workers):
        worker.await_units(300 + 30 * number, 60)  # another moment of its second each
    killed = [worker.kill() for worker in workers]
    ended = [worker.times() for worker in workers]
    owed = [
        sum(when < moment - (BUDGET + SLACK) * 1e9 for when in times)
        for times, moment in zip(ended, killed, strict=True)
    ]
    assert min(owed) > 100

    def units():
        found = read_ranks(tiers.gateway.trace_file)
        return [find_units(found[f"r/agent_loop-{number}"]) for number in range(3)]

    wait_for(lambda: all(prometheus.total(instance=f"r/agent_loop-{n}") >= owed[n] for n in range(3)), 20, 0.3)
    wait_for(lambda: all(len(each) >= least for each, least in zip(units(), owed, strict=True)), 20, 0.3)
    for number, found in enumerate(units()):
        assert found >= set(range(1, owed[number] + 1)), "a hole, long before the end"


@pytest.mark.parametrize("victim", ["agent", "gateway"])
def test_a_tier_is_killed_under_load(
    start_tier, start_pipeline, start_prometheus, start_training, hasty, wait_for, victim
):
    """The agent or the gateway is killed while steps and counts come in, and comes back: every step and every point arrives.

    Only the pauses between retries of the two tiers are shorter than shipped. What was accepted and not yet acknowledged may come twice.
    """
    prometheus = start_prometheus("pushed_to")
    store = start_tier("store", ["local.yaml", "traces-to-file.yaml"])
    tiers = start_pipeline(
        "metrics-by-otlp.yaml", hasty.gateway, hasty.push, below=[hasty.agent],
        OTELCOL_TRACE_STORE=store.addresses["grpc"], OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    training = start_training(tiers.agent.http_url)
    training.await_units(200)
    killed = getattr(tiers, victim)
    killed.kill()
    training.await_units(300)
    killed.start()
    training.await_units(200)
    said = training.end()
    assert said["dropped"] == {"spans": {}, "points": {}}
    wait_for(lambda: prometheus.total() == said["recorded"], 60, 0.3)
    wait_for(lambda: find_units(store.spans()) == set(range(1, said["recorded"] + 1)), 60, 0.3)
