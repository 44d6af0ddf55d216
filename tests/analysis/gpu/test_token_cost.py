# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Cost: GPU seconds of a step, tokens that reached the optimiser, tokens that were of no use and why."""

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis.gpu import accounting
from verl_otel.analysis.model import DeviceTime, Step, Trajectory
from verl_otel.semconv import attributes as attr

DEVICES = (DeviceTime("g0", {"train": 6_000_000_000, "tool_wait": 4_000_000_000}), DeviceTime("g1", {"train": 10**10}))


def make_step(*trained):
    return Step(1, 1, 0, 10**10, False, (), 0.0, trained, 0, 0, 0)


def trajectory(
    trace_id, tokens=10, *, uid="", score=None, failed=False, finish="completed", outcome="", validate=False
):
    """One trajectory; its group is its own unless it is said."""
    return Trajectory(
        trace_id, uid or f"u{trace_id}", 0, 1, validate, 0, 1, score, failed, True,
        finish=finish, outcome=outcome, response_tokens=2 * tokens, generated_tokens=tokens,
    )  # fmt: skip


def wasted(step, *members, **more):
    return accounting.find_cost(step, members, (), **more).wasted_tokens


def test_gpu_seconds_and_trained_tokens():
    """GPU seconds are those of all devices; tokens are those that the model wrote in the trajectories that the step consumed."""
    found = accounting.find_cost(make_step(1, 2), [trajectory(1, 30), trajectory(2, 70), trajectory(3, 5)], DEVICES)
    assert (found.gpu_seconds, found.trained_tokens) == (20.0, 100)


def test_what_never_reached_the_optimiser():
    """Unconsumed trajectories are aborted, failed or dropped."""
    members = [
        trajectory(1, 1, finish="aborted"),
        trajectory(2, 2, failed=True),
        trajectory(3, 4),
        trajectory(4, 8, outcome="cancelled"),
    ]
    assert wasted(make_step(), *members) == {"aborted": 9, "failed": 2, "dropped": 4}


def test_groups_of_equal_scores_give_no_gradient():
    """All scores of a uid equal: of no use; different, unknown or a single one: of use as far as is known."""
    groups = {"flat": (1.0, 1.0), "mixed": (0.0, 1.0), "unknown": (1.0, None), "none": (None, None), "single": (1.0,)}
    members, number = [], 0
    for uid, scores in groups.items():
        for score in scores:
            number += 1
            members.append(trajectory(number, 10, uid=uid, score=score))
    step = make_step(*range(1, number + 1))
    assert wasted(step, *members) == {"zero_variance": 20}
    assert wasted(step, *members, needs_spread=False) == {}


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({}, True),
        ({attr.ALGORITHM: "rloo"}, True),
        ({attr.ALGORITHM: "gae"}, False),
        ({attr.ALGORITHM: "grpo", attr.KL_IN_REWARD: "true"}, False),
    ],
)
def test_what_learns_nothing_from_equal_scores(manifest, expected):
    """Estimators that compare the samples of a group, unless a penalty makes rewards of their scores that differ."""
    assert accounting.needs_spread(manifest) == expected


def test_a_group_is_judged_by_what_was_trained_on():
    """A member that was dropped had no part in the group's mean."""
    members = [trajectory(1, uid="u", score=1.0), trajectory(2, uid="u", score=1.0), trajectory(3, uid="u", score=0.0)]
    assert wasted(make_step(1, 2), *members) == {"zero_variance": 20, "dropped": 10}


def test_truncated_responses():
    """A response that was cut at its limit was trained on for nothing; a flat group is the first reason."""
    members = [trajectory(1, finish="length"), *(trajectory(n, uid="u", score=0.0, finish="length") for n in (2, 3))]
    assert wasted(make_step(1, 2, 3), *members) == {"truncated": 10, "zero_variance": 20}


def test_validation_costs_no_training_tokens():
    """Validation trajectories are neither trained on nor waste."""
    assert accounting.find_cost(make_step(), [trajectory(1, validate=True)], ()) == (0.0, 0, {})


def test_several_steps_together():
    """Costs of steps add up; without any known cost there is none."""
    step = make_step(1)
    known = step._replace(cost=accounting.find_cost(step, [trajectory(1, 7), trajectory(2, 3)], DEVICES))
    price = accounting.sum_costs([known, known, step])
    assert price == accounting.TotalCost(40.0, 14, {"dropped": 6}, 20)
    assert accounting.sum_costs([known], {"dropped": 1, "failed": 2}).wasted_tokens == {"dropped": 4, "failed": 2}
    assert accounting.sum_costs([step]) is None


MEMBERS = st.lists(
    st.builds(
        lambda tokens, uid, score, failed, finish: {
            "tokens": tokens, "uid": uid, "score": score, "failed": failed, "finish": finish
        },
        st.integers(0, 1000),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([None, 0.0, 1.0]),
        st.booleans(),
        st.sampled_from(["completed", "length", "aborted", ""]),
    ),
    max_size=12,
)  # fmt: skip


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=100)
@given(MEMBERS, st.data())
def test_tokens_are_conserved(facts, data):
    """Each token of a trajectory is trained on or is waste that never was; waste within the trained is no more than they are."""
    members = [trajectory(number, **fact) for number, fact in enumerate(facts)]
    trained = data.draw(
        st.lists(st.sampled_from([each.trace_id for each in members]), unique=True) if members else st.just([])
    )
    step = make_step(*trained)
    found = accounting.find_cost(step, members, DEVICES)
    price = accounting.sum_costs([step._replace(cost=found)])
    never = sum(price.wasted_tokens.get(reason, 0) for reason in accounting.NEVER_TRAINED)
    assert price.trained_tokens + never == sum(each.generated_tokens for each in members)
    assert price.generated_tokens == sum(each.generated_tokens for each in members)
    useless = ("zero_variance", "truncated")
    assert sum(found.wasted_tokens.get(reason, 0) for reason in useless) <= found.trained_tokens
    assert set(found.wasted_tokens) <= {*accounting.NEVER_TRAINED, *useless}
    assert accounting.find_cost(step, members[::-1], DEVICES[::-1]) == found


def test_the_estimators_are_those_of_verl():
    """Every name stands in verl's own list of advantage estimators, which is read and not imported."""
    found = importlib.util.find_spec("verl")
    if found is None:
        pytest.skip("verl is not installed")
    source = (Path(found.submodule_search_locations[0]) / "trainer" / "ppo" / "core_algos.py").read_text("utf-8")
    listed = re.findall(r'^    [A-Z_]+ = "(\w+)"$', source.partition("class AdvantageEstimator")[2], re.MULTILINE)
    assert set(accounting.GROUP_RELATIVE) <= set(listed)
