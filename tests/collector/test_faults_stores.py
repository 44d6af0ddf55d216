# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus and the trace store go away for a while: nothing is lost."""

import itertools

import pytest

from tests.collector.steady import find_units

OUTAGES = [pytest.param(8, id="8 s"), pytest.param(600, id="10 minutes", marks=pytest.mark.pipeline)]


def read_samples(prometheus, selector, seconds):
    """Return the times and the values of the samples of the one series that a selector finds, as they are stored."""
    (series,) = prometheus.ask("query", query=f"{selector}[{seconds}s]")["result"]
    return [(when, float(value)) for when, value in series["values"]]


@pytest.mark.parametrize("seconds", OUTAGES)
def test_nothing_is_lost_while_the_stores_are_away(
    start_tier, start_pipeline, start_prometheus, start_training, hasty, wait_for, seconds
):
    """Both stores are killed under load and come back: every step is there, the count is right, and the curve has no hole.

    In `make test` they are away for 8 s and retries come every second; with `make test-pipeline` for 10 minutes, as shipped.
    """
    prometheus = start_prometheus("pushed_to")
    store = start_tier("store", ["local.yaml", "traces-to-file.yaml"])
    quick = seconds < 60
    tiers = start_pipeline(
        "metrics-by-otlp.yaml", *((hasty.gateway, hasty.push) if quick else ()),
        OTELCOL_TRACE_STORE=store.addresses["grpc"], OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    training = start_training(tiers.agent.http_url, "step", 0.01)
    training.await_units(100)
    wait_for(lambda: prometheus.total() > 0 and store.spans(), 30, 0.2)
    prometheus.kill()
    store.kill()
    before = len(training.times())
    training.go_on(seconds)
    during = len(training.times()) - before
    prometheus.start()
    store.start()
    training.await_units(100)
    said = training.end()
    assert said["dropped"] == {"spans": {}, "points": {}}
    wait_for(lambda: prometheus.total() == said["recorded"], 120, 0.5)
    wait_for(lambda: find_units(store.spans()) == set(range(1, said["recorded"] + 1)), 120, 0.5)
    samples = read_samples(prometheus, "user_things_total", 3 * seconds + 120)
    steps = [right[1] - left[1] for left, right in itertools.pairwise(samples)]
    assert min(steps) >= 0
    assert max(steps) < during / 2, "the curve has a hole where Prometheus was away"
