# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which side of an asynchronous training is short of GPUs, by what the other waits for."""

import pytest

from verl_otel.analysis.model import DeviceTime
from verl_otel.analysis.verdicts import balance
from verl_otel.cli import wording


def gpu(lane, **causes):
    return DeviceTime(lane, causes, lane=lane)


@pytest.mark.parametrize(
    ("trainer", "rollouts", "short", "text"),
    [
        (
            {"train": 50, "rollout_wait": 50},
            {"rollout": 90, "tail_wait": 10},
            "rollouts",
            "short are the rollouts: give",
        ),
        (
            {"train": 50, "rollout_wait": 50},
            {"rollout": 50, "tool_wait": 50},
            "rollouts",
            "more trajectories at a time",
        ),
        ({"train": 98, "data": 2}, {"rollout": 60, "train_wait": 40}, "trainer", "short is the trainer"),
        (
            {"train": 25, "rollout_wait": 4, "none_open": 71},
            {"rollout": 4, "train_wait": 25, "none_open": 71},
            "trainer",
            "short is the trainer: give it GPUs of the rollouts, or allow older samples; more GPUs do not shorten",
        ),
        (
            {"train": 26, "rollout_wait": 3, "none_open": 71},
            {"rollout": 29, "none_open": 71},
            "neither",
            "both 71%, with no trajectory open neither is short of GPUs; more GPUs do not shorten the time in which both wait: submit more ahead",
        ),
        ({"train": 80, "rollout_wait": 20}, {"rollout": 85, "train_wait": 15}, "neither", "neither is short"),
        ({"train": 95, "rollout_wait": 5}, {"rollout": 100}, "neither", "neither is short"),
        ({"start_up": 900, "train": 40, "rollout_wait": 60}, {"rollout": 100}, "rollouts", "waited for samples 60%"),
    ],
)
def test_the_side_that_the_other_waits_for_is_short(trainer, rollouts, short, text):
    """Start-up is left out; if both wait for each other, or nothing is open, neither is short."""
    found = balance.judge([gpu("train", **trainer), gpu("train", **trainer), gpu("rollout", **rollouts)])
    assert (found.short, found.trainer_gpus, found.rollout_gpus) == (short, 2, 1)
    assert text in " ".join(wording.describe_balance(found))


def test_gpus_that_train_and_generate_are_the_trainers():
    """Beside GPUs that only generate: what the shared ones wait for is a wait for samples, what they generate is none."""
    found = balance.judge([gpu("hybrid", train=40, rollout=20, tool_wait=40), gpu("rollout", rollout=100)])
    assert (found.short, found.trainer_waits) == ("rollouts", 0.4)


def test_shared_gpus_have_no_balance():
    """Where rollouts and trainer take turns, neither waits for GPUs of the other."""
    assert balance.judge([gpu("hybrid", train=1, rollout=1)]) is None
    assert balance.judge([gpu("train", train=1)]) is None
    assert list(wording.describe_balance(None)) == []
