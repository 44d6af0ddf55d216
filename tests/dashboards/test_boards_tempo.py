# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every TraceQL query of the boards on a real Tempo with the project's settings; skipped where there is no Tempo.

It is looked for in VERL_OTEL_TEST_TEMPO, in the path and in the cache in which ``collector/build.sh`` puts what it builds.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from dashboards import loader
from dashboards.evaluation import interpolation
from tests.builders.environments import inherit
from verl_otel.cli.stack import addresses, components, programs
from verl_otel.errors import VerlOtelError

pytestmark = pytest.mark.collector
HERE = Path(__file__).resolve().parent
GIVEN = os.environ.get("VERL_OTEL_TEST_TEMPO")
BOARDS = loader.read()
PANELS = {
    panel["title"]: panel
    for board in BOARDS.values()
    for panel in loader.walk(board["panels"])
    if panel.get("datasource", {}).get("type") == "tempo"
}
SLOW = 1
"""Seconds; the smallest choice of the board."""
RUNS = ("20261121-12", "20261121-123")
"""The first is the beginning of the second: a query for it may not find that."""
SENT_SECONDS = 1.3
KINDS = {
    "Slow trajectories": ["slow", "tool"],
    "Failed trajectories": ["failed"],
    "Slow tool calls": ["tool"],
    "Steps": ["step"],
}
"""What each table has to show of a run, by the kinds of `send_to_tempo.py`."""
SAID = {
    "Slow trajectories": {
        "verl.step.number": 7,
        "verl.sample.uid": "prompt-2",
        "verl.rollout.index": 1,
        "verl.turns": 3,
        "verl.response.tokens": 17,
        "verl.reward.score": 0.5,
        "verl.outcome": "success",
    },
    "Failed trajectories": {"verl.sample.uid": "prompt-1", "verl.outcome": "failure"},
    "Slow tool calls": {"gen_ai.tool.name": "calculator"},
    "Steps": {"verl.step.number": 7, "verl.slowest.duration": SENT_SECONDS},
}
"""Columns of the first span of the first kind."""
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url, **form):
    """Return what Tempo answers; its own words fail the test."""
    try:
        with OPENER.open(f"{url}?{urllib.parse.urlencode(form)}", timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url} {form}: {error.code} {error.read().decode()[:500]}") from None


def search(tempo, title, run):
    """Run the query of a table as Grafana does, with a choice of runs; return its traces."""
    (target,) = PANELS[title]["targets"]
    period = interpolation.Period(tempo.begun - 60, time.time() + 60)
    chosen = {"run": run, "slow": (f"{SLOW}s",)}
    every = {each["name"]: each.get("allValue", "") for each in BOARDS["rollouts"]["templating"]["list"]}
    query = interpolation.Values(chosen, every, period, frozenset({"run"})).fill(target["query"])
    assert "$" not in query
    span = {"start": int(period.start), "end": int(period.end)}
    found = ask(f"{tempo.url}/api/search", q=query, limit=target["limit"], spss=target["spss"], **span)
    return {each["traceID"].zfill(32): each for each in found.get("traces", ())}


