# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``ray.shutdown`` ends the workers of a run, not the run: the driver may go on, also with another cluster."""

import pytest

import verl_otel
from verl_otel import watchdog
from verl_otel.session import prometheus_targets, run_manifest
from verl_otel.session.lifecycle import Current
from verl_otel.watchdog import process_reports


@pytest.fixture
def driver(start):
    """The session of a driver that has recorded a step, with the reports of an actor of Ray and of a child beside its own."""
    start(exporters="file,prometheus")
    session = Current.session
    session.open_now()
    with verl_otel.step(1):
        pass
    verl_otel.session.flush()
    folder = session.config.run_path / process_reports.FOLDER
    (own,) = map(process_reports.read, process_reports.list_paths(folder))
    process_reports.write(folder, own._replace(process_name="agent_loop-7", actor="a1"))
    process_reports.write(folder, own._replace(process_name="process-8"))
    return session


def list_processes(session):
    folder = session.config.run_path / process_reports.FOLDER
    return sorted(process_reports.read(path).process_name for path in process_reports.list_paths(folder))


def test_the_run_goes_on_after_the_end_of_its_workers(driver):
    """While they end their death is expected; afterwards stalls of the driver are watched for, its page is listed, and its exit ends the run."""
    own = [name for name in list_processes(driver) if name not in ("agent_loop-7", "process-8")]
    targets = prometheus_targets.read_own_targets(driver.config)
    assert targets
    with driver.run.end_of_workers():
        assert watchdog.has_ended(driver.config)
    assert not watchdog.has_ended(driver.config)
    assert list_processes(driver) == sorted([*own, "process-8"])
    assert prometheus_targets.read_own_targets(driver.config) == targets
    assert "ended" not in run_manifest.read(driver.config.run_path)["attempts"][-1]
    verl_otel.shutdown()
    assert watchdog.has_ended(driver.config)
    assert "ended" in run_manifest.read(driver.config.run_path)["attempts"][-1]


@pytest.mark.parametrize("state", [process_reports.FINISHED, process_reports.FAILED])
def test_an_end_that_the_trainer_has_recorded_stays(driver, state):
    """With verl the trainer is a worker: its run is not begun again by the driver."""
    process_reports.mark_run(driver.config, state)
    with driver.run.end_of_workers():
        pass
    folder = driver.config.run_path / process_reports.FOLDER
    assert process_reports.read_run_end(folder).state == state
    assert "ended" in run_manifest.read(driver.config.run_path)["attempts"][-1]
