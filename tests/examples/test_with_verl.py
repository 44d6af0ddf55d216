# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The examples for verl, in real trainings with the settings of their READMEs."""

from collections import Counter, defaultdict

import pytest

from tests.end_to_end import bed_run

pytestmark = pytest.mark.verl

ONE_STEP = ["trainer.total_training_steps=1", "trainer.test_freq=-1"]
TRAJECTORIES = 8
"""Four prompts with two rollouts each, in one step."""


def read_settings(ran):
    """Return the overrides of verl's configuration in the README of an example, with the folder in place of $PWD."""
    (block,) = ran.blocks("sh")
    words = block.replace("\\\n", " ").replace("$PWD", str(ran.folder)).split()
    assert words[:5] == ["VERL_OTEL_ENABLED=1", f"PYTHONPATH={ran.folder}", "python", "-m", "verl.trainer.main_ppo"]
    assert words[-1] == "..."
    return words[5:-1]


def train(ran, out, **options):
    """Train one step on the CPU with an example, as its README says."""
    training = bed_run.train(
        out,
        overrides=[*ONE_STEP, *read_settings(ran)],
        PYTHONPATH_EXTRA=str(ran.folder),
        VERL_OTEL_ENABLED=1,
        VERL_OTEL_RUN_DIR=out / "runs",
        **options,
    )
    assert training.returncode == 0, training.log[-3000:]
    assert "verl-otel:" not in training.log
    assert len(training.bed("trajectory")) == TRAJECTORIES
    return training


def name_children(spans):
    """Return the names of the spans inside each span, in the order of time: span id to names."""
    children = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        children[span.parent].append(span.name.partition(" ")[0] if span.name.startswith("chat ") else span.name)
    return children


def test_the_tool_and_the_reward_function_are_used_by_verl(example, tmp_path):
    """Each trajectory calls the tool and the reward function once; decorated and hooked is one span, with their attributes."""
    training = train(example("own_tool_and_reward"), tmp_path / "tool", tool=True)
    spans = training.spans()
    count, children = Counter(span.name for span in spans), name_children(spans)
    assert count["execute_tool add"] == count["verl.reward"] == TRAJECTORIES
    tools = [span.attributes for span in spans if span.name == "execute_tool add"]
    assert {span["calculator.digits"] for span in tools} == {1}, "the bed's model asks for 1 + 2"
    rewards = [span.attributes for span in spans if span.name == "verl.reward"]
    assert {span["verl.data.source"] for span in rewards} == {"arithmetic"}
    assert all("answer.length" in span for span in rewards)
    scores = sum(span["verl.reward.score"] for span in rewards) / TRAJECTORIES
    assert scores == pytest.approx(training.scalars()[1]["critic/score/mean"])
    roots = [span for span in spans if span.name == "verl.trajectory"]
    assert len(roots) == TRAJECTORIES
    for root in roots:
        turns = [span for span in spans if span.parent == root.id and span.name == "verl.turn"]
        turns.sort(key=lambda span: span.start)
        assert [children[turn.id] for turn in turns] == [["chat", "execute_tool add"], ["chat"]]


def test_the_agent_loop_is_used_by_verl(example, tmp_path):
    """Each trajectory has the loop's two turns, with its calls of the model and of the tool."""
    training = train(example("own_agent_loop"), tmp_path / "loop", gen="random")
    spans = training.spans()
    children = name_children(spans)
    roots = [span for span in spans if span.name == "verl.trajectory"]
    assert len(roots) == TRAJECTORIES
    assert {root.attributes["gen_ai.agent.name"] for root in roots} == {"search"}
    for root in roots:
        turns = [span for span in spans if span.parent == root.id and span.name == "verl.turn"]
        turns.sort(key=lambda span: span.start)
        assert [children[turn.id] for turn in turns] == [["chat", "execute_tool search"], ["chat"]]
        assert turns[0].attributes["my_loop.results"] >= 0
    assert Counter(span.name for span in spans)["execute_tool search"] == TRAJECTORIES
    answers = [value for name, _, _, value in training.points() if name == "my_loop.answer.length"]
    assert max(answers) == TRAJECTORIES
    assert "search" in training.report()
