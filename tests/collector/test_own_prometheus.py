# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's own Prometheus, a real one: a job is added beside its file, loaded, and removed again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.collector.tiers import OwnPrometheus

COMMAND = Path(sys.executable).with_name("verl-otel")


@pytest.fixture
def own(programs, tmp_path):
    made = OwnPrometheus(programs.prometheus, tmp_path)
    yield made
    made.kill()


@pytest.fixture
def call(own, tmp_path):
    """Run ``verl-otel prometheus`` on the file of this Prometheus; returns exit code and output."""

    def run(action, *arguments):
        done = subprocess.run(
            [COMMAND, "prometheus", action, "--file", own.settings, "--reload", own.url, *arguments],
            env={**inherit("OTEL", "VERL_", "PYTEST"), "VERL_OTEL_RUN_DIR": str(tmp_path / "runs")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_target_appears_with_the_job_and_goes_with_it(own, call, tmp_path, wait_for):
    """The job is added and loaded, a target of a run is scraped, a second ``add`` changes nothing, ``remove`` gives the file back."""
    own.start()
    folder = tmp_path / "runs" / "targets"
    folder.mkdir(parents=True)
    labels = {"job": "verl", "instance": "r/engine-0", "verl_run_id": "r"}
    (folder / "r.json").write_text(json.dumps([{"targets": [own.addresses["prometheus"]], "labels": labels}]))
    code, output = call("add")
    assert (code, "has loaded it" in output) == (0, True), output
    wait_for(lambda: own.jobs() == {"self": "up", "verl-otel": "up"}, 60, 0.2)
    wait_for(lambda: own.query('up{job="verl",verl_run_id="r"} == 1'), 30, 0.2)
    merged = own.settings.read_text()
    assert merged.startswith(own.text)
    code, output = call("add")
    assert (code, "already" in output) == (0, True), output
    assert own.settings.read_text() == merged
    code, output = call("remove")
    assert code == 0, output
    assert own.settings.read_text() == own.text
    wait_for(lambda: set(own.jobs()) == {"self"}, 30, 0.2)


def test_a_prometheus_without_lifecycle_is_named(own, call):
    """The file is changed, and one line names what the user has to do; after a restart the job is there."""
    own.lifecycle = False
    own.start()
    code, output = call("add")
    assert code == 1
    assert "--web.enable-lifecycle" in output
    assert len(output.splitlines()) == 1
    own.kill()
    own.start()
    assert call("add")[0] == 0


def test_what_prometheus_refuses_is_undone(own, call):
    """A source that Prometheus does not accept: the user's file is as before, and Prometheus works with it."""
    own.start()
    code, output = call("add", "--http-sd", "http://")
    assert code == 2
    assert "stays as it is" in output
    assert "refuses" in output
    assert own.settings.read_text() == own.text
    assert own.ask("status/runtimeinfo")["reloadConfigSuccess"] is True
