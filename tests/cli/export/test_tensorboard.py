# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel export tensorboard``: recorded runs, resumed ones, and runs that go on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import verl_otel
from verl_otel import session
from verl_otel.cli import rollouts
from verl_otel.cli.export.tensorboard import SampleTexts
from verl_otel.integrations.verl import tracking, training

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
)


def gauge(name, value, time_ns, description=""):
    point = {"attributes": [], "timeUnixNano": str(time_ns), "asDouble": value}
    return {"name": name, "description": description, "gauge": {"dataPoints": [point]}}


def line(*metrics):
    scopes = [{"scope": {"name": "verl_otel"}, "metrics": metrics}]
    return json.dumps({"resourceMetrics": [{"resource": {"attributes": []}, "scopeMetrics": scopes}]}) + "\n"


def step(number, time_ns, loss):
    described = "Scalar 'actor/pg_loss' of verl's Tracking.log, unchanged."
    return line(gauge("verl.training.step", number, time_ns), gauge("verl.actor.pg_loss", loss, time_ns, described))


@pytest.fixture
def folder(runs):
    folder = runs / "r1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"run_id": "r1"}')
    (folder / "metrics-trainer-n1-1.1.jsonl").write_text(step(1, 10, 0.5))
    (folder / "metrics-trainer-n1-1.jsonl").write_text(step(2, 20, 0.25) + step(3, 30, 9.0) + step(4, 40, 9.0)[:50])
    (folder / "metrics-worker-n1-2.jsonl").write_text(line(gauge("hw.gpu.utilization", 0.75, 15)) + "nonsense\n")
    record = {
        "timestamp": "x",
        "level": "INFO",
        "scope": "rollout",
        "step": 2,
        "tps": 3.5,
        "score_low": 0,
        "score_high": 1,
    }
    (folder / "verl_logs.jsonl").write_text(json.dumps({**record, "score_counts": [3, 1]}) + "\n")
    return folder


def read(folder):
    return accumulators.EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0}).Reload()


def steps(accumulator, tag):
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_a_recorded_run(call, folder, tmp_path):
    """All processes and rotated files; verl's keys and short tags; user's fields; GPUs; rewards; a cut-off line is passed over."""
    result = call("export", "tensorboard", "r1", "--output", tmp_path / "tb")
    assert (result.code, result.out) == (0, f"{tmp_path / 'tb'}: 3 steps\n")
    found = read(tmp_path / "tb")
    assert steps(found, "actor/pg_loss") == steps(found, "ppo/policy_loss") == [(1, 0.5), (2, 0.25), (3, 9.0)]
    assert steps(found, "system/gpu_utilization") == [(2, 75.0), (3, 75.0)]
    assert steps(found, "rollout/tps") == [(2, 3.5)]
    (rewards,) = found.Histograms("rollout/reward_dist")
    assert (rewards.step, rewards.histogram_value.bucket) == (2, [3.0, 1.0])


def test_verls_keys_of_timers_and_validations(call, start, tmp_path):
    """Those that no point has as it is: timers are phases, and points of validations do not say whether they are core or aux."""
    keys = {
        "timing_s/step": 12.5,
        "timing_s/old_log_prob": 2.0,
        "val-core/m/acc/mean@1": 0.5,
        "val-aux/m/length/mean@1": 7.0,
    }
    files = start(exporters="file")
    training.begin()
    tracking.record({**keys, "critic/rewards/mean": 0.25}, 3)
    session.shutdown()
    assert call("export", "tensorboard", files.folder, "--output", tmp_path / "tb").code == 0
    found = read(tmp_path / "tb")
    assert {tag: steps(found, tag) for tag in found.Tags()["scalars"] if tag.startswith(("val-", "timing_s/"))} == {
        key: [(3, value)] for key, value in keys.items()
    }


def test_steps_that_are_shorter_than_a_second_are_all_there(call, start, tmp_path):
    """A loop of one's own logs a number in each step: none is sampled, however many end between two drains."""
    files = start(exporters="file")
    for number in range(1, 11):
        with verl_otel.step(number):
            verl_otel.log("ppo", policy_loss=number / 10)
            with verl_otel.trajectory("p", 0):
                _score(number)
    session.shutdown()
    assert call("export", "tensorboard", files.folder, "--output", tmp_path / "tb").code == 0
    found = read(tmp_path / "tb")
    assert steps(found, "ppo/policy_loss") == [(number, pytest.approx(number / 10)) for number in range(1, 11)]
    assert steps(found, "rollout/reward_mean") == [(number, number) for number in range(1, 11)]


@verl_otel.reward("math")
def _score(number):
    return float(number)


