# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel guards``: what guards would have done in a recorded run."""

import json

import pytest

from tests.builders import stories


@pytest.fixture
def folder(tmp_path):
    """A run whose reward rises for 40 steps and is lost at step 41, with a gradient norm that is not finite at step 50."""
    story = stories.Story(tmp_path / "r1", "r1")
    trainer = story.process()
    trainer.scalar("verl.training.step", 0.5, 0)
    for step in range(1, 61):
        trainer.span("verl.step", step, step + 0.9, state=stories.STEP, verl__step__number=step)
        trainer.scalar("verl.training.step", step + 0.95, step)
        trainer.scalar("verl.critic.rewards.mean", step + 0.95, step / 40 if step <= 40 else 0.0)
        trainer.scalar("verl.actor.grad_norm", step + 0.95, float("nan") if step == 50 else 1.0)
        trainer.scalar("verl.validation.score", step + 0.95, -abs(step - 7), verl__data__source="math/a", verl__variable="acc", verl__aggregate="mean@1")  # fmt: skip
    return story.write()


def test_each_guard_says_when_it_would_have_stopped(call, folder):
    result = call("guards", folder, "--best", "val-core/math/a/acc/mean@1")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "run r1: 60 steps with scalars"
    assert lines[1] == "  VERL_OTEL_STOP_ON_NAN=1 would have stopped it after step 51: actor/grad_norm is nan"
    assert (
        lines[2]
        == "  VERL_OTEL_STOP_ON_KL=5 not known: the run has no actor/ppo_kl or actor/kl_loss or actor/reward_kl_penalty"
    )
    assert lines[3].startswith("  VERL_OTEL_STOP_ON_REWARD_FALL=5 would have stopped it after step 4")
    assert lines[4] == "  VERL_OTEL_STOP_ON_PLATEAU=100 not known: the run has only 60 steps with its scalars"
    assert (
        lines[5] == "  best val-core/math/a/acc/mean@1: 0 at step 7, of all steps: how often verl saved is not recorded"
    )


def test_a_loop_of_ones_own_is_stopped_by_no_guard(call, tmp_path):
    """What they would have done in a trainer of verl is printed, too."""
    story = stories.Story(tmp_path / "r1", "r1")
    loop = story.process("process")
    story.manifest(attempts=[{"started": stories.T0}])
    for step in range(1, 41):
        stories.step(loop, step, step, step + 0.9, verl__step__lineage="submitted")
        loop.scalar("verl.training.step", step + 0.9, step)
        loop.scalar("verl.average_reward", step + 0.9, 0.9 if step <= 30 else 0.1)
    lines = call("guards", story.write()).out.splitlines()
    assert (
        "  VERL_OTEL_STOP_ON_REWARD_FALL=5 would have stopped it after step 36: the reward fell from 0.9 to 0.1, for 5 steps"
        in lines
    )
    assert lines[-2] == "  guards act in verl's trainers only: a loop of your own is not stopped by them"


def test_a_guard_is_judged_on_as_many_steps_as_it_needs(call, folder):
    """The fall of a reward is measured against means of twenty steps."""
    lines = call("guards", folder, "--plateau", "60", "--reward-fall", "41", "--nan", "61").out.splitlines()
    short = "not known: the run has only 60 steps with its scalars"
    assert lines[1] == f"  VERL_OTEL_STOP_ON_NAN=61 {short}"
    assert lines[3:5] == [
        f"  VERL_OTEL_STOP_ON_REWARD_FALL=41 {short}",
        "  VERL_OTEL_STOP_ON_PLATEAU=60 would not have stopped it",
    ]


@pytest.mark.parametrize(
    ("frequency", "state", "line", "step"),
    [
        (10, 1, "-3 at step 10, of those that verl saved (trainer.save_freq=10)", 10),
        (100, 1, "of those that verl saved (trainer.save_freq=100), none has a value", None),
        (100, 2, "-53 at step 60, of those that verl saved (trainer.save_freq=100)", 60),
        (-1, 2, "0 at step 7, of all steps: verl saved none (trainer.save_freq)", 7),
    ],
)
def test_the_best_is_one_that_verl_saved(call, tmp_path, frequency, state, line, step):
    """Every so many steps, and the last step of a run that came to it."""
    story = stories.Story(tmp_path / "r1", "r1")
    trainer = story.process()
    trainer.scalar("verl.limit", 0.5, frequency, verl__limit__name="save_frequency")
    for number in range(1, 61):
        trainer.span("verl.step", number, number + 0.9, state=stories.STEP, verl__step__number=number)
        trainer.scalar("verl.training.step", number + 0.95, number)
        trainer.scalar("verl.critic.rewards.mean", number + 0.95, -abs(number - 7))
    trainer.scalar("verl.run.state", 61, state)
    run = story.write()
    assert line in call("guards", run, "--best", "critic/rewards/mean").out
    assert (
        line.replace("critic/rewards/mean", "rollout/reward_mean")
        in call("guards", run, "--best", "rollout/reward_mean").out
    )
    document = json.loads(call("guards", run, "--best", "critic/rewards/mean", "--json").out)
    assert (document["best_step"], document["save_frequency"]) == (step, frequency)


def test_thresholds_are_those_of_a_profile(call, folder, tmp_path):
    """With a fall that nothing reaches, the guard would not have stopped it."""
    own = tmp_path / "own.toml"
    own.write_text("reward_fall = nan\n")
    assert "REWARD_FALL=5 would not have stopped it" in call("guards", folder, "--profile", own).out
    assert "REWARD_FALL=5 would have stopped it" in call("guards", folder, "--profile", "math").out


def test_without_one_they_are_those_of_the_run(call, folder):
    manifest = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
    (folder / "run.json").write_text(
        json.dumps({**manifest, "health_profile": "own", "health_thresholds": '{"reward_fall": null}'})
    )
    assert "REWARD_FALL=5 would not have stopped it" in call("guards", folder).out


def test_json(call, folder):
    document = json.loads(call("guards", folder, "--json", "--nan", "2", "--best", "min:actor/grad_norm").out)
    assert (document["run_id"], document["steps"], document["best_step"]) == ("r1", 60, 1)
    assert document["guards"]["nan"] is None
    assert document["guards"]["reward_fall"]["step"] > 40


def test_a_run_without_scalars_is_exit_code_1(call, tmp_path):
    story = stories.Story(tmp_path / "r2", "r2")
    story.process().span("verl.step", 0, 1, state=stories.STEP, verl__step__number=1)
    result = call("guards", story.write())
    assert result.code == 1
    assert "no scalars of verl" in result.err
    assert result.out.count("not known: the run has no scalars of verl") == 4
    assert "would not have" not in result.out
