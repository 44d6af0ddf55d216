# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel explain`` of a recorded run: how it learned, in the same words and numbers as of a log of verl."""

import json
import math
import re
from pathlib import Path

import pytest

import verl_otel
from tests.builders import stories

DEMO = Path(verl_otel.__file__).parent / "cli" / "demo" / "recorded"
KEYS = ("progress", "signals", "findings")


def course(step):
    """Verl's scalars of a step: a reward that rises and is lost, a gradient norm that is not finite once, and a validation now and then."""
    values = {
        "critic/rewards/mean": step / 40 if step <= 40 else 0.0,
        "actor/grad_norm": math.nan if step == 50 else 1.0,
        "actor/ppo_kl": 0.01,
    }
    return values | ({"val-core/math/a/acc/mean@1": step / 60} if step % 10 == 0 else {})


@pytest.fixture
def record(tmp_path):
    """Write a run that has the scalars of `course`, from one step to another in each attempt; a validation is logged by itself."""

    def write(*attempts):
        story = stories.Story(tmp_path / "r1", "r1")
        trainer, now = story.process(), 0
        for first, last in attempts:
            for step in range(first, last + 1):
                now += 1
                trainer.span("verl.step", now, now + 0.9, state=stories.STEP, verl__step__number=step)
                trainer.scalar("verl.training.step", now + 0.95, step)
                trainer.scalar("verl.training.step", now + 0.97, step)
                for key, value in course(step).items():
                    if key.startswith("val-core"):
                        trainer.scalar("verl.validation.score", now + 0.97, value, verl__data__source="math/a", verl__variable="acc", verl__aggregate="mean@1")  # fmt: skip
                    else:
                        trainer.scalar(f"verl.{key.replace('/', '.')}", now + 0.95, value)
        return story.write()

    return write


def test_the_text_of_a_run_in_which_nothing_is_wrong(call):
    """Some lines between what held the steps and the whole run; none in the text of one step."""
    out = call("explain", DEMO / "healthy").out
    section = out.partition("\nLearning ")[2].partition("\n\n")[0]
    assert section.splitlines() == [
        "(thresholds: profile default)",
        "  The best mean reward of five steps ended at step 8, the last one; in the last 8 steps the reward has no clear trend",
        "    (Kendall's tau 0.29).",
    ]  # the longest response has 91 of 160 tokens: none was cut off, whatever verl's ratio is
    assert out.index("\nStep 8") < out.index("\nLearning ") < out.index("\nThe whole run")
    assert "Learning" not in call("explain", DEMO / "healthy", "--step", "4").out
    assert "learning: the best mean reward of five steps ended at step 8, the last one" in call("explain", DEMO / "healthy", "--brief").out  # fmt: skip


def test_the_text_of_a_run_in_which_something_is(call, record):
    """Each finding with what to do, and the signals."""
    run = record((1, 60))
    lines = call("explain", run).out.splitlines()
    begin = lines.index("Learning (thresholds: profile default)")
    assert lines[begin + 1 : lines.index("", begin)] == [
        "  Step 41: the mean reward is exactly 0, which it was not before, for 3 steps (noticed at step 43, lasted until step",
        "    60). To do: look at what the reward function returns (trainer.rollout_data_dir keeps the rollouts).",
        "  Step 41: the reward fell from 0.762 to 0, after it had risen by 0.5, for 5 steps (noticed at step 47, lasted until",
        "    step 60). To do: go back to a checkpoint before it (VERL_OTEL_STOP_ON_REWARD_FALL=5 stops such a run).",
        "  Step 50: actor/grad_norm is nan. To do: look at the steps before it, and at the learning rate (VERL_OTEL_STOP_ON_NAN=1",
        "    stops such a run).",
        "  The best mean reward of five steps ended at step 40, 20 steps before the last one; in the last 20 steps the reward has",
        "    no clear trend (Kendall's tau 0.00).",
        "  signal                      first 20  last 20  lowest  at step  highest  at step  trend",
        "  reward_mean                   0.2625        0       0       41        1       40  no trend",
        "  kl_div                          0.01     0.01    0.01        1     0.01        1  no trend",
        "  grad_norm                          1        1       1        1        1        1  no trend; NaN in 1 step",
        "  val-core/math/a/acc/mean@1      0.25   0.9167  0.1667       10        1       60",
    ]
    brief = call("explain", run, "--brief").out
    assert "learning (nan): step 50: actor/grad_norm is nan; do: look at the steps before it" in brief


