# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A guard stops a real training by verl's own last step: exit code, state, checkpoints, and a run that resumes from the best one."""

import json

import pytest

from tests.end_to_end import bed_run, modes

pytestmark = pytest.mark.verl

STOP_AT = 2
MODES = [
    "sync",
    *(
        pytest.param(mode, marks=pytest.mark.matrix)
        for mode in ("colocate_async", "separate_async", "legacy", "one_step_off", "0.8")
    ),
]


def train(out, mode, *overrides, steps=8, **variables):
    options = {"VERL_OTEL_ENABLED": 1, "VERL_OTEL_RUN_DIR": out / "runs", **variables}
    if mode == "0.8":
        options |= {"python": modes.make_environment("08"), "VERL_USE_EXTERNAL_MODULES": "verl_otel.plugin,cpu_bed"}
    fixed = [
        "trainer.save_freq=1",
        "trainer.max_actor_ckpt_to_keep=1",  # verl deletes all but the last one
        f"trainer.default_local_dir={out.parent}/checkpoints-{mode}",
        "trainer.test_freq=-1",
    ]
    return bed_run.train(out, mode=mode, steps=steps, overrides=[*fixed, *overrides], **options)


def read_events(training):
    return [json.loads(line) for line in (training.folder / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=MODES)
def stopped(request, outs):
    """A training of eight steps that a callback stops after the second."""
    variables = {"CPU_BED_STOP": STOP_AT, "VERL_OTEL_BEST_CHECKPOINT": "min:training/global_step"}
    return request.param, train(outs / f"stopped-{request.param}", request.param, **variables)


def test_the_next_step_is_the_last_and_the_exit_code_is_3(stopped):
    _, training = stopped
    assert training.returncode == 3, training.log[-3000:]
    assert sorted(step for step in training.scalars() if step) == list(range(1, STOP_AT + 2))
    assert "verl-otel: stopped by guard callback: as planned" in training.log


def test_the_run_is_stopped_and_no_crash_is_reported(stopped):
    _, training = stopped
    manifest = json.loads((training.folder / "run.json").read_text())
    assert (manifest["stopped_by"], manifest["stop_reason"]) == ("callback", "as planned")
    assert "stopped by guard" in training.report().splitlines()[0]
    assert [value for name, _, _, value in training.points() if name == "verl.run.state"][-1] == 5
    assert [event["kind"] for event in read_events(training)] == ["stopped"]


@pytest.mark.matrix
def test_a_run_resumes_from_the_best_checkpoint(stopped):
    """The first step has the best value, which no step of the resumed run has; what verl resumes from by itself is as without guards."""
    mode, training = stopped
    folder = training.out.parent / f"checkpoints-{mode}"
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == str(STOP_AT + 1)
    assert not (folder / "global_step_1" / "actor").exists(), "verl has deleted its own copy"
    best = folder / "best" / "global_step_1"
    assert sorted(path.name for path in best.parent.iterdir()) == ["global_step_1", "value.json"]
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={best}"]
    out, metric = training.out.parent / f"resumed-{mode}", "min:training/global_step"
    resumed = train(out, mode, *resume, steps=2, VERL_OTEL_BEST_CHECKPOINT=metric)
    assert resumed.returncode == 0, resumed.log[-3000:]
    assert sorted(step for step in resumed.scalars() if step) == [2]
    assert sorted(path.name for path in best.parent.iterdir()) == ["global_step_1", "value.json"]
    assert f"the best checkpoint of an earlier run has {metric} 1 at step 1" in resumed.log


@pytest.mark.matrix
def test_the_fully_asynchronous_trainer_is_not_stopped_and_the_log_has_the_reason(outs):
    """Its end comes from its rollouter; the run ends as without guards."""
    training = train(outs / "not-stopped", "fully_async", CPU_BED_STOP=STOP_AT)
    assert training.returncode == 0, training.log[-3000:]
    assert f"guard callback would stop the training at step {STOP_AT} (as planned)" in training.log
    assert "but this trainer cannot be stopped" in training.log
    assert "stopped_by" not in json.loads((training.folder / "run.json").read_text())
    assert not (training.folder / "events.jsonl").exists()
