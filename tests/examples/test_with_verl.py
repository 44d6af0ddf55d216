# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The examples for verl, in real trainings with the settings of their READMEs."""

from collections import Counter, defaultdict

import pytest

from tests.builders.training_logs import find_unexpected
from tests.end_to_end import bed_run

pytestmark = [pytest.mark.verl, pytest.mark.matrix]

ONE_STEP = ["trainer.total_training_steps=1", "trainer.test_freq=-1"]
TRAJECTORIES = 8
"""Four prompts with two rollouts each, in one step."""


def read_settings(ran):
    """Return the overrides of verl's configuration in the README of an example, with the folder in place of $PWD."""
    (block,) = ran.blocks("sh")
    words = block.replace("\\\n", " ").replace("$PWD", str(ran.folder)).split()
    begin = words.index("python")
    assert words[:2] == ["VERL_OTEL_ENABLED=1", f"PYTHONPATH={ran.folder}"]
    assert words[begin : begin + 3] == ["python", "-m", "verl.trainer.main_ppo"]
    assert words[-1] == "..."
    return words[begin + 3 : -1]


def train(ran, out, more=(), **options):
    """Train one step on the CPU with an example, as its README says."""
    training = bed_run.train(
        out,
        overrides=[*ONE_STEP, *read_settings(ran), *more],
        PYTHONPATH_EXTRA=str(ran.folder),
        VERL_OTEL_ENABLED=1,
        VERL_OTEL_RUN_DIR=out / "runs",
        **options,
    )
    assert training.returncode == 0, training.log[-3000:]
    assert find_unexpected(training.log) == []
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


def test_the_tool_class_is_used_by_verl(example, tmp_path):
    """The span of a call has the decorator's attributes, and what the class does around it is in the same span."""
    ran = example("own_tool_and_reward")
    path = "actor_rollout_ref.rollout.multi_turn"
    more = [f"{path}.function_tool_path=null", f"{path}.tool_config_path={ran.folder}/tools.yaml"]
    spans = train(ran, tmp_path / "class", more, tool=True).spans()
    tools = {span.id: span for span in spans if span.name == "execute_tool add"}
    assert len(tools) == TRAJECTORIES
    assert {span.attributes["calculator.digits"] for span in tools.values()} == {1}
    assert {span.attributes["verl.outcome"] for span in tools.values()} == {"success"}
    created = [span for span in spans if span.name == "calculator.create"]
    assert len(created) == TRAJECTORIES
    assert {span.parent for span in created} == set(tools)


def test_the_trainer_is_used_by_verl(example, tmp_path):
    """Its phase, span and numbers are in the step, and what verl's trainer has is recorded as ever."""
    training = train(
        example("own_trainer"), tmp_path / "trainer", mode="sync", VERL_USE_EXTERNAL_MODULES="cpu_bed,curriculum"
    )
    spans = training.spans()
    (step,) = [span for span in spans if span.name == "verl.step"]
    assert (step.attributes["verl.step.number"], step.attributes["verl.trainer.mode"]) == (1, "curriculum")
    children = {span.name for span in spans if span.parent == step.id}
    assert {"verl.phase.gen", "verl.phase.adv", "verl.phase.update_actor", "verl.phase.update_weights"} < children
    (phase,) = [span for span in spans if span.name == "verl.phase.curriculum"]
    assert phase.parent == step.id
    assert [span.parent for span in spans if span.name == "CurriculumTrainer.choose_difficulty"] == [phase.id]
    assert len([span for span in spans if span.name == "verl.trajectory"]) == TRAJECTORIES
    values = {name: value for name, _, _, value in training.points()}
    assert (values["curriculum.difficulty"], values["verl.curriculum.samples"]) == (0.1, TRAJECTORIES)
