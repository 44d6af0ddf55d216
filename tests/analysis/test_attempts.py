# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run that was killed and resumed: what lies between its attempts counts for no step, and steps that were trained again are marked."""

import pytest

from tests.builders import stories
from tests.builders.stories import T0, Story
from verl_otel.analysis import summary


def train(trainer, worker, agent, number, begin, gen=2.0):
    """One step: rollouts of ``gen`` seconds, then an update of 2 s on the GPU."""
    ready = begin + gen
    rollout = stories.trajectory(
        agent, begin, ready, uid=str(number), step=number, calls=[("llm", "qwen", begin, ready)]
    )
    root = stories.step(
        trainer, number, begin, ready + 2, [("gen", begin, ready), ("update_actor", ready, ready + 2)], [rollout]
    )
    call = trainer.span("verl.call update_actor", ready, ready + 2, root, kind=stories.CLIENT, verl__world_size=1)
    worker.span("verl.worker Actor.update_actor", ready, ready + 2, call, kind=stories.SERVER)


@pytest.fixture
def resumed(tmp_path):
    """Steps 1 to 6 of 4 s each, killed in the seventh at 30 s; resumed at 1000 s with step 5, whose rollouts wait for the engine's start."""
    story = Story(tmp_path / "r1")
    for attempt, (start, numbers) in enumerate([(0, range(1, 7)), (1000, range(5, 9))], 1):
        trainer, agent = story.process("trainer"), story.process("agent_loop")
        worker = story.process("actor_rollout_ref", verl__rank=0)
        begin = start + 5
        for number in numbers:
            slow = attempt == 2 and number == 5
            train(trainer, worker, agent, number, begin, 12.0 if slow else 2.0)
            begin += 14 if slow else 4
        if attempt == 1:
            trainer.still_open("verl.step", begin, begin + 1, verl__step__number=7)
    started = [{"started": T0 + 0.5}, {"started": T0 + 1000, "ended": T0 + 1031}]
    story.manifest(attempts=started)
    return summary.explain([story.write()])


def test_repeated_steps_are_marked(resumed):
    """Each step knows its attempt; those of the first that the second trained again are marked."""
    assert [(step.number, step.attempt, step.repeated) for step in resumed.steps] == [
        (1, 1, False), (2, 1, False), (3, 1, False), (4, 1, False), (5, 1, True), (6, 1, True),
        (5, 2, False), (6, 2, False), (7, 2, False), (8, 2, False),
    ]  # fmt: skip


def test_the_pause_counts_for_no_step(resumed):
    """Neither the last step before it nor the GPU has the time in which no process was there."""
    last = resumed.steps[5]
    assert last.between == pytest.approx(1.0), "until the killed attempt wrote for the last time"
    assert not [verdict for step in resumed.steps for verdict in step.verdicts if verdict.kind == "between"]
    (gpu,) = resumed.devices
    assert sum(gpu.nanoseconds.values()) / 1e9 == pytest.approx(25 + 31)
    assert gpu.nanoseconds["start_up"] / 1e9 == pytest.approx(5)


def test_the_start_up_of_an_attempt_is_no_finding(resumed):
    """Its first step may take longer than others, as the first of the run."""
    assert not [verdict for step in resumed.steps for verdict in step.verdicts]
