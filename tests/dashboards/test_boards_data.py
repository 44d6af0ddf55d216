# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every panel on a real Prometheus: filled with real runs of verl on the CPU, and samples of what such runs do not have.

The runs in ``recorded/`` are the metrics files of real trainings; samples of vLLM, SGLang, DCGM and so on say in their first line what
they are. Variables, queries, transformations and marks are evaluated from the JSON, as Grafana would.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards import loader
from dashboards.evaluation import answers, interpolation, recording, server
from tests.builders import otlp_json

HERE = Path(__file__).resolve().parent
RUNS = sorted(path for path in (HERE / "recorded").iterdir() if path.is_dir())
PPO = next(run for run in RUNS if any(key.name == "verl_critic_vf_loss" for key in recording.read_run(run)))
"""The run with a critic and with checkpoints."""
SCRAPE = 1.0
BOARDS = loader.read()
PANELS = [
    pytest.param(name, panel, id=f"{name}-{panel['title']}")
    for name, board in BOARDS.items()
    for panel in loader.walk(board["panels"])
    if panel["type"] != "row" and panel["datasource"]["type"] == "prometheus"
]
"""Excused are only panels that ask a trace store."""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, promtool):
    """A real Prometheus with the recorded runs, and the time that they took."""
    folder = tmp_path_factory.mktemp("prometheus")
    text = folder / "recorded.txt"
    first, last = recording.write(recording.read_all(RUNS, HERE / "samples"), text, SCRAPE)
    with server.serve(text, folder, SCRAPE) as prometheus:
        yield prometheus, interpolation.Period(first, last, SCRAPE)


def evaluate(recorded, name, **chosen):
    prometheus, period = recorded
    chosen = {
        key: value if isinstance(value, tuple) else (value,) for key, value in {"window": "30s", **chosen}.items()
    }
    return interpolation.evaluate(BOARDS[name], prometheus, period, chosen)


def find(name, title):
    return next(panel for panel in loader.walk(BOARDS[name]["panels"]) if panel["title"] == title)


def ask(recorded, name, title, **chosen):
    """Return the curves of a panel."""
    values = evaluate(recorded, name, **chosen)
    return answers.curves(find(name, title), values, recorded[0], {})


def ends(run, name):
    """Return the last value of a gauge, from the files alone."""
    found = {}
    lines = [line for path in run.glob("metrics-*.gz") for line in gzip.decompress(path.read_bytes()).splitlines()]
    for _, _, metric in (each for line in lines for each in otlp_json.each_metric(json.loads(line))):
        for point in metric.get("gauge", {}).get("dataPoints", ()) if metric["name"] == name else ():
            found[int(point["timeUnixNano"])] = float(otlp_json.read_number(point))
    return found[max(found)]


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_panel_has_data(recorded, name, panel):
    """Prometheus takes every query of the panel, and the panel shows something, whichever run is looked at."""
    prometheus, _ = recorded
    values = evaluate(recorded, name, run=interpolation.ALL)
    if panel["type"] == "table":
        assert answers.table(panel, values, prometheus)
        return
    if panel["title"] in (
        "Last step ended",
        "Age of the checkpoint",
    ):  # of runs that are running: so at a time before their end
        period = values.period
        halfway = interpolation.Period(period.start, middle(PPO), SCRAPE)
        values = replace(values, period=halfway)
    found = answers.curves(panel, values, prometheus, {})
    assert found
    assert all(curve.series.times for curve in found)


