# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's own SDK in the driver and in a worker of real Ray, with the exporter ``sdk``."""

import json

import pytest

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytestmark = [pytest.mark.ray, pytest.mark.full]

from tests.ray.test_ray import run


def test_a_users_sdk_shows_driver_and_worker(tmp_path):
    """Steps in the driver, trajectories and tools in the worker, whose view drops every attribute; each span once."""
    _, found = run("ray_sdk.py", tmp_path, tmp_path=tmp_path, VERL_OTEL_ENABLED=1, VERL_OTEL_EXPORTERS="sdk")

    def read_names(pid):
        return sorted(line.rpartition(" ")[0] for line in (tmp_path / f"{pid}.spans").read_text().splitlines())

    assert read_names(found["driver"]) == ["verl.step"] * 2
    assert read_names(found["worker"]) == ["execute_tool python"] * 2 + ["verl.trajectory"] * 2
    last = json.loads((tmp_path / f"{found['worker']}.metrics").read_text().splitlines()[-1])
    metrics = {
        metric["name"]: metric["data"]["data_points"]
        for group in last["resource_metrics"]
        for scope in group["scope_metrics"]
        for metric in scope["metrics"]
    }
    (point,) = metrics["verl.tool.call.duration"]
    assert (point["attributes"], point["count"]) == ({}, 2)
