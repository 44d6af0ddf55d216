# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings on a real Ray of three nodes with ``verl-otel stack --cluster``: each mode, several nodes, several trainings, and what can go wrong."""

import json
import urllib.parse

import pytest

from tests.builders.training_logs import find_unexpected
from tests.collector import ray_bed
from tests.collector.nodes import find_hindrance
from tests.collector.tiers import fetch

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytest.importorskip("verl", reason="verl is not installed in this environment")
pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def cluster(programs, tmp_path_factory):
    """Three nodes; skipped where there can be none."""
    hindrance = find_hindrance()
    if hindrance:
        pytest.skip(f"no network namespaces here: {hindrance}")
    with ray_bed.start_cluster(tmp_path_factory.mktemp("ray"), ("node-b", "node-c"), dashboard=True) as made:
        yield made


@pytest.fixture(scope="module")
def stack(cluster, tmp_path_factory):
    with ray_bed.start_stack(tmp_path_factory.mktemp("stack"), cluster.address) as running:
        yield running


def find_engines(stack, run="", up=1):
    """Return the names of the engines of a run that are up, or not."""
    found = ray_bed.query(stack, f'up{{verl_role="llm_server", verl_run_id=~"{run}.*"}} == {up}')
    return {labels["instance"] for labels, _ in found}


def find_nodes(stack, health):
    """Return the addresses of the nodes whose engines Prometheus sees as ``up`` or ``down``."""
    targets = json.loads(fetch(f"{stack.prometheus}/api/v1/targets?state=active"))["data"]["activeTargets"]
    return {
        urllib.parse.urlsplit(target["scrapeUrl"]).hostname
        for target in targets
        if target["labels"].get("verl_role") == "llm_server" and target["health"] == health
    }


def await_engines(stack, training, process, wait_for, count=1):
    """Wait until this many engines of a training are up; those of the training before may still be, too."""

    def are_up():
        has_begun = list((training.out / "runs").glob("*/run.json"))
        return has_begun and len(find_engines(stack, training.folder.name)) == count

    wait_for(lambda: are_up() or process.poll() is not None, 400, 1)
    assert process.poll() is None, training.log[-4000:]


def await_processes(stack, training, wait_for):
    """Wait until Prometheus has each process that has written metrics; returns the labels of all."""
    written = ray_bed.read_instances(training)
    query = f'last_over_time(target_info{{job="verl", verl_run_id="{training.folder.name}"}}[1h])'

    def find():
        found = [labels for labels, _ in ray_bed.query(stack, query)]
        return found if {labels["instance"] for labels in found} >= written else None

    return wait_for(find, 60, 1)


@pytest.mark.parametrize(("mode", "steps", "engines"), [("separate_async", 3, 2), ("fully_async", 8, 1)])
def test_asynchronous_trainings(cluster, stack, tmp_path, wait_for, mode, steps, engines):
    """By ``ray job submit``, with a rollout on a node of its own: each process and each engine is found, and totals are as the bed counted them."""
    with ray_bed.submit_training(tmp_path, cluster, steps=steps, nodes=1, mode=mode) as (training, process):
        await_engines(stack, training, process, wait_for, engines)
        assert process.wait(600) == 0, training.log[-4000:]
    assert find_unexpected(training.log) == []
    processes = await_processes(stack, training, wait_for)
    assert len({labels["host_name"] for labels in processes}) >= 2
    ray_bed.await_totals(stack, training, wait_for, steps)


def test_two_trainings_at_the_same_time_are_two_runs(cluster, stack, tmp_path, wait_for):
    """The first one ends and its engine is no target any more; the other one is scraped on. Each has its own totals."""
    # Not a v1 trainer: the jobs of one cluster share the actors of TransferQueue, which the first job that ends stops.
    options = {"nodes": 1, "mode": "legacy"}
    with (
        ray_bed.start_training(tmp_path / "long", cluster.address, **options, **ray_bed.hold()) as (long, other),
        ray_bed.start_training(tmp_path / "short", cluster.address, **options) as (short, process),
    ):
        assert process.wait(600) == 0, short.log[-3000:]
        wait_for(lambda: find_engines(stack, long.folder.name) or other.poll() is not None, 200, 1)
        ended = short.folder.name
        wait_for(lambda: not find_engines(stack, ended) and not find_engines(stack, ended, up=0), 120, 1)
        wait_for(
            lambda: len(find_engines(stack, long.folder.name)) == 1, 60, 1
        )  # on a busy machine one scrape may time out
        assert other.poll() is None, long.log[-3000:]
        ray_bed.release(long)
        assert other.wait(600) == 0, long.log[-3000:]
    assert short.folder.name != long.folder.name
    ray_bed.await_totals(stack, short, wait_for)
    ray_bed.await_totals(stack, long, wait_for)


def test_a_killed_node_is_seen_and_the_stack_goes_on(cluster, stack, tmp_path, wait_for):
    """The engine of that node is down, the other two are scraped; when the training has ended none is a target."""
    with ray_bed.start_training(tmp_path, cluster.address, steps=200, nodes=3) as (training, process):
        await_engines(stack, training, process, wait_for, 3)
        nodes = {node.address for node in (cluster.head, *cluster.others)}
        wait_for(lambda: find_nodes(stack, "up") == nodes, 60, 1)
        cluster.second.stop()
        gone = {cluster.second.address}
        # on a busy machine a scrape of another node may time out once
        wait_for(lambda: (find_nodes(stack, "down"), find_nodes(stack, "up")) == (gone, nodes - gone), 120, 1)
    wait_for(lambda: not find_engines(stack) and not find_engines(stack, up=0), 120, 1)
    assert stack.process.poll() is None
    cluster.start_second()
