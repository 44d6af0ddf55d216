# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Real Ray without verl: however telemetry is started, all actors are one run, and nothing is lost at ``ray.shutdown``."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytestmark = pytest.mark.ray

from tests.ray.test_ray import run
from verl_otel.analysis import summary

SETTINGS = {
    "enabled": lambda folder: {"VERL_OTEL_ENABLED": 1},
    "before": lambda folder: {"OWN_RUN_DIR": folder},
    "after": lambda folder: {"OWN_RUN_DIR": folder},
}


@pytest.mark.parametrize("mode", SETTINGS)
def test_the_run_is_that_of_the_loop(tmp_path, mode):
    """One run with four processes; trajectories, steps and scores equal the loop's own log; the planted slow tool is named."""
    _, found = run("ray_own_loop.py", mode, tmp_path=tmp_path, **SETTINGS[mode](tmp_path / "runs"))
    (folder,) = (tmp_path / "runs").iterdir()
    explained = summary.explain([folder])
    assert (explained.state, explained.counts.processes, explained.completeness.orphans) == ("finished", 4, 0)
    assert explained.counts.trajectories == explained.counts.trained == len(found["log"]) == 24
    slowest = {(item.uid, item.rollout_index, item.step, item.score) for item in explained.slowest}
    assert len(slowest) == 20
    assert slowest <= {tuple(row) for row in found["log"]}
    (verdict,) = explained.steps[2].verdicts
    assert (verdict.subject, verdict.cause, verdict.cause_name) == ("p3/4", "tool", "python")


def test_an_explicit_zero_wins_over_init(tmp_path):
    """With ``VERL_OTEL_ENABLED=0`` nothing is recorded, whatever the program calls."""
    run("ray_own_loop.py", "before", tmp_path=tmp_path, VERL_OTEL_ENABLED=0, OWN_RUN_DIR=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
