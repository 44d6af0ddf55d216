# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's call sites in the real verl 0.9.1, answered by us: ``insight_sites.py`` runs them in one process."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed here"),
    pytest.mark.full,
]

SITES = Path(__file__).with_name("insight_sites.py")
REAL = """
from contextlib import contextmanager
from types import SimpleNamespace
__version__ = "0.3.0"
calls = []
def init(project=None, experiment_name=None, config=None): calls.append("init")
def finish(): print("finished after", sorted(set(calls)))
def metric_gauge(name, value, documentation="", **labels): calls.append(name)
def trace_span(*, name, start_time_ns, end_time_ns, attributes): calls.append(name)
def update_prometheus_config(server_addresses, job_name=None, labels=None): calls.append(job_name)
def agent_loop_session(**identity): return SimpleNamespace(finish=lambda **facts: None)
@contextmanager
def trace_state(state_name, *, state_lane_id=None, **labels):
    calls.append(state_name)
    yield
"""


@pytest.fixture(scope="module")
def run_sites(clean_python):
    """Run every call site with these variables."""

    def run(folder, path="", code=0, **variables):
        environ = {
            "VERL_RL_INSIGHT_ENABLE": "1",
            "RL_INSIGHT_SERVER_URL": "http://127.0.0.1:1",
            "VERL_OTEL_RUN_DIR": str(folder / "runs"),
            "VERL_OTEL_RUN_ID": "r",
            "PYTHONPATH": str(path),
            **variables,
        }
        return clean_python(SITES, cwd=folder, code=code, seconds=300, **environ)

    return run


@pytest.fixture(scope="module")
def sites(run_sites, read_run, tmp_path_factory):
    """What one process with the one setting, and without the real package, has seen and written."""
    folder = tmp_path_factory.mktemp("insight")
    done = run_sites(folder, VERL_OTEL_ENABLED="1")
    run = read_run(folder / "runs" / "r")
    others = [span for span in run.spans if "status" not in span.attributes]  # all but the user's own session
    spans = {span.name: span for span in others}
    assert len(spans) == len(others), "no name is recorded twice here"
    return SimpleNamespace(seen=json.loads(done.stdout.splitlines()[-1]), spans=spans, run=run, said=done.stderr)


def test_the_import_of_verl_is_answered_by_us(sites):
    """Our module is what verl finds: new enough for it, and nothing was warned of or failed."""
    assert sites.seen["answers"] is True
    assert sites.seen["version"].startswith("0.3.0")
    assert "rl-insight" not in sites.said.lower()
    assert "verl-otel" not in sites.said
    assert not [each for each in sites.run.scalars if each.name == "verl.otel.errors"]


def test_scalars_come_out_once(sites):
    """``Tracking.log`` with the back end ``rl_insight`` makes the same gauges as without it, and no second set."""
    names = [each.name for each in sites.run.scalars]
    assert names.count("verl.actor.pg_loss") == names.count("verl.validation.score") == 1
    assert not [name for name in names if name.startswith(("actor_", "val", "rl_insight"))]


def test_annotated_worker_methods_are_one_span_each(sites):
    """The real ``DistProfiler.annotate`` adds no span to the one of the worker method, and the methods work as before."""
    assert sites.seen["updated"] == 2
    outer, inner = sites.spans["verl.worker Worker.update_actor"], sites.spans["verl.worker Worker.train_batch"]
    assert (outer.parent_id, inner.parent_id) == (sites.spans["verl.step"].span_id, outer.span_id)
    assert not {"train_batch", "actor_update"} & set(sites.spans)


def test_a_role_of_a_users_own_is_a_span(sites):
    """A method that no hook of ours knows is a span in its trace, with its exception, which the caller gets unchanged."""
    span = sites.spans["my_helper"]
    assert sites.seen["raised"] == "as before"
    assert (span.trace_id, span.parent_id) == (sites.spans["verl.step"].trace_id, sites.spans["verl.step"].span_id)
    assert span.attributes == {"state_lane_id": "rank_3", "error.type": "ValueError"}


def test_addresses_become_targets_of_the_run(sites):
    """What verl registers, by its manager of replicas and for TransferQueue, is in the run's targets file while it runs."""
    assert sites.seen["targets"] == [
        ["10.0.0.9:9100", "transfer_queue", None],
        ["10.0.0.0:8000", "llm_server", "0"],
        ["10.0.0.1:8000", "llm_server", "1"],
    ]


def test_no_actor_no_server_no_thread(sites):
    """Nothing was started for it, and calls after the end of the run do no harm."""
    assert {*sites.seen["threads"]} <= {
        "MainThread",
        "verl-otel-drain",
        "verl-otel-hardware",
        "verl-otel-watch",
        "verl-otel-loops",
    }  # a process of any run has these
    assert sites.seen["ray"] is False
    assert sites.seen["after"] is True


def test_an_installed_rl_insight_goes_on_answering(run_sites, read_run, tmp_path):
    """With the real package there, verl calls that one, and we record what we hook and no more."""
    (tmp_path / "rl_insight").mkdir()
    (tmp_path / "rl_insight" / "__init__.py").write_text(REAL)
    (tmp_path / "rl_insight" / "agent_loop.py").write_text("from rl_insight import agent_loop_session\n")
    done = run_sites(tmp_path, tmp_path, VERL_OTEL_ENABLED="1")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("finished after ")]
    for call in ("init", "actor_pg_loss", "train_batch", "transfer_queue", "vllm"):
        assert f"'{call}'" in line
    run = read_run(tmp_path / "runs" / "r")
    assert "encode" not in {span.name for span in run.spans}
    assert [each.value for each in run.scalars if each.name == "verl.actor.pg_loss"] == [0.5]


def test_off_means_off(run_sites, tmp_path):
    """Without our switch, and without the package, verl says what it always said: there is no module ``rl_insight``."""
    done = run_sites(tmp_path, code=1)
    assert "ModuleNotFoundError: No module named 'rl_insight'" in done.stderr
    assert not (tmp_path / "runs").exists()
