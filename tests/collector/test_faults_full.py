# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Queues and disks that are full: what fits is kept, the excess is counted to the item, and everybody goes on afterwards."""

import subprocess

import pytest

from tests.collector.steady import await_equal, find_units


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB in memory; skipped where none may be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def small_queue(tmp_path):
    """Overlays with small queues and smaller requests: what is larger than a queue does not ever get in."""

    def make(exporter, spans=400):
        path = tmp_path / f"small-{exporter.partition('/')[0]}.yaml"
        queue = f"{{queue_size: {spans}, batch: {{min_size: 1, max_size: 100}}}}"
        path.write_text(f"exporters: {{{exporter}: {{sending_queue: {queue}}}}}")
        return path

    return make


def test_a_full_queue_of_the_gateway_hands_steps_back(
    start_tier, start_pipeline, start_training, small_queue, hasty, wait_for
):
    """While the trace store is away and the gateway's queue is full it takes no more steps, and says so; the agent keeps them, and all arrive."""
    store = start_tier("store", ["local.yaml", "traces-to-file.yaml"], run=False)
    tiers = start_pipeline(
        hasty.gateway, small_queue("otlp_grpc/traces"), below=[hasty.agent, small_queue("loadbalancing/traces", 500000)],
        OTELCOL_TRACE_STORE=store.addresses["grpc"],
    )  # fmt: skip
    training = start_training(tiers.agent.http_url)
    own = tiers.gateway.own
    wait_for(lambda: own("otelcol_exporter_enqueue_failed_spans") > 100, 30, 0.3)
    store.start()
    training.await_units(100)
    summary = training.end()
    await_equal(lambda: find_units(store.spans()), set(range(1, summary["recorded"] + 1)), 20)
    refused = own("otelcol_receiver_refused_spans")
    assert refused == own("otelcol_exporter_enqueue_failed_spans") > 100
    assert own("otelcol_receiver_accepted_spans") == own("otelcol_exporter_sent_spans") == 2 * summary["recorded"]


def test_a_full_queue_of_the_gateway_costs_trajectories(
    start_tier, start_pipeline, start_training, small_queue, hasty, wait_for
):
    """Trajectories were accepted before they were chosen: what does not fit into a full queue is lost, and counted to the span."""
    store = start_tier("store", ["local.yaml", "traces-to-file.yaml"], run=False)
    tiers = start_pipeline(
        hasty.gateway, small_queue("otlp_grpc/traces"), below=[hasty.agent, small_queue("loadbalancing/traces", 500000)],
        OTELCOL_TRACE_STORE=store.addresses["grpc"], OTELCOL_TRACE_PERCENT="100",
    )  # fmt: skip
    training = start_training(tiers.agent.http_url, "trajectory")
    own = tiers.gateway.own
    wait_for(lambda: own("otelcol_exporter_enqueue_failed_spans") > 100, 30, 0.3)
    store.start()
    wait_for(lambda: own("otelcol_exporter_sent_spans") > 400, 30, 0.3)
    training.await_units(100)
    summary = training.end()
    wait_for(lambda: own("otelcol_receiver_accepted_spans") == 2 * summary["recorded"], 30, 0.3)

    def accounted():
        # what comes after its trajectory was chosen is handed back by a full queue, and comes again
        lost = own("otelcol_exporter_enqueue_failed_spans") - own("otelcol_receiver_refused_spans")
        sent = own("otelcol_exporter_sent_spans")
        return lost + sent == 2 * summary["recorded"] and len(store.spans()) == sent

    wait_for(accounted, 60, 0.3)


def test_a_training_counts_what_no_queue_takes(
    start_pipeline, start_prometheus, start_training, small_queue, hasty, wait_for
):
    """The gateway is away, the agent's queue is full, and so is the training's: what it drops is in Prometheus afterwards, to the span."""
    prometheus = start_prometheus("pushed_to")
    tiers = start_pipeline(
        "traces-to-file.yaml", "metrics-by-otlp.yaml", hasty.gateway, hasty.push,
        below=[hasty.agent, small_queue("loadbalancing/traces", 1000)], OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    tiers.gateway.kill()
    training = start_training(tiers.agent.http_url, "step", 0.002, VERL_OTEL_MEMORY_MIB="1", FLUSH_SECONDS="60")
    wait_for(lambda: "queue full" in training.log.read_text(), 60, 0.3)
    training.await_units(4000)  # points may be the first that the queue does not take; spans follow
    tiers.gateway.start()
    training.await_units(300)
    summary = training.end()
    lost = summary["dropped"]["spans"]
    await_equal(lambda: len(tiers.gateway.spans()), 2 * summary["recorded"] - sum(lost.values()), 60)
    lost.pop("not sent before exit", 0)  # nobody hears of it but the log
    assert lost["queue full"] > 0
    query = prometheus.query
    await_equal(lambda: sum(value for _, value in query("verl_otel_spans_dropped_total")), sum(lost.values()), 20)
    await_equal(lambda: [value for _, value in query("user_things_total")], [summary["recorded"]], 20)


@pytest.mark.pipeline
def test_a_full_disk(start_pipeline, start_prometheus, start_training, small_disk, hasty, wait_for):
    """The agent's disk is full while the gateway is away: it refuses, the training keeps what it recorded, no process crashes, and all goes on with room.

    The Collector drops what it reads from its queue while the disk is full, and does not count it (collector/README.md). All that is recorded
    afterwards arrives.
    """
    prometheus = start_prometheus("pushed_to")
    tiers = start_pipeline(
        "traces-to-file.yaml", "metrics-by-otlp.yaml", hasty.gateway, hasty.push,
        below=[hasty.agent], agent={"OTELCOL_STATE_DIR": small_disk}, OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url,
    )  # fmt: skip
    tiers.gateway.kill()
    training = start_training(tiers.agent.http_url, "step", 0.002)
    (small_disk / "others").write_bytes(bytes(2_500_000))
    wait_for(lambda: tiers.agent.own("otelcol_receiver_refused_spans") > 0, 60, 0.3)
    assert "no space left on device" in tiers.agent.read_log()
    training.await_units(300)
    (small_disk / "others").unlink()
    late = len(training.times()) + 1
    tiers.gateway.start()
    training.await_units(100)
    summary = training.end()
    assert summary["dropped"] == {"spans": {}, "points": {}}
    query = prometheus.query
    await_equal(lambda: [value for _, value in query("user_things_total")], [summary["recorded"]])
    recorded = set(range(1, summary["recorded"] + 1))
    await_equal(
        lambda: {unit for unit in find_units(tiers.gateway.spans()) if unit >= late}, recorded - set(range(late))
    )
    assert find_units(tiers.gateway.spans()) <= recorded
