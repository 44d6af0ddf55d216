# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Real Ray: an actor that is killed with work open is named, with what Ray knows of its end, while its caller waits for ever."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytestmark = pytest.mark.ray

from tests.ray.test_ray import run


def test_a_killed_agent_loop_is_named_while_the_trainer_waits(tmp_path):
    """Who died, which trajectories it held, who waits, in the driver's log and the run's events; within 15 s of its death."""
    done, found = run("ray_stalls.py", tmp_path=tmp_path, VERL_OTEL_ENABLED=1, VERL_OTEL_RUN_ID="r1")
    (event,) = found["events"]
    detail = event["detail"]
    assert event["kind"] == "crash"
    assert (detail["culprit"]["instance"], detail["culprit"]["pid"]) == ("agent_loop-1", found["pid"])
    assert sorted((row["uid"], row["index"]) for row in detail["held_trajectories"]) == [("uid-1", 0), ("uid-1", 1)]
    assert [(row["instance"], row["span"]) for row in detail["waiting"]] == [
        ("trainer-0", "verl.phase.gen"), ("trainer-0", "verl.step"),
    ]  # fmt: skip
    assert detail["cause"].startswith("Ray says: ")
    assert event["time_ns"] / 1e9 - found["killed"] < 15
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "verl-otel: CRASH" in line]
    assert len(lines) == 1
    assert "uid-1/0" in lines[0]
    assert "trainer-0 waits in verl.phase.gen" in lines[0]
