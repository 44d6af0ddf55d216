# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own by Ray Client (``ray://``): one run, one attempt, and trajectories that have their step."""

import json
import os

import pytest

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytestmark = pytest.mark.ray

from tests.ray.test_ray import OBSTACLES, run
from verl_otel.analysis import Run

CALLED = [[0, 1, 2]] * 3


def test_trajectories_have_their_step(tmp_path):
    """The context goes with the calls of methods, also of optioned ones and of actors that were looked up."""
    _, found = run("ray_client.py", tmp_path=tmp_path, VERL_OTEL_ENABLED=1)
    assert found == CALLED
    (folder,) = (tmp_path / "runs").iterdir()
    recorded = Run.open(folder)
    assert len(recorded.manifest["attempts"]) == 1
    assert sorted((each.uid, each.rollout_index, each.step) for each in recorded.trajectories()) == [
        (f"p{number}", index, number) for number in (1, 2, 3) for index in (0, 1)
    ]


def test_a_cluster_without_telemetry_is_called_as_ever(tmp_path):
    """Its server would not know what the context is."""
    path = os.pathsep.join(filter(None, [str(OBSTACLES), os.environ.get("PYTHONPATH")]))
    hidden = json.dumps({"PYTHONPATH": path, "CPU_BED_HIDE": "verl_otel"})
    _, found = run("ray_client.py", tmp_path=tmp_path, VERL_OTEL_ENABLED=1, CLUSTER=hidden)
    assert found == CALLED
    (folder,) = (tmp_path / "runs").iterdir()
    assert [step.number for step in Run.open(folder).steps()] == [1, 2, 3]
