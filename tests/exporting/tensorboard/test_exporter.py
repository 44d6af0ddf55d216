# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The exporter ``tensorboard``: what a training logs is what TensorBoard reads."""

import pytest

from verl_otel import session
from verl_otel.integrations.verl import scalars, step_log, tracking, training
from verl_otel.integrations.verl.sample_origin import Origin

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
)

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def fresh():
    """Begin with no key seen."""
    for each in (scalars._names, scalars._taken, scalars._seen):
        each.clear()


KEYS = {
    "actor/grad_norm": 1.5,
    "timing_s/gen": 9.0,
    "timing_s/step": 12.5,
    "timing_s/old_log_prob": 2.0,
    "val-core/m/acc/mean@1": 0.5,
    "val-aux/m/length/mean@1": 7.0,
}


def read(folder):
    return accumulators.EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0}).Reload()


def steps(accumulator, tag):
    return [(event.step, round(event.value, 6)) for event in accumulator.Scalars(tag)]


def train(first, last):
    training.begin()
    for number in range(first, last + 1):
        step_log.note_trajectories([Origin(1, 1, 1.0, 0.0, "m"), Origin(1, 2, 1.0, 1.0, "m")], {})
        tracking.record({**KEYS, "critic/rewards/mean": number / 4, "critic/score/mean": number / 4}, number)


@pytest.mark.parametrize(("mean", "room"), [(0.3, 1e-6), (0.9, 5 / 32)], ids=["of the scores", "of other samples"])
def test_the_sum_of_the_rewards_is_that_of_the_scores(start, mean, room):
    """It comes from the mean that verl logs; where that is of other samples, from the bins, at most half a bin away."""
    files = start(exporters="file,tensorboard")
    scores = [0.0, 0.1, 0.1, 0.3, 1.0]
    training.begin()
    step_log.note_trajectories([Origin(1, index, 1.0, score, "m") for index, score in enumerate(scores)], {})
    tracking.record({"critic/rewards/mean": 0.9, "critic/score/mean": mean}, 1)
    session.shutdown()
    (event,) = read(files.folder / "tensorboard").Histograms("rollout/reward_dist")
    found = event.histogram_value
    assert (found.num, found.min, found.max) == (5, 0.0, 1.0)
    assert found.sum == pytest.approx(sum(scores), abs=room)
    assert found.sum_squares == pytest.approx(sum(score * score for score in scores), abs=room)


def test_a_training_and_its_resumption(start):
    """Verl's keys, the short tags and histograms; a resumed run goes on, and its steps replace those it trains again."""
    files = start(exporters="file,tensorboard")
    train(1, 4)
    session.shutdown()
    start(exporters="file,tensorboard")
    train(3, 5)
    session.shutdown()
    events = read(files.folder / "tensorboard")
    assert steps(events, "critic/rewards/mean") == [(number, number / 4) for number in range(1, 6)]
    assert steps(events, "rollout/reward_mean") == steps(events, "critic/rewards/mean")
    for key, value in KEYS.items():
        assert steps(events, key)[-1] == (5, value)
    assert {tag for tag in events.Tags()["scalars"] if tag.startswith(("val-", "timing_s/"))} == {
        key for key in KEYS if key != "actor/grad_norm"
    }
    assert steps(events, "rollout/reward_std")[0] == (1, 0.5)
    assert events.Histograms("rollout/reward_dist")[0].histogram_value.num == 2
    assert events.Histograms("ppo/grad_norm_dist")[-1].histogram_value.num == 3