def middle(run):
    """Return a time at which the run had made steps, and was running."""
    steps = recording.read_run(run)
    times = [point.time for key, points in steps.items() if key.name == "verl_training_steps_total" for point in points]
    saved = [
        point.time
        for key, points in steps.items()
        if key.name == "verl_checkpoint_last_timestamp_seconds"
        for point in points
    ]
    return max(sorted(times)[len(times) // 2], min(saved, default=0.0)) + 2 * SCRAPE


def test_every_query_of_gpus_finds_its_source(recorded):
    """With DCGM chosen each panel that reads a GPU shows DCGM's values and none of NVML's, and the other way around."""
    for source, mine in (("DCGM_FI_.+", True), ("hw_.+|verl_.+", False)):
        for title in (
            "GPU utilisation, by rank", "GPU memory, reads and writes", "GPU memory", "Power", "Temperature", "Clock", "Power of all GPUs",
        ):  # fmt: skip
            names = [curve.name for curve in ask(recorded, "gpus", title, gpus=source)]
            values = [name for name in names if not name.endswith("limit")]
            assert any(name.endswith("(DCGM)") for name in values) is mine, title
            assert all(name.endswith("(DCGM)") for name in values) is mine, title


def test_both_sources_agree_in_their_units(recorded):
    """A GPU's utilisation is a share, its memory bytes, whoever says it: the samples are of one and the same machine."""
    shares = ask(recorded, "gpus", "GPU utilisation, by rank", gpus=".+")
    assert {round(curve.series.values[-1], 2) for curve in shares if "GPU 0" in curve.name} == {0.83}
    used = [curve.series.values[-1] for curve in ask(recorded, "gpus", "GPU memory", gpus=".+")]
    assert all(5e10 < value < 2e11 for value in used)


def test_the_youngest_run_is_chosen_first(recorded):
    """Without a choice a board shows the run that began last; the list of runs is that of the recordings."""
    assert evaluate(recorded, "overview").chosen["run"] == (RUNS[-1].name,)
    board = BOARDS["overview"]
    variable = next(each for each in board["templating"]["list"] if each["name"] == "run")
    listed = interpolation.options(variable, evaluate(recorded, "overview"), recorded[0])
    assert listed == [run.name for run in reversed(RUNS)]


def test_one_run_shows_nothing_of_another(recorded):
    """Each curve of a board is of the chosen run."""
    for run in RUNS:
        for title in ("Reward", "KL", "Tokens per second", "Duration of a step", "Step"):
            found = ask(recorded, "overview", title, run=run.name)
            assert {curve.series.labels["verl_run_id"] for curve in found} == {run.name}, title


def test_two_runs_stand_in_one_view(recorded):
    """With two runs chosen a panel has the curves of both, by name."""
    both = tuple(run.name for run in RUNS[:2])
    found = ask(recorded, "overview", "Reward", run=both)
    assert {curve.series.labels["verl_run_id"] for curve in found} == set(both)
    assert all(any(run in curve.name for run in both) for curve in found)
    assert len({curve.name for curve in found}) == len(found)


def test_a_loop_of_ones_own_is_offered(tmp_path, recorded):
    """A training that is not verl's has steps and no more: it can be chosen, too."""
    own = {key: points for key, points in recording.read_run(PPO).items() if key.name == "verl_training_steps_total"}
    text = tmp_path / "own.txt"
    first, last = recording.write([own], text, SCRAPE)
    with server.serve(text, tmp_path, SCRAPE) as prometheus:
        values = interpolation.evaluate(BOARDS["overview"], prometheus, interpolation.Period(first, last, SCRAPE), {})
    assert values.chosen["run"] == (PPO.name,)


def test_projects_and_experiments_narrow_the_runs(recorded):
    """Of an experiment only its runs are offered."""
    for run in RUNS:
        info = next(dict(key.labels) for key in recording.read_run(run) if key.name == "verl_run_info")
        found = evaluate(recorded, "overview", project=info["verl_project"], experiment=info["verl_experiment"])
        assert found.chosen["run"] == (run.name,)
    assert evaluate(recorded, "overview", experiment="of nobody").chosen["run"] == ()


def test_roles_narrow_processes(recorded):
    """A role shows its processes only."""

    def roles(**chosen):
        found = ask(recorded, "pipeline", "Our own CPU time", run=interpolation.ALL, **chosen)
        return {curve.series.labels["instance"].rpartition("/")[2].partition("-")[0] for curve in found}

    assert roles(role="trainer") == {"trainer"}
    assert len(roles()) > 1


def test_the_table_joins_the_runs(recorded):
    """One row for each run, with its state, step and reward beside its project: the queries meet in one row."""
    values = evaluate(recorded, "overview")
    panel = find("overview", "Runs")
    rows = {row["Run"]: row for row in answers.table(panel, values, recorded[0])}
    assert set(rows) == {run.name for run in RUNS}
    for run in RUNS:
        row = rows[run.name]
        assert row["Step"] == ends(run, "verl.training.step")
        assert row["Reward"] == pytest.approx(ends(run, "verl.average_reward"))
        assert row["Last step ended"] == pytest.approx(ends(run, "verl.training.last_step.timestamp") * 1000, rel=1e-9)
        assert row["Project"] == "bed"
    assert list(next(iter(rows.values())))[:2] == ["Run", "State"]


def test_a_run_that_vanished_is_not_shown_as_running(recorded, tmp_path):
    """A run that was running when its metrics stopped is 'gone'; one that finished stays finished, hours later."""
    run = recording.read_run(PPO)
    killed = {key: points[:1] if key.name == "verl_run_state" else points for key, points in run.items()}
    text = tmp_path / "killed.txt"
    first, last = recording.write([killed], text, SCRAPE)
    target = find("overview", "State")["targets"][0]["expr"]
    with server.serve(text, tmp_path, SCRAPE) as prometheus:
        seen = []
        for end in (last, last + 3600):
            values = interpolation.Values({"run": (PPO.name,)}, {}, interpolation.Period(first, end, SCRAPE))
            seen.append(prometheus.ask(values.fill(target), end)[0].values[-1])
        assert seen == [1, 4]
    later = interpolation.Period(first, last + 3600, SCRAPE)
    values = interpolation.Values({"run": (PPO.name,)}, {}, later)
    assert recorded[0].ask(values.fill(target), later.end)[0].values[-1] == 2


def test_marks_are_where_checkpoints_were(recorded):
    """Each checkpoint but the first of a run has its mark, within a few scrapes."""
    run = PPO
    saved = [
        point.value
        for key, points in recording.read_run(run).items()
        if key.name == "verl_checkpoint_last_timestamp_seconds"
        for point in points
    ]
    values = evaluate(recorded, "overview", run=run.name)
    marks = [mark for mark in answers.marks(BOARDS["overview"], values, recorded[0]) if mark.name == "Checkpoint"]
    late = 4 * SCRAPE + values.period.step
    assert len(saved) > 1, "the recording has no two checkpoints"
    assert marks
    for time in sorted(saved)[1:]:
        assert any(mark.start - late <= time <= mark.end for mark in marks), (time, marks)
    for mark in marks:
        assert any(mark.start - late <= time <= mark.end for time in saved), (mark, saved)
    assert not [mark for mark in answers.marks(BOARDS["overview"], values, recorded[0]) if mark.name == "Resume"]


def test_engines_show_both_kinds(recorded):
    """A panel that asks vLLM and SGLang has the curves of both, told apart."""
    for title in ("Running requests", "KV cache", "Time to the first token, p95", "Tokens written per second"):
        names = [curve.name for curve in ask(recorded, "engines", title)]
        assert any(name.endswith("vllm") for name in names), title
        assert any(name.endswith("(SGLang)") for name in names), title


def test_phases_of_a_step_add_up(recorded):
    """The stacked phases are of one run and as high as its steps, as far as no phase lies in another."""
    run = RUNS[-1].name
    values = evaluate(recorded, "overview", run=run)
    stacked = answers.curves(find("overview", "Time of a step, by phase"), values, recorded[0], {"run": run})
    mean = next(
        curve for curve in ask(recorded, "overview", "Duration of a step", run=run) if curve.name.endswith("mean")
    )
    whole = dict(zip(mean.series.times, mean.series.values, strict=True))
    shares = {}
    for curve in stacked:
        for time, value in zip(curve.series.times, curve.series.values, strict=True):
            shares[time] = shares.get(time, 0.0) + value
    common = sorted(shares.keys() & whole.keys())
    assert common
    middle_time = common[len(common) // 2]
    assert 0.5 < shares[middle_time] / whole[middle_time] < 2