def send(folder, run, endpoint, **variables):
    """Send the spans of a run through the real SDK; return the trace id of each kind."""
    hidden = ("OTEL_", "VERL_", "PYTEST_")
    inherited = inherit(*hidden)
    said = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "VERL_OTEL_EXPORTERS": "otlp",
        "VERL_OTEL_RUN_DIR": str(folder),
        "VERL_OTEL_RUN_ID": run,
    }
    command = [sys.executable, HERE / "send_to_tempo.py", str(SENT_SECONDS)]
    done = subprocess.run(
        command, env={**inherited, **said, **variables}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def running(child):
    """Start a part of the stack; it is gone at the end."""
    try:
        start(child)
        yield child
    finally:
        if child.code is None:
            os.kill(child.pid, signal.SIGKILL)  # nobody needs what it has, and a Tempo that was asked takes its time
        child.stop()


def start(child):
    child.start()
    child.wait_ready(threading.Event())


@pytest.fixture(scope="module")
def tempo(tmp_path_factory):
    """A real Tempo on free ports, started as ``verl-otel stack`` does; to it two runs were sent."""
    try:
        program = programs.find_program(programs.TEMPO, Path(GIVEN) if GIVEN else None)
    except VerlOtelError as error:
        pytest.skip(f"{error}".partition("\n")[0])
    folder = tmp_path_factory.mktemp("tempo")
    plan = components.Plan(addresses.choose({}, free=True), folder, folder / "targets", tempo=True)
    begun = time.time()
    with running(components.make_tempo(program, plan)) as child:
        sent = {
            run: send(folder, run, plan.url("store"), OTEL_EXPORTER_OTLP_PROTOCOL="grpc", OTEL_METRICS_EXPORTER="none")
            for run in RUNS
        }
        made = SimpleNamespace(url=plan.url("tempo"), plan=plan, folder=folder, begun=begun, sent=sent, child=child)
        wait_for_steps(made, RUNS)
        yield made


def wait_for_steps(tempo, runs, seconds=180):
    """Wait until every table has something of each run: a search leaves out the last 30 s (``query_end_cutoff``, since Tempo 2.10)."""
    deadline = time.monotonic() + seconds
    while any(not search(tempo, title, (run,)) for title in PANELS for run in runs):
        assert time.monotonic() < deadline, "Tempo finds nothing"
        time.sleep(0.5)


def test_every_table_of_traces_is_tested():
    """Who adds a query says here what it finds."""
    assert PANELS.keys() == KINDS.keys()


@pytest.mark.parametrize(
    "chosen", [RUNS[:1], RUNS[1:], RUNS, (interpolation.ALL,)], ids=["first", "second", "both", "all"]
)
@pytest.mark.parametrize("title", KINDS)
def test_tables_show_what_they_should(tempo, title, chosen):
    """Of the chosen runs: what was slow, failed or is a step, and nothing else."""
    runs = RUNS if chosen == (interpolation.ALL,) else chosen
    wanted = [tempo.sent[run][kind] for run in runs for kind in KINDS[title]]
    assert search(tempo, title, chosen).keys() == set(wanted)


@pytest.mark.parametrize("title", KINDS)
def test_tables_have_their_columns(tempo, title):
    """What a query selects is in its answer: one span of a trace, with its attributes, its start and its duration."""
    run = RUNS[0]
    found = search(tempo, title, (run,))[tempo.sent[run][KINDS[title][0]]]
    (group,) = found["spanSets"]
    (span,) = group["spans"]
    said = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
    assert {key: type(value)(said[key]) for key, value in SAID[title].items()} == SAID[title]
    assert int(span["startTimeUnixNano"]) > tempo.begun * 1e9
    if title.startswith("Slow"):
        assert int(span["durationNanos"]) > SLOW * 1e9


def test_an_id_leads_to_the_whole_trace(tempo):
    """The link of a table: by its id a trace comes with all its spans."""
    sent = tempo.sent[RUNS[0]]
    for kind, size in {"step": 2, "failed": 1, "tool": 3}.items():
        found = ask(f"{tempo.url}/api/v2/traces/{sent[kind]}")
        spans = [
            span
            for resource in found["trace"]["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        assert len(spans) == size, kind


def test_what_the_collector_keeps_is_found(tempo, monkeypatch):
    """Through the real Collector, as in ``verl-otel stack``: the step, the slow and the failed trajectories come to Tempo."""
    try:
        program = programs.find_program(programs.OTELCOL)
    except VerlOtelError as error:
        pytest.skip(f"{error}".partition("\n")[0])
    monkeypatch.setenv("OTELCOL_ROOT_WAIT", "1s")
    run = "20261121-collector"
    with running(components.make_collector(program, tempo.plan)):
        sent = send(tempo.folder, run, tempo.plan.url("http"))
        wait_for_steps(tempo, [run])
        for title, kinds in KINDS.items():
            assert search(tempo, title, (run,)).keys() == {sent[kind] for kind in kinds}


def test_what_it_has_is_there_when_it_is_started_again(tempo):
    """As ``verl-otel stack`` ends it: told to end, and killed when it does not (after a query no Tempo 3.0 does: grafana/tempo#7967)."""
    tempo.child.stop()
    start(tempo.child)
    wait_for_steps(tempo, RUNS)
