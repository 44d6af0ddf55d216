# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs beside each other, processes that come back under the same name, and resumed runs: nothing counts twice, and every join finds one partner."""

import itertools

import pytest

from tests.collector.steady import await_equal, find_units, read_ranks

JOIN = "user_things_total * on (job, instance) group_left (host_name) target_info"


@pytest.fixture(params=["scrape", "push"])
def pipeline(request, start_watched, hasty):
    """An agent, a gateway and a Prometheus, which scrapes or is pushed to."""
    return start_watched(request.param, "traces-to-file.yaml", hasty.gateway, below=[hasty.agent])


def read_values(prometheus, selector="user_things_total"):
    """Return the values of each series, in the order of time, as they are stored."""
    found = prometheus.ask("query", query=f"{selector}[10m]")["result"]
    return [[float(value) for _, value in series["values"]] for series in found]


def add_up(values):
    """Return what a counter has counted over its restarts: the sum of its tops."""
    tops = [left for left, right in itertools.pairwise(values) if right < left]
    return sum(tops) + values[-1]


def test_a_process_that_comes_back_continues_its_series(pipeline, start_training, wait_for):
    """A process ends, and another with its name counts from 0: one series with one reset, which adds up, and one target_info to join."""
    prometheus, counts = pipeline.prometheus, []
    for number, units in enumerate((250, 100)):
        training = start_training(pipeline.agent.http_url, name=f"attempt{number}")
        training.await_units(units)
        counts.append(training.end()["recorded"])
        await_equal(lambda: [value for _, value in prometheus.query("user_things_total")], counts[-1:])
    (values,) = read_values(prometheus)
    assert add_up(values) == sum(counts)
    ((labels, joined),) = prometheus.query(JOIN)
    assert joined == counts[-1]
    assert labels["host_name"]
    wait_for(lambda: len(pipeline.gateway.spans()) == 2 * sum(counts), 30, 0.3)


def test_runs_beside_each_other_stay_apart(pipeline, start_training, wait_for):
    """Two runs with processes of the same names and ranks have each their own series and spans."""
    trainings = {
        (run, rank): start_training(pipeline.agent.http_url, name=f"{run}{rank}", VERL_OTEL_RUN_ID=run, RANK=str(rank))
        for run in ("a", "b")
        for rank in range(2)
    }
    for training in trainings.values():
        training.await_units(150)
    counts = {f"{run}/trainer-{rank}": each.end()["recorded"] for (run, rank), each in trainings.items()}
    prometheus = pipeline.prometheus

    def read():
        return {labels["instance"]: value for labels, value in prometheus.query("user_things_total")}

    await_equal(read, counts)
    assert len(prometheus.query(JOIN)) == 4
    for run in ("a", "b"):
        ((_, value),) = prometheus.query(f'sum(user_things_total{{verl_run_id="{run}"}})')
        assert value == sum(count for name, count in counts.items() if name.startswith(run))
    wait_for(lambda: len(pipeline.gateway.spans()) == 2 * sum(counts.values()), 30, 0.3)
    assert {name: len(find_units(spans)) for name, spans in read_ranks(pipeline.gateway.trace_file).items()} == counts
