# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The trainings that the end-to-end tests read. Each is run once and shared; a minute or two each."""

from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

from tests.end_to_end import bed_run, modes

PASSED = defaultdict(set)
"""Parameter of the fixture ``run`` to the tests that have passed, or had nothing to test, with it."""
COUNTED = ["trainer.val_before_train=True"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Remember what passed with which training."""
    report = yield
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if report.when == "call" and "run" in parameters and not report.failed:
        PASSED[parameters["run"]].add(item.originalname)
    return report


@pytest.fixture
def passed():
    """The names of the tests that have passed so far, by the parameter of ``run``."""
    return PASSED


@pytest.fixture(scope="session")
def outs(tmp_path_factory):
    """Folder for the trainings of this session."""
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="session")
def plain(outs):
    """The training without telemetry."""
    return bed_run.train(outs / "plain", overrides=COUNTED)


@pytest.fixture(scope="session")
def full(outs):
    """The same training with files, OTLP and Prometheus at once; what the sink and the scraper saw is attached."""
    return modes.share("sync", lambda: modes.train_full(outs / "full"))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory, certificates):
    """Agent, gateway, Prometheus and Alertmanager, all real, for the tests of one module; nothing of it runs beside those of another."""
    from tests.end_to_end.pipeline import start

    with start(tmp_path_factory.mktemp("pipeline"), certificates("tiers")) as started:
        yield started


@pytest.fixture(scope="module")
def piped(pipeline, wait_for):
    """PPO with critic, tools, validation and checkpoints, pushed through the pipeline and scraped beside it; its last word has arrived."""
    from tests.end_to_end.pipeline import EXPORT

    out = pipeline.real
    training = bed_run.train(
        out, steps=8, tool=True, algorithm="gae",
        overrides=[
            *COUNTED, "trainer.test_freq=4", "trainer.save_freq=4", f"trainer.default_local_dir={out}/checkpoints",
        ],
        VERL_OTEL_ENABLED=1, VERL_OTEL_RUN_DIR=out / "runs", VERL_OTEL_RUN_ID="real",
        VERL_OTEL_EXPORTERS="file,otlp,prometheus", OTEL_EXPORTER_OTLP_ENDPOINT=pipeline.agent.http_url,
        OTEL_METRIC_EXPORT_INTERVAL=EXPORT, CPU_BED_SLOW_TOOL="3:11",
    )  # fmt: skip
    training.pipeline = pipeline
    wait_for(lambda: pipeline.watcher.query('last_over_time(verl_run_state{verl_run_id="real"}[1h]) == 2'), 30, 0.5)
    return training


@pytest.fixture(scope="session")
def tool_run(outs):
    """A tool agent, of whose tool one call is slow, one raises and one hangs until its time-out; without the nvtx package."""
    return modes.share("tools", lambda: modes.train("tools", outs / "tools"))
