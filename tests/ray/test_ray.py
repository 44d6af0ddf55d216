# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Real Ray: nothing that a user can call breaks, whenever we are loaded, and context goes where it can."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import otlp_json
from tests.builders.environments import inherit

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytestmark = pytest.mark.ray

HERE = Path(__file__).resolve().parent
OBSTACLES = HERE.parent / "end_to_end" / "obstacles"
STREAMS = ("old_generator", "sync_stream", "async_stream")
METHODS = ("sync", "async", "options", "nested")
FUNCTIONS = (
    "function",
    "nested_function",
    "generator",
    "sync_seen",
    "async_seen",
    "generator again",
    "sync_seen again",
    "async_seen again",
)


def run(script, *arguments, tmp_path, check=True, **variables):
    """Run a script with a Ray of its own and return what it printed, and its RESULT line decoded."""
    environ = inherit("RAY_", "PYTEST_")
    environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"),
        "PYTHONUNBUFFERED": "1",
    }
    environ |= {name: str(value) for name, value in variables.items()}
    command = [sys.executable, HERE / script, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=480, check=False)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return done, json.loads(lines[-1].removeprefix("RESULT ")) if lines else None


def assert_unharmed(found):
    """Everything came back as the user's code returned it."""
    assert found["old_function"] == "old"
    assert found["error"] == "KeyError"
    assert all(found[name] == [0, 1, 2] for name in STREAMS)
    assert len(found["async_many"]) == 8


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """What came back when we were loaded before ``ray.init``."""
    return run("ray_calls.py", "before", tmp_path=tmp_path_factory.mktemp("before"))[1]


def test_every_kind_of_call_works_when_we_are_loaded_first(before):
    """Functions, actors, generators and streams, called with and without a span, old and new, return as ever."""
    for part in ("first", "second", "new"):
        assert_unharmed(before[part])
    assert set(before["status"].values()) == {"installed"}


def test_every_kind_of_call_works_when_we_are_loaded_late(tmp_path):
    """What was exported and called before we were loaded goes on working, with a span around it too."""
    _, found = run("ray_calls.py", "after", tmp_path=tmp_path)
    for part in ("first", "second", "new"):
        assert_unharmed(found[part])


def test_context_goes_with_actor_calls(before):
    """Loaded before ``ray.init``, the trace reaches calls of actors and tasks, old and new: functions, generators, and what they call."""
    assert before["carrier"] == "on"
    for part in ("second", "new"):
        seen = {name: before[part][name] for name in (*METHODS, *FUNCTIONS)}
        assert seen == dict.fromkeys(seen, before["trace"])
        assert set(before[part]["async_many"]) == {before["trace"]}
    assert {before["first"][name] for name in METHODS} == {""}


@pytest.mark.parametrize(
    ("obstacle", "text"),
    [
        ({"CPU_BED_HIDE": "verl_otel@worker"}, "No module named"),
        ({"CPU_BED_BREAK": "verl_otel.plugin@worker"}, "broken on purpose"),
    ],
)
def test_workers_without_us_or_with_a_broken_us_work_on(obstacle, text, tmp_path):
    """A worker that lacks verl-otel, or whose hook raises, does its work; one line per node says what is missing."""
    done, found = run("ray_calls.py", "before", tmp_path=tmp_path, PYTHONPATH=OBSTACLES, **obstacle)
    for part in ("first", "second", "new"):
        assert_unharmed(found[part])
    said = [
        line for line in done.stderr.splitlines() + done.stdout.splitlines() if "verl-otel is not on this node" in line
    ]
    assert len(said) == 1
    assert text in said[0]


@pytest.mark.parametrize("kind", ["function", "path"])
def test_a_users_own_setup_hook_still_runs(kind, tmp_path):
    """A ``worker_process_setup_hook`` of the user, as function or as dotted path, runs before ours in every worker."""
    _, found = run("ray_hook.py", kind, tmp_path=tmp_path, PYTHONPATH=HERE)
    assert found == {"users": True, "ours": True, "value": "kept"}


def test_settings_reach_the_workers_but_no_secret(tmp_path):
    """Run id, folder and exporters are forwarded; headers, which may hold a token, are not."""
    secret = "authorization=Bearer%20hush"
    _, found = run("ray_hook.py", "environment", tmp_path=tmp_path, PYTHONPATH=HERE, OTEL_EXPORTER_OTLP_HEADERS=secret)
    assert found["run_id"] == found["drivers"]
    assert found["folder"] == str(tmp_path / "runs")
    assert found["forwarded_headers"] is False


def test_a_submitted_job_with_its_own_environment_and_hook_runs(tmp_path):
    """``ray job submit`` with the same variables and a hook of its own: the job ends well and its values stay."""
    _, found = run("ray_job.py", tmp_path=tmp_path, PYTHONPATH=HERE)
    assert found["status"] == "SUCCEEDED", found["logs"][-3000:]
    assert '"users": true' in found["logs"]
    assert '"value": "of the job"' in found["logs"]
    assert "Ray refused" not in found["logs"]


def test_check_asks_every_node(tmp_path):
    """``verl-otel check --cluster`` names each node and whether verl-otel is there."""
    _, found = run("ray_job.py", "check", tmp_path=tmp_path, PYTHONPATH=HERE)
    (line,) = [line for line in found["check"].splitlines() if " node " in line]
    assert line.startswith("ok")
    _, found = run(
        "ray_job.py", "check", tmp_path=tmp_path, PYTHONPATH=f"{OBSTACLES}:{HERE}", CPU_BED_HIDE="verl_otel@worker"
    )
    assert found["code"] == 1
    assert "its processes are not recorded" in found["check"]
    assert "run `pip install verl-otel` on that node" in found["check"]


