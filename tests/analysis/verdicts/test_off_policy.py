# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How much of the difference between engine and trainer comes with the age of the samples, by steps with fresh ones and others."""

import math

import pytest

from tests.builders import explanations
from verl_otel.analysis.model import Segment, Series
from verl_otel.analysis.verdicts import off_policy
from verl_otel.cli import wording

PROBABILITIES, KL = "training/rollout_probs_diff_mean", "rollout_corr/k3_kl"


def steps(*pairs, key=PROBABILITIES):
    return [{off_policy.AGE: age, key: difference, "actor/pg_loss": 0.1} for age, difference in pairs]


@pytest.mark.parametrize(
    ("given", "share", "text"),
    [
        (steps((0, 0.002), (1, 0.008), (2, 0.012)), 0.8, "80% of it comes with the age"),
        (steps((0, 0.002), (0, 0.004), (1, 0.003)), 0.0, "100% is between engine and trainer"),
        (
            steps((0, 0.002), (1, 0.001)),
            0.0,
            "100% is between engine and trainer",
        ),  # old samples differ less, by chance
        (steps((0, 0.002), (0, 0.003)), None, "no sample was old"),
        (steps((1, 0.002), (0.5, 0.003)), None, "no step had only fresh ones"),
        (
            steps((0, 0.001), (1, 0.002), key=KL),
            0.5,
            "KL divergence (k3): 0.001 in 1 step with fresh samples, 0.002 in 1 step with older",
        ),
        (steps((0, math.nan), (0, 0.002), (1, 0.004), (math.nan, 9)), 0.5, "0.002 in 1 step"),
    ],
)
def test_fresh_samples_show_what_does_not_come_with_age(given, share, text):
    """Their difference is that of engine and trainer, whatever the age of others is."""
    found = off_policy.judge(given)
    assert found.from_age == (None if share is None else pytest.approx(share))
    assert text in " ".join(wording.describe_off_policy(found))


def test_updates_between_two_versions_make_samples_old():
    """The age is in versions: of two updates that make one, the second trains on samples of weights that it does not have any more."""
    phases = ["gen", "update_actor", "update_actor", "gen", "update_actor"]
    path = tuple(Segment(number, number + 1, "worker", "", phase) for number, phase in enumerate(phases))
    made = explanations.steps({("server", ""): 1.0}, 2)
    series = [
        Series(f"verl.{key.replace('/', '.')}", (), (1, 2), values)
        for key, values in ((off_policy.AGE, (0.0, 1.0)), (PROBABILITIES, (0.002, 0.008)))
    ]
    run = explanations.explanation([made[0]._replace(path=path), made[1]], series=tuple(series))
    found = off_policy.judge_run(run)
    assert (found.fresh_steps, found.stale_steps, found.from_age) == (0, 2, None)
    text = " ".join(wording.describe_off_policy(found))
    assert "fresh samples" not in text
    assert "no step had only fresh ones: 2 updates make a version" in text
    assert off_policy.judge_run(run._replace(steps=())).fresh_steps == 1  # a page that has not read the spans yet


@pytest.mark.parametrize(
    ("given", "is_explained"),
    [
        (steps((0, 0.004), (0, 0.006)), True),
        (steps((0, 0.33)), False),
        (steps((0, 0.02), (1, 0.03)), False),
        (steps((1, 0.33)), True),  # how much of it comes with age is not known
        (steps((0, 3.4), key=KL), True),  # verl names no bound
    ],
)
def test_a_large_difference_is_not_called_precision(given, is_explained):
    """Above the bound of verl's FAQ the text says what to compare."""
    text = " ".join(wording.describe_off_policy(off_policy.judge(given)))
    assert ("do not explain" in text, "compare attention" in text) == (not is_explained, not is_explained)
    assert "(precision, kernels)" not in text or is_explained


@pytest.mark.parametrize(
    "given",
    [
        [],
        [{off_policy.AGE: 1.0}],
        [{PROBABILITIES: 0.1}],
        steps((0, 0.0), (1, 0.0)),  # the trainer takes over the probabilities of the engine
    ],
)
def test_without_both_scalars_nothing_is_said(given):
    """The difference is logged only where the engine returns probabilities, the age only by newer trainers of verl."""
    assert off_policy.judge(given) is None
    assert list(wording.describe_off_policy(None)) == []
