# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A loop without verl on real Ray: however telemetry is started, all actors are one run, and nothing is lost at ``ray.shutdown``."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytestmark = pytest.mark.ray

from tests.ray.test_ray import run
from verl_otel import config
from verl_otel.analysis import Run, reader
from verl_otel.cli import wording
from verl_otel.cli.check import check_runs

SETTINGS = {
    "enabled": lambda folder: {"VERL_OTEL_ENABLED": 1},
    "before": lambda folder: {"OWN_RUN_DIR": folder},
    "after": lambda folder: {"OWN_RUN_DIR": folder},
    "nodes": lambda folder: {"VERL_OTEL_ENABLED": 1},
}
PLANTED = {
    3: ("trajectory", "p3/4", "tool", "python"),
    4: ("trajectory", "p4/2", "reward", "math"),
    5: ("rank", "worker 1", "worker", "update"),
}
"""The verdict on each step in which something is slow."""


MARKS = {"enabled": pytest.mark.smoke, "nodes": pytest.mark.matrix}


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=MARKS.get(mode, ())) for mode in SETTINGS])
def test_the_run_is_that_of_the_loop(tmp_path, mode):
    """One run of all processes; trajectories, steps and scores equal the loop's own log."""
    _, found = run("ray_own_loop.py", mode, tmp_path=tmp_path, **SETTINGS[mode](tmp_path / "runs"))
    (folder,) = (tmp_path / "runs").iterdir()
    explained = reader.read([folder])[0]
    assert found["nodes"] == (2 if mode == "nodes" else 1)
    assert (explained.state, explained.counts.processes, explained.completeness.orphans) == ("finished", 7, 0)
    assert explained.counts.trajectories == explained.counts.trained == len(found["log"]) == 30
    recorded = [(item.uid, item.rollout_index, item.step, item.score) for item in Run.open(folder).trajectories()]
    assert sorted(recorded) == sorted(tuple(row) for row in found["log"])


def test_what_was_planted_is_named(tmp_path):
    """Each step in which something is slow has this verdict and no other; on a busy machine other things are slow, too."""
    run("ray_own_loop.py", "before", tmp_path=tmp_path, OWN_RUN_DIR=tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    verdicts = {step.number: step.verdicts for step in reader.read([folder])[0].steps if step.number in PLANTED}
    named = {number: (v.kind, v.subject, v.cause, v.cause_name) for number, (v,) in verdicts.items()}
    assert named == PLANTED
    assert wording.describe_verdict(verdicts[5][0]).startswith("Worker 1 was late: ")


def test_an_explicit_zero_wins_over_init(tmp_path):
    """With ``VERL_OTEL_ENABLED=0`` nothing is recorded, whatever the program calls."""
    run("ray_own_loop.py", "before", tmp_path=tmp_path, VERL_OTEL_ENABLED=0, OWN_RUN_DIR=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_actors_that_existed_before_telemetry_are_reported(tmp_path):
    """Actors that were used before ``init()`` record nothing, and the report and ``check`` say how many and why."""
    run("ray_own_loop.py", "late", tmp_path=tmp_path, OWN_RUN_DIR=tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    missing = reader.read([folder])[0].completeness.missing
    assert [text for text in missing if text.startswith("3 Ray actors recorded nothing: created before")]
    (finding,) = check_runs(config.load_config({"VERL_OTEL_RUN_DIR": str(tmp_path / "runs")}))
    assert "3 Ray actors existed before telemetry" in finding.text
