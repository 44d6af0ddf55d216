# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Steps and their phases, trajectories and what they spent their time on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.analysis import timeline
from verl_otel.analysis.load import read_run
from verl_otel.analysis.timeline import covered
from verl_otel.model import SpanRecord


def interval(begin, end):
    """A span of which only the times matter."""
    return SpanRecord(1, 1, 0, "x", 1, begin, end, {}, (), (), 0, "", 1, "")


def build(story):
    """The timeline of a story."""
    return timeline.build(read_run([story.write()]))


INTERVALS = st.lists(st.tuples(st.integers(-5, 30), st.integers(-5, 30)), max_size=8)


@given(INTERVALS, st.integers(0, 20), st.integers(0, 25))
def test_covered_counts_each_moment_once(intervals, begin, end):
    """The covered time equals a count of the moments that lie in at least one span and in the window."""
    brute = sum(any(first <= moment < last for first, last in intervals) for moment in range(begin, end))
    assert covered([interval(*each) for each in intervals], begin, end) == brute


@given(INTERVALS, INTERVALS)
def test_covered_grows_and_is_bounded(some, more):
    """More spans cover no less, never more than the window and never more than both apart."""
    first, second = ([interval(*each) for each in group] for group in (some, more))
    both = covered(first + second, 0, 20)
    assert max(covered(first, 0, 20), covered(second, 0, 20)) <= both <= 20
    assert both <= covered(first, 0, 20) + covered(second, 0, 20)


def test_a_step_has_its_phases_with_seconds_and_share(stories, story):
    """Phases of one key are summed up, with their share of the step, in the order in which they began."""
    trainer = story.process()
    stories.step(trainer, 3, 0, 20, [("gen", 0, 4), ("update_actor", 5, 10), ("gen", 12, 16)])
    (step,) = build(story).steps
    assert (step.number, step.seconds, step.failed) == (3, 20.0, False)
    assert [(phase.key, phase.seconds, phase.share) for phase in step.phases] == [
        ("gen", 8.0, 0.4),
        ("update_actor", 5.0, 0.25),
    ]
    assert step.no_phase == pytest.approx(7.0)
    assert step.gen_end_ns == stories.at(16)


def test_time_in_no_phase_is_what_no_phase_covers(stories, story):
    """Phases that overlap or stick out of the step are not counted twice: the time in no phase is never negative."""
    stories.step(story.process(), 1, 0, 10, [("gen", -1, 6), ("adv", 2, 8), ("values", 3, 4)])
    (step,) = build(story).steps
    assert step.no_phase == pytest.approx(2.0)


def test_a_phase_within_a_phase_is_part_of_it(stories, story):
    """A phase below another phase is no phase of the step."""
    trainer = story.process()
    root = stories.step(trainer, 1, 0, 10, [("gen", 0, 8)])
    (outer,) = (span for span in trainer.spans if span.name == "verl.phase.gen")
    trainer.span("verl.phase.tokenize", 1, 2, outer)
    (step,) = build(story).steps
    assert [phase.key for phase in step.phases] == ["gen"]
    assert step.no_phase == pytest.approx(2.0)
    assert step.trace_id == root.trace_id


def test_a_step_knows_the_trajectories_that_it_trained_on(stories, story):
    """The links of all its ``verl.consume`` spans are the step's trajectories, each once, more than 128 too."""
    trainer, agent = story.process(), story.process("agent_loop")
    members = [stories.trajectory(agent, 0, 1 + number / 100, index=number) for number in range(150)]
    stories.trajectory(agent, 0, 9, step=2)
    stories.step(trainer, 1, 0, 10, [("gen", 0.5, 4)], [*members, members[0]])
    (step,) = build(story).steps
    assert step.trajectories == tuple(member.trace_id for member in members)
    assert step.gen_start_ns == stories.at(0.5)
    assert step.rollouts_end_ns == stories.at(2.49)
    assert step.gen_end_ns == stories.at(4)


def test_a_step_that_consumed_outside_of_phases(stories, story):
    """``verl.consume`` directly below the step counts as well; unknown trajectories are kept by their id."""
    trainer, agent = story.process(), story.process("agent_loop")
    known, unknown = stories.trajectory(agent, 0, 3), stories.trajectory(agent, 0, 4)
    agent.spans.remove(unknown)
    stories.step(trainer, 1, 0, 10, consumed=[known, unknown])
    (step,) = build(story).steps
    assert step.trajectories == (known.trace_id, unknown.trace_id)
    assert step.rollouts_end_ns == stories.at(3)
    assert (step.gen_start_ns, step.gen_end_ns) == (0, 0)


