# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""`verl.training.change` of a run: from its scalars, and from the trajectories of its steps."""

import pytest

from verl_otel.integrations.verl import learning
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.recording import series_registry


@pytest.fixture(autouse=True)
def fresh():
    """Begin with nothing seen."""
    learning.begin_run({})
    yield
    learning.begin_run({})


def follow(rows):
    """Log scalars step by step; return the points of each step, by the label."""
    return [{point.labels[0][1]: point.value for point in learning.follow_changes(row, 1)} for row in rows]


def test_a_step_that_becomes_slow_is_said():
    points = follow([{"timing_s/step": 10.0, "actor/pg_loss": -0.1}] * 20 + [{"timing_s/step": 40.0}] * 2)
    assert points[-1] == {"step": 4.0}
    assert points[19] == {"step": 1.0, "policy_loss": pytest.approx(1)}
    assert points[9] == {}


def test_scalars_that_are_missing_or_no_numbers_are_ignored():
    assert follow([{}, {"timing_s/step": "x"}, {"timing_s/step": None}]) == [{}, {}, {}]


def test_a_new_run_begins_anew():
    follow([{"timing_s/step": 1.0}] * 30)
    learning.begin_run({})
    assert follow([{"timing_s/step": 9.0}] * 10)[-1] == {}


def test_trajectories_wait_longer_for_tools(monkeypatch):
    """The mean over the trajectories of each step counts, of those that know it."""
    values = {}

    class Gauge:
        def __init__(self, name, labels):
            self.key = labels[0][1]

        def set(self, value):
            values[self.key] = value

    monkeypatch.setattr(learning, "gauge", Gauge)
    for step in range(22):
        tool = 6.0 if step >= 20 else 1.0
        facts = [{"llm": 4.0, "tool": tool}, {"llm": 4.0, "tool": 3 * tool}, {}]
        learning.follow_trajectories([Origin(1, n, 9.0, 1.0, "math", facts=each) for n, each in enumerate(facts)])
    assert values == {"generation": 1.0, "tool": 6.0}


def test_the_metric_is_in_the_catalogue():
    assert learning._CHANGE is series_registry.INSTRUMENTS["verl.training.change"]
