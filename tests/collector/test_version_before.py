# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""This SDK and these configurations with an older release of the Collector, as where it is upgraded after the trainings."""

import re
import subprocess
from types import SimpleNamespace

import pytest

from tests.builders.programs import need_programs
from tests.collector.steady import await_equal
from tests.collector.test_metrics import await_series, expect
from tests.collector.tiers import COLLECTOR, variables_of

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="session")
def programs(programs):
    """The programs, with the older Collector in the place of ours."""
    need_programs("otelcol-before")
    return SimpleNamespace(**{**vars(programs), "otelcol": programs.otelcol.with_name("otelcol-verl-before")})


def read_versions(program):
    """Return the versions of its modules, as Go has written them into a program: by name, with what replaces a module."""
    found = re.findall(rb"\n(?:dep|=>)\t(\S+)\t(v\S+)", program.read_bytes())
    return {name.decode(): version.decode() for name, version in found}


def test_it_is_older(programs):
    """What is called the older Collector is made of older modules, but for one whose older version is not to be had, and two that ours has older, too."""
    older = read_versions(programs.otelcol)
    ours = read_versions(programs.otelcol.with_name("otelcol-verl"))
    same = [name for name in ours if "opentelemetry" in name and "collector" in name and older.get(name) == ours[name]]
    assert len(ours) > 100
    assert {name.rpartition("/")[2] for name in same} == {"forwardconnector", "loadbalancingexporter", "batchpersignal"}


@pytest.mark.parametrize("name", ["agent.yaml", "gateway.yaml", "local.yaml"])
def test_it_takes_the_configurations(programs, credentials, tmp_path, name):
    """Its ``validate`` accepts the files of this release."""
    variables = {**variables_of(credentials(), "gateway"), "OTELCOL_STATE_DIR": tmp_path}
    done = subprocess.run(
        [programs.otelcol, "validate", f"--config={COLLECTOR / name}"],
        env={key: str(value) for key, value in variables.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_this_sdk_sends_arrives_through_it(start_watched, run_sender, start_training, hasty, wait_for):
    """SDK, agent and gateway of the older release, Prometheus: every value of the catalogue is there, equal, and every step is counted once."""
    tiers = start_watched("scrape", "traces-to-file.yaml", hasty.gateway, below=[hasty.agent])
    wanted = expect(run_sender("send_catalogue", tiers.agent.http_url, "trainer").printed[-1], "trainer")
    assert len(wanted) > 400
    found = await_series(tiers.prometheus, wanted)
    different = {
        key: (found[key], value) for key, value in wanted.items() if found[key] != pytest.approx(value, rel=1e-12)
    }
    assert not different

    training = start_training(tiers.agent.http_url, VERL_OTEL_RUN_ID="counted")
    training.await_units(200)
    recorded = training.end()["recorded"]
    for name in ("user_things_total", "verl_training_steps_total"):
        await_equal(lambda name=name: tiers.prometheus.total(name, verl_run_id="counted"), recorded)
    wait_for(lambda: len(tiers.gateway.spans()) >= 2 * recorded, 30, 0.3)
    assert len(tiers.gateway.spans()) == 2 * recorded


def test_a_newer_agent_sends_what_an_older_one_has_left(programs, start_watched, start_training, hasty, wait_for):
    """The older agent is stopped with a full queue, because the gateway is away; ours goes on with its queue, and nothing is lost or twice."""
    tiers = start_watched("scrape", "traces-to-file.yaml", hasty.gateway, below=[hasty.agent])
    agent, gateway = tiers.agent, tiers.gateway
    gateway.program = programs.otelcol.with_name("otelcol-verl")
    gateway.stop()
    training = start_training(agent.http_url)
    training.await_units(200)
    recorded = training.end()["recorded"]
    assert agent.own("otelcol_receiver_accepted_spans") == 2 * recorded
    agent.stop()
    agent.program = gateway.program
    agent.start()
    gateway.start()
    wait_for(lambda: len(gateway.spans()) >= 2 * recorded, 60, 0.3)
    for name in ("user_things_total", "verl_training_steps_total"):
        await_equal(lambda name=name: tiers.prometheus.total(name), recorded)
    assert len(gateway.spans()) == 2 * recorded