def test_a_users_worker_class_is_one_span_per_call_and_rank(tmp_path):
    """A class from the user's script, decorated or not, has one span for each call on each rank, below the group's call."""
    pytest.importorskip("verl", reason="verl is not installed in this environment")
    from tests.verl_cpu import cpu_train

    needed = {
        name: value
        for name, value in cpu_train.make_environment(tmp_path).items()
        if name.startswith(("VERL_", "PYTHONPATH"))
    }
    _, found = run("ray_worker.py", tmp_path=tmp_path, **{**needed, "VERL_OTEL_ENABLED": 1})
    assert found == {
        "update": [{"loss": 3.0, "grad_norm": 0.5}] * 2, "plain": [1, 1], "later": ["later"] * 2, "error": "KeyError",
    }  # fmt: skip
    spans = [
        span
        for path in (tmp_path / "runs").glob("*/traces-*.jsonl")
        for line in path.read_text().splitlines()
        for _, _, span in otlp_json.each_span(json.loads(line))
    ]
    by_name = {}
    for span in spans:
        by_name.setdefault(span["name"], []).append(span)
    parents = {span["spanId"]: span["name"] for span in spans}
    for method in ("update_actor", "plain", "later", "fails"):
        assert len(by_name[f"verl.worker MyWorker.{method}"]) == 2
        assert len(by_name[f"verl.call {method}"]) == 1
        assert {parents[span["parentSpanId"]] for span in by_name[f"verl.worker MyWorker.{method}"]} == {
            f"verl.call {method}"
        }
    said = {pair["key"]: pair["value"] for pair in by_name["verl.worker MyWorker.update_actor"][0]["attributes"]}
    assert said["verl.update.role"] == {"stringValue": "actor"}
    assert said["verl.batch.size"] == {"intValue": "3"}
    assert said["verl.loss"] == {"doubleValue": 3.0}
    assert all(span["status"]["code"] == 2 for span in by_name["verl.worker MyWorker.fails"])
    ranks = {
        pair["value"]["intValue"]
        for span in by_name["verl.worker MyWorker.plain"]
        for pair in span["attributes"]
        if pair["key"] == "verl.rank"
    }
    assert ranks == {"0", "1"}


@pytest.fixture(scope="module")
def short_lived(tmp_path_factory):
    """Actors that ended right after their only call, and processes that an actor has forked: what the script found, and the records."""
    folder = tmp_path_factory.mktemp("short")
    _, found = run("ray_short_lived.py", folder, tmp_path=folder, VERL_OTEL_ENABLED=1)
    return found, [found for path in (folder / "runs").glob("*/traces-*.jsonl") for found in _read_spans(path)]


def _read_spans(path):
    for line in path.read_text().splitlines():
        yield from otlp_json.each_span(json.loads(line))


def test_an_actor_that_ends_in_order_keeps_what_it_has_recorded(short_lived):
    """It goes out of scope, leaves or is terminated, with and without a second for a drain: Ray cannot be asked at its end."""
    _, spans = short_lived
    scored = [resource for resource, _, span in spans if span["name"] == "verl.reward"]
    assert len(scored) == 3
    assert {resource["verl.role"] for resource in scored} == {"actor"}
    assert len({resource["ray.actor.id"] for resource in scored}) == 3


def test_the_exit_handlers_of_an_actor_run(short_lived):
    """A question to Ray after it has closed the connection of the worker would end the process in the middle of its exit."""
    assert short_lived[0]["ended"] == ["scope", "exit_actor", "terminate"]


def test_a_process_that_an_actor_has_forked_keeps_what_it_has_recorded(short_lived):
    """Ray cannot be asked there, and is not: the child knows from its parent whose it is."""
    found, spans = short_lived
    assert found["codes"] == [0, 0]
    checked = [resource for resource, _, span in spans if span["name"] == "execute_tool check"]
    assert len(checked) == 2
    assert len({resource["process.pid"] for resource in checked}) == 2
    assert len({resource["ray.actor.id"] for resource in checked}) == 1


def test_an_actor_that_was_started_again_is_counted(tmp_path):
    """Once, by the process that took the place of the dead one; nobody else has a series of it. Ray warns of nothing that we asked."""
    done, found = run("ray_restart.py", tmp_path=tmp_path, VERL_OTEL_ENABLED=1)
    assert found["first"] != found["second"]
    assert "deprecated" not in done.stdout + done.stderr
    last = {}
    for path in (tmp_path / "runs").glob("*/metrics-*.jsonl"):
        for line in path.read_text().splitlines():
            for resource, _, metric in otlp_json.each_metric(json.loads(line)):
                if metric["name"] == "verl.worker.restarts":
                    (point,) = metric["sum"]["dataPoints"]
                    last[resource["process.pid"]] = otlp_json.read_number(point)
    assert {pid: float(value) for pid, value in last.items()} == {found["second"]: 1.0}


@pytest.mark.full
def test_what_the_object_store_writes_to_disk_is_counted(tmp_path):
    """Bytes of objects that do not fit: all but what stays in the store. Ray logs what it reads back once a second at most."""
    _, found = run("ray_spill.py", tmp_path=tmp_path, VERL_OTEL_ENABLED=1, RAY_verbose_spill_logs=1)
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    spilled = {
        otlp_json.read_attributes(point["attributes"])["disk.io.direction"]: otlp_json.read_number(point)
        for path in folder.glob("metrics-*.jsonl")
        for line in path.read_text().splitlines()
        for _, _, metric in otlp_json.each_metric(json.loads(line))
        if metric["name"] == "verl.ray.spill.io"
        for point in otlp_json.each_point(metric)
    }
    assert found["put"] - (80 << 20) <= spilled["write"] <= found["put"]
    assert 0 < spilled["read"] <= found["read"]
