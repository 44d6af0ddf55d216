# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Causes of slow steps that were planted in a real training are found again, by name and size; healthy steps are left alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end import counts, planted
from verl_otel.analysis import reader

pytestmark = pytest.mark.verl

VERL_OTEL = Path(sys.executable).with_name("verl-otel")


def call(*words, code=0):
    """Run ``verl-otel`` and return what it prints."""
    done = subprocess.run([VERL_OTEL, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def explain(training):
    """Return every step of a training, as ``verl-otel explain --json`` tells it, by number."""
    explained = json.loads(call("explain", training.folder, "--json", "--steps", "1000"))
    return {step["number"]: step for step in explained["steps"]}


@pytest.fixture(scope="module")
def training(outs):
    """A training with planted causes."""
    training = planted.train(outs / "planted")
    assert training.returncode == 0, training.log[-3000:]
    return training


@pytest.fixture(scope="module")
def steps(training):
    """The steps of that training."""
    return explain(training)


@pytest.mark.parametrize("cause", planted.CAUSES, ids=lambda cause: cause.plant.partition(":")[0])
def test_a_planted_cause_is_named_with_its_size(steps, cause):
    """The first verdict of the step names what was planted, and its size within a tenth."""
    verdict = steps[cause.step]["verdicts"][0]
    assert verdict["kind"] in cause.kind.split()
    assert verdict["cause"] in cause.cause.split()
    assert not cause.name or verdict["cause_name"] == cause.name
    assert verdict["seconds"] == pytest.approx(cause.seconds, rel=0.1)
    assert 0 < verdict["saved"] <= verdict["seconds"] * 1.1


def test_healthy_steps_get_no_verdict(training):
    """A step in which nothing was planted gets no verdict, unless verl's own timers saw the same delay."""
    steps = reader.read([training.folder])[0].steps
    assert sorted(step.number for step in steps) == list(range(1, planted.STEPS + 1))
    assert not counts.find_unconfirmed(training, steps, {cause.step for cause in planted.CAUSES})


def test_the_late_rank_is_named(steps):
    """All ranks wait in the collective for equally long; who came late is seen before it."""
    (cause,) = (each for each in planted.CAUSES if each.kind == "rank")
    assert steps[cause.step]["verdicts"][0]["instance"] == f"actor_rollout_ref-{cause.plant.rpartition(':')[2]}"


def test_words_name_the_worst_step(training):
    """What people read begins with the worst steps and says what held them."""
    text = call("explain", training.folder)
    assert "longer than in other steps" in text
    assert "checkpoint" in text
    assert "tool add" in call("explain", training.folder, "--step", "4")
    assert "Tool add blocked the event loop of agent_loop-0 for" in call("explain", training.folder, "--step", "13")
    assert "The next step started late: logging (file) took" in call("explain", training.folder, "--step", "14")
    assert "loading the next batch" in call("explain", training.folder, "--step", "15")


def test_the_page_is_written(training, tmp_path):
    """One file, with the verdicts in it."""
    page = tmp_path / "run.html"
    call("report", training.folder, "--html", page)
    assert "tool add" in page.read_text("utf-8")
