# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated run: its parts do what they say, and the table in the guide is that of the committed results."""

import json

import pytest

from benchmarks.scale import __main__ as scale
from benchmarks.scale import probes, shape, table


def test_the_guide_has_the_committed_results():
    """No figure in the guide was changed by hand, and every part has figures."""
    results = json.loads(scale.RESULTS.read_text())
    assert table.render(results) in scale.PAGE.read_text()
    assert set(results["parts"]) == set(probes.PROBES)


def test_what_is_kept_is_the_newest_part_and_the_compressed_rest():
    """The files of a process hold 128 MiB as they are, and the rest of 1 GiB compressed."""
    assert table.steps_kept(1 << 20, 1.0) == 1024
    assert table.steps_kept(1 << 20, 10.0) == 128 + 8960


def test_a_gateway_holds_the_trajectories_in_flight():
    """The memory limit is what the formula of the Collector's page says."""
    assert table.gateway_mib(8192, 30) == pytest.approx((150 + 8192 * 0.95 * 30 * 4.5 / 1024) / 0.8)


def test_the_series_are_those_of_the_guide(tmp_path):
    """Each GPU and each node adds as many as there; every process of the run is counted."""
    found = probes.series(tmp_path)
    assert found["processes_1024"] == shape.PROCESSES
    assert found["own_1024"] - found["own_64"] == 42 * (1024 - 64) + 4 * (128 - 8)


@pytest.mark.full
@pytest.mark.parametrize(("part", "name"), [("worker", "WORKER_STEPS"), ("trainer", "TRAINER_STEPS")])
def test_steps_are_measured(monkeypatch, part, name, run_part):
    """A step has CPU time and bytes, and the older lines are compressed."""
    figures = run_part(part, f"probes.{name} = 8")
    assert figures["steps"] == 8
    assert figures["cpu_seconds"] > 0
    assert figures["bytes"] > (60 * shape.PER_WORKER * 32 if part == "worker" else 60 * shape.TRAJECTORIES)
    assert figures["ratio"] > 3


@pytest.mark.full
def test_a_watcher_watches_its_node_only(run_part):
    """Of the same number of processes, those of another node are not watched."""
    figures = run_part("watcher", "probes.PEERS = 50; probes.CHECKS = 2")
    assert (figures["watched_here"], figures["watched_elsewhere"]) == (50, 0)


@pytest.mark.full
def test_all_targets_are_in_the_file(run_part):
    """Every process has a target."""
    assert run_part("targets", "")["targets"] == shape.PROCESSES


@pytest.fixture
def run_part(clean_python):
    """Run a part in a process of its own with smaller numbers, and return its figures."""

    def run(part, change):
        text = f"from benchmarks.scale import probes; {change or 'pass'}; probes.main([{part!r}])"
        return json.loads(clean_python("-c", text, cwd=scale.TOP).stdout.splitlines()[-1])

    return run
