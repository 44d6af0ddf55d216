# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The five core indicators of a run, judged by the bands of its profile."""

import math
from pathlib import Path

import pytest

import verl_otel
from tests.builders import explanations
from verl_otel.analysis import indicators, reader
from verl_otel.analysis.model import Series
from verl_otel.health import profiles

T0 = explanations.T0
MINUTE = 60_000_000_000


def scalar(name, *values, **labels):
    """Return a series with a value a minute."""
    named = tuple((key.replace("__", "."), value) for key, value in labels.items())
    return Series(name, named, tuple(T0 + n * MINUTE for n in range(len(values))), values)


def run(*found, profile="rlhf"):
    made = explanations.explanation(explanations.steps(explanations.HEALTHY, 4), run_id="a")
    return made._replace(series=found, manifest={**made.manifest, **profiles.to_manifest(profiles.load(profile))})


def states(made):
    return {one.name: one.state for one in indicators.find(made)[1]}


HEALTHY = {
    "mean reward": scalar("verl.critic.rewards.mean", 0.1, 2.5),
    "policy KL": scalar("verl.actor.ppo_kl", 0.9, 0.02),
    "policy loss": scalar("verl.actor.pg_loss", 3.0, -0.2),
    "response length, share of its limit": scalar("verl.response_length.mean", 100.0, 500.0),
    "groups without a signal": scalar("verl.reward.groups", 3.0, verl__outcome="signal"),
}
BOUND = scalar("verl.limit", 512.0, verl__limit__name="response_tokens")


def test_a_healthy_run():
    """The last value counts; a run without GPUs has no values of them."""
    made = run(*HEALTHY.values(), BOUND)
    assert indicators.find(made)[0] == "rlhf"
    assert states(made) == {
        **dict.fromkeys(HEALTHY, "healthy"),
        "GPU utilisation": "unknown",
        "GPU memory": "unknown",
    }


def test_the_groups_without_a_signal_are_those_of_every_other_outcome():
    counts = {"signal": (8.0, 1.0), "solved": (0.0, 10.0), "failed": (0.0, 7.0), "truncated": (0.0, 2.0)}
    found = [scalar("verl.reward.groups", *values, verl__outcome=outcome) for outcome, values in counts.items()]
    (share,) = (one for one in indicators.find(run(*found))[1] if one.name == "groups without a signal")
    assert (share.value, share.state) == (pytest.approx(0.95), "above")


def test_groups_are_counted_from_trajectories_where_the_metric_is_missing():
    """As in a run of an earlier version."""
    recorded = Path(verl_otel.__file__).parent / "cli" / "demo" / "recorded" / "healthy"
    made = reader.read([recorded])[0]
    assert not [one for one in made.series if one.name == "verl.reward.groups"]
    (share,) = (one for one in indicators.find(made)[1] if one.name == "groups without a signal")
    groups = {}
    for member in made.recent_steps[-1].members:
        groups.setdefault(member.uid, set()).add(member.score)
    assert share.value == sum(len(scores) == 1 for scores in groups.values()) / len(groups)


@pytest.mark.parametrize(
    ("name", "bad", "state"),
    [
        ("mean reward", scalar("verl.critic.rewards.mean", 1.0), "below"),
        ("mean reward", scalar("verl.critic.score.mean", 5.0), "above"),
        ("policy KL", scalar("verl.actor.ppo_kl", 0.001), "below"),
        ("policy KL", scalar("verl.actor.ppo_kl", 0.2), "above"),
        ("policy loss", scalar("verl.actor.pg_loss", 0.2), "above"),
        ("response length, share of its limit", scalar("verl.response_length.mean", 200.0), "below"),
        ("mean reward", scalar("verl.critic.rewards.mean", math.nan), "unknown"),
    ],
)
def test_a_value_outside_of_its_band(name, bad, state):
    """Only this indicator is affected."""
    found = states(run(*(HEALTHY | {name: bad}).values(), BOUND))
    assert found[name] == state
    assert all(found[other] == "healthy" for other in HEALTHY if other != name)


def test_gpus_are_judged_by_the_thresholds_of_their_alerts():
    """Utilisation is a mean over GPUs and the last five minutes; of the memory the fullest GPU counts."""
    made = run(
        scalar("hw.gpu.utilization", 0.0, 0.0, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, hw__id="0"),
        scalar("hw.gpu.utilization", 0.9, hw__id="1"),
        scalar("hw.gpu.memory.usage", 50.0, 60.0, hw__id="0"),
        scalar("hw.gpu.memory.usage", 76.0, hw__id="1"),
        scalar("hw.gpu.memory.limit", 80.0, hw__id="0"),
        scalar("hw.gpu.memory.limit", 80.0, hw__id="1"),
    )
    found = {one.name: one for one in indicators.find(made)[1]}
    assert found["GPU utilisation"].value == pytest.approx((0.8 + 0.9) / 2)
    assert (found["GPU utilisation"].low, found["GPU utilisation"].state) == (0.7, "healthy")
    assert found["GPU memory"].value == pytest.approx(0.95)
    assert (found["GPU memory"].high, found["GPU memory"].state) == (0.9, "above")


def test_without_a_profile_the_defaults_apply():
    """They have no band for what depends on the task; a length without its bound is unknown."""
    made = run(*HEALTHY.values())._replace(manifest={})
    assert indicators.find(made)[0] == "default"
    found = states(made)
    assert (found["mean reward"], found["policy loss"]) == ("no band", "no band")
    assert (found["policy KL"], found["response length, share of its limit"]) == ("healthy", "unknown")