def write_samples(folder, number, *outputs):
    """What verl writes of a step."""
    lines = [{"input": "2+2?", "output": output, "gts": "4", "score": 0.5, "step": number} for output in outputs]
    (folder / f"{number}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))


def texts(accumulator, tag):
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in accumulator.Tensors(tag)]


def test_samples_are_texts_by_choice(call, folder, tmp_path):
    """The first ones that verl wrote of each step, as they are; without the option no text is in the file."""
    (folder / "run.json").write_text(json.dumps({"run_id": "r1", rollouts.TRAINING: str(tmp_path)}))
    write_samples(tmp_path, 1, "four <b>", "<tool_call>add(2, 2)</tool_call>")
    write_samples(tmp_path, 3, "x" * 10_000)
    call("export", "tensorboard", "r1", "--output", tmp_path / "none")
    assert read(tmp_path / "none").Tags()["tensors"] == []
    assert b"four" not in next((tmp_path / "none").iterdir()).read_bytes()
    call("export", "tensorboard", "r1", "--output", tmp_path / "tb", "--samples", "2")
    found = read(tmp_path / "tb")
    (_, first), (step, long) = texts(found, "rollout/sample_0")
    assert first == "score 0.5\n\n**prompt**\n\n    2+2?\n\n**response**\n\n    four <b>\n\n**expected**\n\n    4"
    assert step == 3
    assert len(long) < 5_000
    assert "6,000 characters left out" in long
    ((step, second),) = texts(found, "rollout/sample_1")
    assert (step, second.split("\n\n")[3:5]) == (1, ["**tool call**", "    add(2, 2)"])


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ({}, "verl wrote none in this run, which trainer.rollout_data_dir switches on"),
        ({rollouts.TRAINING: "/not/on/this/node"}, "the files of trainer.rollout_data_dir are not there"),
    ],
)
def test_samples_that_are_not_there_have_a_reason(call, folder, tmp_path, manifest, reason):
    (folder / "run.json").write_text(json.dumps({"run_id": "r1", **manifest}))
    result = call("export", "tensorboard", "r1", "--output", tmp_path / "tb", "--samples", "2")
    assert result.code == 0
    assert f"no samples: {reason}" in result.err
    assert "no samples" not in call("export", "tensorboard", "r1", "--output", tmp_path / "tb").err


def test_samples_that_are_written_later(folder, tmp_path):
    """With ``--follow`` they are added once they are there; only those of the last steps are awaited."""
    manifest = {"run_id": "r1", rollouts.TRAINING: str(tmp_path)}
    (folder / "run.json").write_text(json.dumps(manifest))
    samples = SampleTexts([folder], 1)
    for number in range(1, 20):
        samples.add(number, float(number))
    assert list(samples.read()) == []
    for number in (1, 19):
        write_samples(tmp_path, number, "four")
    assert [(step, seconds) for step, seconds, _ in samples.read()] == [(19, 19.0)]
    assert list(samples.read()) == []


def test_a_resumed_run(call, folder, tmp_path):
    """Steps that were trained again have the values of the last attempt, also those that it has not reached again."""
    (folder / "metrics-trainer-n1-9.jsonl").write_text(step(1, 50, 0.25) + step(2, 60, 0.125))
    for _ in range(2):  # a second export replaces the first
        call("export", "tensorboard", "r1", "--output", tmp_path / "tb")
    found = read(tmp_path / "tb")
    assert steps(found, "actor/pg_loss") == [(1, 0.25), (2, 0.125)]
    assert [event.step for event in found.Histograms("rollout/reward_dist")] == [2]


def test_a_run_without_scalars(call, folder, tmp_path):
    """The exit code is 1."""
    for path in folder.glob("metrics-*"):
        path.unlink()
    assert call("export", "tensorboard", "r1", "--output", tmp_path / "tb").code == 1


@pytest.mark.full
def test_following(folder, tmp_path, wait_for):
    """New steps are appended while the run goes on; a step that goes back replaces what came after it."""
    command = [
        Path(sys.executable).with_name("verl-otel"),
        "export",
        "tensorboard",
        folder,
        "--follow",
        "--interval",
        "0.05",
    ]
    with subprocess.Popen([*command, "--output", tmp_path / "tb"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert "3 steps" in process.stdout.readline()
            with (folder / "metrics-trainer-n1-1.jsonl").open("a") as file:
                file.write("\n" + step(4, 60, 0.75))
            wait_for(lambda: steps(read(tmp_path / "tb"), "actor/pg_loss")[-1] == (4, 0.75))
            (folder / "metrics-trainer-n1-9.jsonl").write_text(step(3, 70, 0.5))
            wait_for(lambda: steps(read(tmp_path / "tb"), "actor/pg_loss")[-1] == (3, 0.5))
        finally:
            process.terminate()
