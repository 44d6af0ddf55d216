# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is read from the folder of a training: how long its steps took, and what telemetry says that it has taken."""

import json

import pytest

from benchmarks import trainings
from benchmarks.cases import training
from benchmarks.trainings import Window
from verl_otel.semconv.metrics import METRICS


def write_trajectories(out, *rows):
    """Lines of the bed's log: step, start, whether it validates."""
    (out / "log").mkdir(parents=True)
    lines = [json.dumps({"step": step, "start": start, "validate": validate}) for step, start, validate in rows]
    (out / "log" / "trajectory.jsonl").write_text("\n".join(lines) + "\n")


def write_points(out, role, points):
    """A file of metrics: seconds, and CPU seconds by kind of work."""
    folder = out / "runs" / "run-1"
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for when, kinds in points:
        data = [
            {
                "attributes": [{"key": "reason", "value": {"stringValue": kind}}],
                "timeUnixNano": str(max(1, int(when * 1e9))),
                "asDouble": value,
            }
            for kind, value in kinds.items()
        ]
        metrics = [{"name": "verl.otel.overhead", "sum": {"dataPoints": data}}, {"name": "other", "gauge": {}}]
        lines.append(json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}))
    (folder / f"metrics-{role}-node-{len(points)}.jsonl").write_text("\n".join(lines) + "\n")


def test_a_step_is_from_trajectory_to_trajectory(tmp_path):
    """From the first of the second step to the first of the last one: neither the start, nor a validation, nor the end."""
    write_trajectories(
        tmp_path,
        (0, 5.0, True),
        (1, 10.0, False),
        (2, 100.5, False),
        (2, 100.0, False),
        (3, 101.0, True),
        (3, 102.0, False),
        (4, 104.0, False),
        (4, 109.0, False),
    )
    found = trainings.find_window(tmp_path)
    assert found == Window(100.0, 104.0, 2)
    assert found.step == 2.0


def test_two_steps_are_no_window(tmp_path):
    """A training that ended early is refused, not taken for a fast one."""
    write_trajectories(tmp_path, (1, 10.0, False), (2, 20.0, False))
    with pytest.raises(ValueError, match="needs three steps"):
        trainings.find_window(tmp_path)


def test_what_telemetry_takes_is_the_slope_of_its_counter(tmp_path):
    """Of each process and kind, without what was before the window; two processes of a role are added up."""
    write_points(tmp_path, "trainer", [(90, {"drain": 5.0}), (100, {"drain": 6.0}), (110, {"drain": 6.1, "file": 0.2})])
    write_points(tmp_path, "reward", [(100, {"drain": 0.5}), (105, {"drain": 0.6}), (130, {"drain": 9.0})][:2])
    write_points(
        tmp_path, "reward", [(99, {"drain": 0.0}), (101, {"drain": 1.0}), (111, {"drain": 1.2}), (112, {"drain": 9.0})]
    )
    found = trainings.account(tmp_path, Window(100, 111, 5))
    assert found["trainer"] == {"drain": pytest.approx(0.01), "file": pytest.approx(0.2 / 11)}
    assert found["reward"] == {"drain": pytest.approx(0.02 + 0.02)}


def test_a_training_that_says_nothing_is_refused(tmp_path):
    """Nothing found is not "costs nothing"."""
    with pytest.raises(ValueError, match=r"no verl\.otel\.overhead"):
        trainings.account(tmp_path, Window(0, 1, 1))


def test_the_shares_are_those_of_the_case(tmp_path):
    """Every figure that the case announces, of all processes, of the trainer, and of recording alone."""
    write_points(tmp_path, "trainer", [(0, {"drain": 0.0, "recording": 0.0}), (10, {"drain": 0.1, "recording": 0.02})])
    write_points(tmp_path, "reward", [(0, {"drain": 0.0}), (10, {"drain": 0.2}), (20, {"drain": 0.4})])
    found = training._shares(tmp_path, Window(0, 20, 5))
    assert set(found) == set(training.FIGURES)
    assert found[training.ALL] == pytest.approx(0.01 + 0.002 + 0.02)
    assert found[training.TRAINER] == pytest.approx(0.012)
    assert found[training.RECORDING] == pytest.approx(0.002)


def test_the_counter_is_in_the_catalogue():
    """Renamed there it has to be renamed here, or every training would be refused."""
    assert trainings.OVERHEAD in {each.name for each in METRICS.values()}


class Runner:
    """Stands for the bed: leaves the folder that a training leaves, and remembers what it was asked for."""

    def __init__(self, *, writes, returncode=0):
        self.writes, self.returncode, self.log, self.asked = writes, returncode, "the end of the log", {}

    def train(self, out, **asked):
        self.out, self.asked = out, asked
        out.mkdir()
        if self.writes:
            (out / "runs").mkdir()
        return self


def bed(**more):
    made = object.__new__(trainings.Bed)
    made._runner = Runner(**more)
    return made


@pytest.mark.parametrize("on", [True, False])
def test_a_training_is_with_or_without_telemetry(tmp_path, on):
    """By the switch alone: everything else is the same, so that a pair differs in nothing else."""
    made = bed(writes=on)
    assert made.train(tmp_path / "out", on=on) == tmp_path / "out"
    asked = made._runner.asked
    assert asked.pop("VERL_OTEL_ENABLED") == int(on)
    assert asked.pop("VERL_OTEL_RUN_DIR") == tmp_path / "out" / "runs"
    assert set(asked) == {"prefix", "steps", "overrides"}


@pytest.mark.parametrize(
    ("on", "more", "said"),
    [
        (True, {"writes": False}, "telemetry is not on"),
        (False, {"writes": True}, "telemetry is on"),
        (True, {"writes": True, "returncode": 1}, "the end of the log"),
    ],
)
def test_a_training_that_is_not_what_it_should_be_is_refused(tmp_path, on, more, said):
    """One that failed, or whose telemetry is not as it was set: its step would be taken for a finding."""
    with pytest.raises(RuntimeError, match=said):
        bed(**more).train(tmp_path / "out", on=on)
