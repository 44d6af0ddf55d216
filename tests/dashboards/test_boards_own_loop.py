# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The boards of a training loop of one's own, without verl: on a real Prometheus with a real run of one, every panel has data but those listed here.

GPUs and scrapes are samples, as in `test_boards_data`: the loop runs on a CPU and writes files.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from dashboards import loader
from dashboards.evaluation import answers, interpolation, recording, server
from tests.builders.environments import inherit

HERE = Path(__file__).resolve().parent
SAMPLES = HERE / "samples"
SCRAPE = 1.0
RUN_LABEL = "verl_run_id"
ENGINE = "metrics of vLLM and SGLang, whose servers verl starts and registers"
GPU_TIME = "the number of GPUs and what each is for, which verl's configuration says"
ROLES = "the roles of verl's workers"
WEIGHTS = "versions of the weights and their transport, which verl's trainers and checkpoint engine know"
TRAINER = "what verl's trainers and agent loops do, as checkpoints: an own loop records it as phases, or has none"
LOGGED = "a value that verl logs"
EVENT = "an event that this loop does not have"
MINUTE = "a run of more than a minute"
EMPTY = {
    **{
        ("engines", title): ENGINE
        for title in (
            "Running requests", "Waiting requests", "Imbalance of replicas", "Sleep", "KV cache", "Prefix cache hits", "Preemptions",
            "Tokens written per second", "Tokens read per second", "Ends of requests", "Time to the first token, p95",
            "Time between tokens, p95", "Time in the queue, p95", "Request, p95", "Call outside of the engine",
        )
    },
    ("rollouts", "Queue, prefill, decode"): ENGINE,
    ("gpus", "GPU time lost, by cause"): GPU_TIME,
    ("overview", "GPU time by use and loss"): GPU_TIME,
    ("gpus", "Wait for the other side"): GPU_TIME,
    ("gpus", "GPU utilisation while the role has work"): ROLES,
    ("gpus", "Framework memory, peak"): LOGGED,
    ("training", "Validation"): LOGGED,
    ("rollouts", "Staleness"): WEIGHTS,
    **{
        ("rollouts", title): "TransferQueue"
        for title in (
            "Samples in TransferQueue", "Progress of partitions", "Storage of TransferQueue", "Memory of TransferQueue",
            "Requests to TransferQueue", "Requests to TransferQueue, p99",
        )
    },
    ("overview", "Groups in the replay buffer"): "the replay buffer of verl 0.9",
    **{("steps", title): WEIGHTS for title in ("Weight sync", "Weight sync for each step", "Weight sync, bytes")},
    **{("steps", title): TRAINER for title in ("Checkpoint", "Age of the checkpoint", "Validation")},
    **{("steps", title): EVENT for title in ("Stalls and crashes", "Restarted workers")},
    ("steps", "Weight sync, parts"): WEIGHTS,
    **{("rollouts", title): TRAINER for title in ("Set-up of tools", "Trajectories that were dropped")},
    ("pipeline", "Own failures"): EVENT,
    ("pipeline", "Budget used"): MINUTE,
}  # fmt: skip
"""Panels without data, by board and title, and what they would need."""
SETTINGS = {
    "VERL_OTEL_ENABLED": "1",
    "VERL_OTEL_PROJECT": "toys",
    "VERL_OTEL_EXPERIMENT": "own",
    "VERL_OTEL_MEMORY_MIB": "1",
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
}


def train(folder):
    """Run the loop, and return the folder of its run."""
    environ = {**inherit("PYTEST_"), **SETTINGS, "VERL_OTEL_RUN_DIR": str(folder)}
    subprocess.run([sys.executable, HERE / "own_loop.py"], env=environ, check=True, timeout=300)
    (run,) = folder.iterdir()
    return run


def relabel(sample):
    """Give the series of a sample the role that a process of an own loop has."""
    return {
        recording.Key(key.name, tuple((name, "process" if name == "verl_role" else value) for name, value in key.labels)): points
        for key, points in sample.items()
        if RUN_LABEL in dict(key.labels)
    }  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory, promtool):
    """A real Prometheus with the run of an own loop, its id and the time that it took."""
    folder = tmp_path_factory.mktemp("own")
    run = train(folder / "runs")
    recorded = recording.read_run(run)
    times = [point.time for points in recorded.values() for point in points]
    samples = [recording.read_sample(SAMPLES / f"{name}.prom", run.name, min(times), max(times)) for name in ("hardware", "prometheus")]  # fmt: skip
    *_, shared = recording.read_all([run], SAMPLES)
    first, last = recording.write([recorded, *map(relabel, samples), shared], folder / "own.txt", SCRAPE)
    with server.serve(folder / "own.txt", folder, SCRAPE) as prometheus:
        yield prometheus, run.name, interpolation.Period(first, last, SCRAPE)


def has_data(own, name, panel):
    """Return whether a panel shows anything: at the end of the run, or halfway for what is shown of running ones only."""
    prometheus, run, period = own
    for until in (period.end, (period.start + period.end) / 2):
        chosen = {"window": ("30s",), "run": (run,)}
        values = interpolation.evaluate(
            loader.read()[name], prometheus, interpolation.Period(period.start, until, SCRAPE), chosen
        )
        if panel["type"] == "table":
            found = answers.table(panel, values, prometheus)
        else:
            found = answers.curves(panel, values, prometheus, {"run": run})
        if found:
            return True
    return False


def test_every_other_panel_has_data(own):
    """Exactly the listed panels are empty: no other one, and none of them has data meanwhile."""
    panels = [
        (name, panel)
        for name, board in loader.read().items()
        for panel in loader.walk(board["panels"])
        if panel["type"] != "row" and panel["datasource"]["type"] == "prometheus"
    ]
    empty = {(name, panel["title"]) for name, panel in panels if not has_data(own, name, panel)}
    assert empty == set(EMPTY)
    assert len(panels) - len(empty) > 3 * len(empty)


def test_the_row_of_the_run(own):
    """In the list of runs it has its project, experiment, state, last step and the mean score of that step."""
    prometheus, run, period = own
    board = loader.read()["overview"]
    panel = next(panel for panel in loader.walk(board["panels"]) if panel["title"] == "Runs")
    values = interpolation.evaluate(board, prometheus, period, {"window": ("30s",)})
    (row,) = answers.table(panel, values, prometheus)
    assert (row["Run"], row["Project"], row["Experiment"]) == (run, "toys", "own")
    assert (row["State"], row["Step"]) == (2, 16)
    assert row["Reward"] == pytest.approx(1.15)