def test_a_recorded_run_and_the_log_of_the_same_training_say_the_same(call, record, tmp_path):
    """Also where attempts have trained steps again, which count once."""
    run, log = record((1, 45), (31, 60)), tmp_path / "log.jsonl"
    steps = [*range(1, 46), *range(31, 61)]
    plain = [{key: None if math.isnan(value) else value for key, value in course(step).items()} for step in steps]
    log.write_text(
        "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in zip(steps, plain, strict=True))
    )
    found, expected = (json.loads(call("explain", place, "--json").out) for place in (run, log))
    assert {finding["kind"] for finding in found["findings"]} == {"reward_zero", "reward_fall", "nan"}
    for key in KEYS:
        assert found[key] == expected[key], key


def test_an_own_loop_is_judged_by_its_reward_and_its_gauges(call, tmp_path):
    """The reward has the time of its step, gauges are read at other times. Settings and guards of verl's trainers are no advice for it."""
    story = stories.Story(tmp_path / "r1", "r1")
    loop = story.process("process")
    story.manifest(attempts=[{"started": stories.T0}])
    for step in range(1, 31):
        stories.step(loop, step, step, step + 0.9, verl__step__lineage="submitted")
        loop.scalar("verl.training.step", step + 0.9, step)
        loop.scalar("verl.average_reward", step + 0.9, 0.0 if step > 25 else 0.5)
        loop.scalar("verl.actor.pg_loss", step + 0.95, math.nan if step == 7 else 1.0)
    story.write()
    answer = json.loads(call("explain", "--json", story.folder).out)
    assert [(finding["kind"], finding["step"]) for finding in answer["findings"]] == [
        ("nan", 7), ("reward_zero", 28), ("reward_fall", 30)
    ]  # fmt: skip
    assert [signal["name"] for signal in answer["signals"]] == ["reward_mean", "policy_loss"]
    section = " ".join(call("explain", story.folder).out.partition("\nLearning ")[2].split())
    assert "To do: look at what the reward function returns." in section
    assert not any(name in section for name in ("trainer.", "VERL_OTEL_STOP"))


def test_thresholds_are_those_of_the_run(call, record):
    """Its manifest has them, whatever the environment of the command says."""
    run = record((1, 60))
    facts = json.loads((run / "run.json").read_text()) if (run / "run.json").exists() else {}
    (run / "run.json").write_text(
        json.dumps({**facts, "health_profile": "own", "health_thresholds": '{"reward_fall": null}'})
    )
    document = json.loads(call("explain", run, "--json").out)
    assert document["profile"] == "own"
    assert {finding["kind"] for finding in document["findings"]} == {"reward_zero", "nan"}


def test_the_component_that_moved_with_the_reward_is_named(call, tmp_path):
    """From the points of a recorded run; also in the brief text and in the JSON."""
    story = stories.Story(tmp_path / "r1", "r1")
    trainer = story.process()
    for step in range(1, 61):
        trainer.span("verl.step", step, step + 0.9, state=stories.STEP, verl__step__number=step)
        right, form = float(step <= 30), 0.5 + step % 2 / 100
        for name, value in (("verl.training.step", step), ("verl.critic.rewards.mean", right + form)):
            trainer.scalar(name, step + 0.95, value)
        for name, value in (("right", right), ("form", form)):
            trainer.scalar("verl.reward.component", step + 0.95, value, verl__variable=name, verl__aggregate="mean")
    run = story.write()
    sentence = r"t step 31 the mean reward fell from 1.505 to 0.505 \(means of steps .*\): right fell from 1 to 0; form \(0.505\) did not"
    assert re.search(rf"A{sentence}\.", " ".join(call("explain", run).out.split()))
    assert re.search(f"a{sentence}", call("explain", run, "--brief").out)
    move = json.loads(call("explain", run, "--json").out)["reward_move"]
    assert [(change["name"], change["moved"]) for change in move["components"]] == [("right", True), ("form", False)]


def test_a_run_without_scalars_says_nothing(call, tmp_path):
    """Neither in the text nor in the JSON."""
    story = stories.Story(tmp_path / "r2", "r2")
    story.process().span("verl.step", 0, 1, state=stories.STEP, verl__step__number=1)
    run = story.write()
    assert "Learning" not in call("explain", run).out
    document = json.loads(call("explain", run, "--json").out)
    assert [document[key] for key in KEYS] == ["", [], []]
