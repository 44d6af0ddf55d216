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
        f"trainer.default_local_dir={out.parent}/checkpoints-{mode}",
        "trainer.test_freq=-1",
    ]
    return bed_run.train(out, mode=mode, steps=steps, overrides=[*fixed, *overrides], **options)


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
    assert (
        not (training.folder / "events.jsonl").exists() or "crash" not in (training.folder / "events.jsonl").read_text()
    )


@pytest.mark.matrix
def test_a_run_resumes_from_the_best_checkpoint(stopped):
    """The first step has the best value; verl's own folders and what it resumes from by itself are as without guards."""
    mode, training = stopped
    folder = training.out.parent / f"checkpoints-{mode}"
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == str(STOP_AT + 1)
    (best,) = (folder / "best").iterdir()
    assert best.name == "global_step_1"
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={best}"]
    resumed = train(training.out.parent / f"resumed-{mode}", mode, *resume, steps=2)
    assert resumed.returncode == 0, resumed.log[-3000:]
    assert sorted(step for step in resumed.scalars() if step) == [2]
