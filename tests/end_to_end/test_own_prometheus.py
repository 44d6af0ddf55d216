# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A training with ``rollout.prometheus`` of verl's own configuration, and a real Prometheus of the user's: file, port and discovery."""

import pytest

from tests.builders.programs import need_programs
from tests.collector.tiers import OwnPrometheus
from tests.end_to_end import bed_run
from verl_otel.session import prometheus_file

pytestmark = [pytest.mark.verl, pytest.mark.collector]


@pytest.fixture
def own(tmp_path):
    """A Prometheus that scrapes itself every second, with the file that a user has written."""
    made = OwnPrometheus(need_programs("prometheus") / "prometheus", tmp_path)
    yield made.start()
    made.kill()


def test_a_training_is_scraped_by_the_users_prometheus(own, tmp_path, wait_for):
    """The job is added beside the file, the Prometheus at the port loads it and scrapes engines and trainer, and every byte of the user's stays.

    After the end of the run nothing but the user's own target is left, and the removal of the job gives the file back.
    """
    out, rollout = tmp_path / "training", "actor_rollout_ref.rollout"
    training = bed_run.train(
        out,
        overrides=[
            f"{rollout}.disable_log_stats=False",
            f"{rollout}.prometheus.enable=True",
            f"{rollout}.prometheus.port={own.port('prometheus')}",
            f"{rollout}.prometheus.file={own.settings}",
        ],
        VERL_OTEL_ENABLED=1,
        VERL_OTEL_RUN_DIR=out / "runs",
        VERL_OTEL_RUN_ID="r",
        VERL_OTEL_EXPORTERS="file,prometheus",
    )
    assert training.returncode == 0, training.log[-3000:]
    merged = own.settings.read_text()
    assert merged.startswith(own.text)
    loaded = f"{own.settings} has the job verl-otel; the Prometheus at {own.url} has loaded it"
    assert training.log.count(loaded) == 1
    reloads = own.query('max_over_time(prometheus_http_requests_total{handler="/-/reload",code="200"}[1h])')
    assert [value for _, value in reloads] == [1]

    up = own.query('max_over_time(up{verl_run_id="r",verl_role=~"llm_server|trainer"}[1h])')
    assert {(labels["verl_role"], labels["instance"].partition("/")[0], value) for labels, value in up} == {
        ("llm_server", "r", 1),
        ("trainer", "r", 1),
    }
    (tokens,) = own.query('last_over_time(vllm:generation_tokens_total{verl_role="llm_server"}[1h])')
    assert tokens[0]["verl_engine"] == "cpu"
    assert tokens[1] > 0
    assert own.query('last_over_time(verl_training_step{verl_run_id="r"}[1h])')

    wait_for(lambda: own.jobs() == {"self": "up"}, 60, 0.5)
    prometheus_file.remove_job(own.settings)
    assert own.settings.read_text() == own.text
