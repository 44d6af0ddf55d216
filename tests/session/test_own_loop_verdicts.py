# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of an own loop are judged when they end, as those of verl."""

import pytest

import verl_otel
from verl_otel.recording import own_loop
from verl_otel.recording.own_loop import StepSummary
from verl_otel.session.own_loop_verdicts import OwnLoopVerdicts

USUAL, SLOW, STEPS, SLOW_STEP = 1.0, 4.0, 6, 5


def end_step(component, number, start, stop, *, before=0.0, reward=None, stops=(), waits=None):
    """End a step that is in the phase ``gen`` throughout."""
    phases = (("gen", start, stop),)
    own_loop._Loop.ended.append(
        own_loop.EndedStep(number, before, start, stop, phases, StepSummary(reward, stops, waits or {}))
    )
    component.judge()


def test_a_slow_phase_is_counted_and_logged(recorded, caplog):
    """The step that took longer is in the log with its phase, ``verl.step.held`` has the seconds, ``verl.goodput`` the share of the rest."""
    component, now = OwnLoopVerdicts(50.0), 100.0
    before = 0.0
    for number in range(1, STEPS + 1):
        stop = now + (SLOW if number == SLOW_STEP else USUAL)
        end_step(component, number, now, stop, before=before)
        before = now = stop
    assert "step 5 took 4.0 s: phase gen 3.0 s longer than usual" in caplog.text
    held = [point for point in recorded.points if point.instrument.name == "verl.step.held"]
    assert [(dict(point.labels), round(point.value, 3)) for point in held] == [
        ({"verl.held.kind": "phase", "verl.held.cause": "gen"}, 3.0)
    ]
    assert recorded.value("verl.goodput") == pytest.approx(
        STEPS / (now - 50.0)
    )  # start-up and what held a step are lost


@pytest.mark.parametrize(("rank", "count"), [("0", 1), ("1", 0), ("", 1)])
def test_the_first_rank_counts_and_judges_the_steps_of_a_distributed_loop(recorded, monkeypatch, rank, count):
    """The launcher may have set the rank after telemetry began. The spans of all ranks are kept."""
    for name, value in {"RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with verl_otel.step(1):
        pass
    assert len(recorded.spans) == 1
    assert len([each for each in recorded.points if each.instrument.name == "verl.step.duration"]) == count
    assert len(own_loop.take_ended()) == count


def test_the_progress_of_the_reward_is_followed(recorded):
    """Steps since the best mean of five rewards, from the fifth step on, and the trend from the eighth; steps without a reward count."""
    component = OwnLoopVerdicts(0.0)
    rewards = [1.0, 2.0, 3.0, 4.0, 5.0, 4.0, None, 3.0, 2.0]
    for number, reward in enumerate(rewards, start=1):
        end_step(component, number, number, number + 1.0, reward=reward)
    assert recorded.value("verl.training.steps_since_best", verl_metric="reward") == 1
    assert -1 <= recorded.value("verl.training.trend", verl_metric="reward") <= 1


def test_the_share_of_the_tail(recorded):
    """The share of the step in which its phase waited for the slowest of its trajectories; nothing where there is one trajectory only.

    The time since the step before is in no share of the step.
    """
    component = OwnLoopVerdicts(0.0)
    end_step(component, 1, 0.0, 10.0, stops=(9.0,))
    assert "verl.rollout.tail.share" not in {point.instrument.name for point in recorded.points}
    end_step(component, 2, 10.0, 20.0, stops=(12.0, 13.0, 18.0))
    assert recorded.value("verl.rollout.tail.share") == pytest.approx(0.5)
    end_step(component, 3, 50.0, 60.0, before=20.0, stops=(52.0, 53.0, 58.0))
    assert recorded.value("verl.rollout.tail.share") == pytest.approx(0.5)


def test_sudden_changes_are_followed(recorded):
    """The last three steps against those before: the step, and the mean time that its trajectories waited for the model and for tools."""
    component = OwnLoopVerdicts(0.0)
    for number in range(1, 12):
        factor = 3.0 if number > 8 else 1.0
        end_step(component, number, 0.0, factor, waits={"generation": 0.5, "tool": 0.1 * factor})
    ratios = [recorded.value("verl.training.change", verl_metric=name) for name in ("step", "generation", "tool")]
    assert ratios == [pytest.approx(3.0), pytest.approx(1.0), pytest.approx(3.0)]


def test_a_step_that_was_cut_off_is_not_judged(recorded, caplog):
    """It is neither long nor a peer of others, and its time is not effective."""
    component = OwnLoopVerdicts(0.0)
    for number in range(1, STEPS + 1):
        end_step(component, number, number, number + USUAL)
    stop = STEPS + 1 + SLOW
    phases = (("gen", STEPS + 1, stop),)
    own_loop._Loop.ended.append(own_loop.EndedStep(STEPS + 1, 0.0, STEPS + 1, stop, phases, StepSummary(None), False))
    component.judge()
    assert "longer than usual" not in caplog.text
    assert recorded.value("verl.goodput") == pytest.approx(STEPS * USUAL / stop)