def test_a_failed_step_and_one_without_number(stories, story):
    """A step that raised is marked; one that does not say its number has none; steps are in the order of time."""
    trainer = story.process()
    stories.step(trainer, 2, 20, 30, error__type="ValueError")
    trainer.span("verl.step", 0, 10, state=stories.STEP)
    first, second = build(story).steps
    assert (first.number, first.failed) == (None, False)
    assert (second.number, second.failed) == (2, True)


def test_validations_are_listed(stories, story):
    """Validations are roots of their own and no steps."""
    trainer = story.process()
    trainer.span("verl.validation", 0, 3, state=stories.STEP, verl__step__number=0)
    built = build(story)
    assert [span.name for span in built.validations] == ["verl.validation"]
    assert built.steps == ()


def test_a_trajectory_and_its_parts(stories, story):
    """Parts are LLM by model, tool by name, reward and wait, with calls and the turn of the longest call."""
    agent = story.process("agent_loop")
    calls = [("llm", "qwen", 0, 1), ("tool", "search", 1, 4), ("llm", "qwen", 4, 7), ("tool", "search", 7, 8)]
    facts = {"verl__reward__score": 0.5, "verl__validate": True}
    root = stories.trajectory(agent, 0, 12, uid="prompt-1", index=3, step=4, calls=calls, reward=(9, 10), **facts)
    built = build(story).trajectories[root.trace_id]
    assert (built.uid, built.rollout_index, built.step, built.score) == ("prompt-1", 3, 4, 0.5)
    assert (built.seconds, built.validate, built.failed, built.whole, built.label) == (
        12.0,
        True,
        False,
        True,
        "prompt-1/3",
    )
    parts = {part.kind: part for part in built.parts}
    assert {kind: (part.name, part.seconds, part.calls, part.turn) for kind, part in parts.items()} == {
        "llm": ("qwen", 4.0, 2, 2),
        "tool": ("search", 4.0, 2, 1),
        "reward": ("", 1.0, 1, None),
        "wait": ("", pytest.approx(3.0), 0, None),
    }
    assert built.parts[-1].kind == "wait"


def test_calls_at_the_same_time_are_not_added_up(stories, story):
    """Parallel calls of one tool cost the time in which at least one of them ran; waiting is never negative."""
    agent = story.process("agent_loop")
    calls = [("tool", "a", 0, 6), ("tool", "a", 2, 8), ("tool", "b", 4, 12), ("llm", "m", 9, 20)]
    root = stories.trajectory(agent, 0, 10, calls=calls)
    parts = {(part.kind, part.name): part.seconds for part in build(story).trajectories[root.trace_id].parts}
    assert parts == {("tool", "a"): 8.0, ("tool", "b"): 6.0, ("llm", "m"): 1.0, ("wait", ""): 0.0}


def test_parts_of_other_processes_belong_to_the_trajectory(stories, story):
    """The reward that another process computed counts, and the server's side of a call is not counted again."""
    agent, reward, server = story.process("agent_loop"), story.process("reward"), story.process("llm_server")
    root = stories.trajectory(agent, 0, 10, calls=[("llm", "m", 1, 4)], server=server)
    reward.span("verl.reward", 5, 7, root)
    parts = {part.kind: (part.seconds, part.calls) for part in build(story).trajectories[root.trace_id].parts}
    assert parts == {"llm": (3.0, 1), "reward": (2.0, 1), "wait": (5.0, 0)}


def test_of_a_trajectory_that_is_not_whole_the_wait_is_unknown(stories, story):
    """Where only the root was kept there are no parts; what was kept beside it counts, and nothing is called waiting."""
    agent = story.process("agent_loop")
    bare = stories.trajectory(agent, 0, 10, whole=False)
    root = stories.trajectory(agent, 0, 10, whole=False, calls=[("llm", "m", 1, 4)])
    built = build(story).trajectories
    assert built[bare.trace_id].parts == ()
    assert [(part.kind, part.seconds) for part in built[root.trace_id].parts] == [("llm", 3.0)]


def test_a_trace_state_of_somebody_else_does_not_hide_parts(stories, story):
    """Another tracer may put its own entry in front of ours; its children are still parts of the trajectory."""
    agent, reward = story.process("agent_loop"), story.process("reward")
    root = stories.trajectory(agent, 0, 10)
    reward.span("verl.reward", 5, 7, root._replace(trace_state="vendor=1,verl=t"))
    assert "reward" in {part.kind for part in build(story).trajectories[root.trace_id].parts}


def test_a_failed_trajectory_of_another_kind_of_score(stories, story):
    """A trajectory that failed is marked, and one without score, step or index has none."""
    agent = story.process("agent_loop")
    agent.span("verl.trajectory", 0, 1, state=stories.TRAJECTORY, error__type="ToolError", verl__reward__score="high")
    (built,) = build(story).trajectories.values()
    assert (built.failed, built.score, built.step, built.rollout_index, built.uid) == (True, None, None, 0, "")
