# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Steps and their phases, trajectories and what they spent their time on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import stories
from verl_otel._internal.quantiles import pick_quantiles
from verl_otel.analysis import steps
from verl_otel.analysis.traces import critical_path, timeline
from verl_otel.analysis.traces.clocks import Context
from verl_otel.analysis.traces.timeline import covered


@pytest.fixture
def build():
    """The steps of a story in the order of time, and its trajectories by trace id."""

    def of(story):
        traces = stories.traces_of(story.write()).values()
        roots = [root for trace in traces for root in trace.roots]
        trajectories = {}
        for trace in traces:
            orphans = [root for root in trace.roots if root.span.parent_id]
            for root in trace.roots:
                if root.span.name == "verl.trajectory" and not root.span.parent_id:
                    found = timeline.build_trajectory(root, orphans, critical_path.of_trajectory(root))
                    trajectories[found.trace_id] = timeline.with_parts(found)
        built = [
            steps.build(
                root, {one: trajectories.get(one) for one in timeline.find_consumed(root)[0]}, {}, (), 1, Context()
            ).step
            for root in roots
            if root.span.name == "verl.step"
        ]
        return sorted(built, key=lambda step: step.start_ns), trajectories

    return of


INTERVALS = st.lists(st.tuples(st.integers(-5, 30), st.integers(-5, 30)), max_size=8)


@pytest.mark.full
@given(INTERVALS, st.integers(0, 20), st.integers(0, 25))
def test_covered_counts_each_moment_once(intervals, begin, end):
    """The covered time equals a count of the moments that lie in at least one span and in the window."""
    brute = sum(any(first <= moment < last for first, last in intervals) for moment in range(begin, end))
    assert covered(intervals, begin, end) == brute


def test_a_step_has_its_phases_with_seconds_and_share(build, story):
    """Phases of one key are summed up, with their share of the step, in the order in which they began."""
    trainer = story.process()
    stories.step(trainer, 3, 0, 20, [("gen", 0, 4), ("update_actor", 5, 10), ("gen", 12, 16)])
    ((step,), _) = build(story)
    assert (step.number, step.seconds, step.failed) == (3, 20.0, False)
    assert [(phase.key, phase.seconds, phase.share) for phase in step.phases] == [
        ("gen", 8.0, 0.4),
        ("update_actor", 5.0, 0.25),
    ]
    assert step.no_phase == pytest.approx(7.0)
    assert step.gen_end_ns == stories.at(16)


def test_time_in_no_phase_is_what_no_phase_covers(build, story):
    """Phases that overlap or stick out of the step are not counted twice: the time in no phase is never negative."""
    stories.step(story.process(), 1, 0, 10, [("gen", -1, 6), ("adv", 2, 8), ("values", 3, 4)])
    ((step,), _) = build(story)
    assert step.no_phase == pytest.approx(2.0)


def test_a_phase_counts_within_its_step(build, story):
    """``generate_async`` of the one-step-off trainer goes on after its step: it is no more than the whole of it."""
    stories.step(story.process(), 1, 0, 10, [("generate_async", 2, 15), ("update_actor", 4, 10)])
    ((step,), _) = build(story)
    assert [(phase.key, phase.seconds, phase.share) for phase in step.phases] == [
        ("generate_async", 8.0, 0.8),
        ("update_actor", 6.0, 0.6),
    ]


def test_the_trainer_notices_the_end_of_rollouts_in_the_phase_that_took_them(build, story):
    """A trainer with several local steps takes the next batch in a later phase, which noticed nothing."""
    trainer, agent = story.process(), story.process("agent_loop")
    member = stories.trajectory(agent, 0, 3)
    stories.step(trainer, 1, 0, 10, [("gen", 0, 3.5), ("update_actor", 4, 8), ("gen", 8, 9)], [member])
    ((step,), _) = build(story)
    assert (step.gen_start_ns, step.gen_end_ns) == (stories.at(0), stories.at(3.5))


def test_a_phase_within_a_phase_is_part_of_it(build, story):
    """A phase below another phase is no phase of the step."""
    trainer = story.process()
    root = stories.step(trainer, 1, 0, 10, [("gen", 0, 8)])
    (outer,) = (span for span in trainer.spans if span.name == "verl.phase.gen")
    trainer.span("verl.phase.tokenize", 1, 2, outer)
    ((step,), _) = build(story)
    assert [phase.key for phase in step.phases] == ["gen"]
    assert step.no_phase == pytest.approx(2.0)
    assert step.trace_id == root.trace_id


def test_a_step_knows_the_trajectories_that_it_trained_on(build, story):
    """The links of all its ``verl.consume`` spans are the step's trajectories, each once, more than 128 too."""
    trainer, agent = story.process(), story.process("agent_loop")
    members = [stories.trajectory(agent, 0, 1 + number / 100, index=number) for number in range(150)]
    stories.trajectory(agent, 0, 9, step=2)
    stories.step(trainer, 1, 0, 10, [("gen", 0.5, 4)], [*members, members[0]])
    ((step,), _) = build(story)
    assert step.trajectories == tuple(member.trace_id for member in members)
    assert step.gen_start_ns == stories.at(0.5)
    assert step.rollouts_end_ns == stories.at(2.49)
    assert step.gen_end_ns == stories.at(4)


def test_a_step_that_consumed_outside_of_phases(build, story):
    """``verl.consume`` directly below the step counts as well; unknown trajectories are kept by their id."""
    trainer, agent = story.process(), story.process("agent_loop")
    known, unknown = stories.trajectory(agent, 0, 3), stories.trajectory(agent, 0, 4)
    agent.spans.remove(unknown)
    stories.step(trainer, 1, 0, 10, consumed=[known, unknown])
    ((step,), _) = build(story)
    assert step.trajectories == (known.trace_id, unknown.trace_id)
    assert step.rollouts_end_ns == stories.at(3)
    assert (step.gen_start_ns, step.gen_end_ns) == (0, 0)


def test_a_failed_step_and_one_without_number(build, story):
    """A step that raised is marked; one that does not say its number has none; steps are in the order of time."""
    trainer = story.process()
    stories.step(trainer, 2, 20, 30, error__type="ValueError")
    trainer.span("verl.step", 0, 10, state=stories.STEP)
    (first, second), _ = build(story)
    assert (first.number, first.failed) == (None, False)
    assert (second.number, second.failed) == (2, True)


def test_calls_at_the_same_time_are_not_added_up(build, story):
    """Parallel calls of one tool cost the time in which at least one of them ran; waiting is never negative."""
    agent = story.process("agent_loop")
    calls = [("tool", "a", 0, 6), ("tool", "a", 2, 8), ("tool", "b", 4, 12), ("llm", "m", 9, 20)]
    root = stories.trajectory(agent, 0, 10, calls=calls)
    parts = {(part.kind, part.name): part.seconds for part in build(story)[1][root.trace_id].parts}
    assert parts == {("tool", "a"): 8.0, ("tool", "b"): 6.0, ("llm", "m"): 1.0, ("wait", ""): 0.0}


def test_parts_of_other_processes_belong_to_the_trajectory(build, story):
    """The reward that another process computed counts, and the server's side of a call is not counted again."""
    agent, reward, server = story.process("agent_loop"), story.process("reward"), story.process("llm_server")
    root = stories.trajectory(agent, 0, 10, calls=[("llm", "m", 1, 4)], server=server)
    reward.span("verl.reward", 5, 7, root)
    parts = {part.kind: (part.seconds, part.calls) for part in build(story)[1][root.trace_id].parts}
    assert parts == {"llm": (3.0, 1), "reward": (2.0, 1), "wait": (5.0, 0)}


def test_of_a_trajectory_that_is_not_whole_the_wait_is_unknown(build, story):
    """Where only the root was kept there are no parts; what was kept beside it counts, and nothing is called waiting."""
    agent = story.process("agent_loop")
    bare = stories.trajectory(agent, 0, 10, whole=False)
    root = stories.trajectory(agent, 0, 10, whole=False, calls=[("llm", "m", 1, 4)])
    built = build(story)[1]
    assert built[bare.trace_id].parts == ()
    assert [(part.kind, part.seconds) for part in built[root.trace_id].parts] == [("llm", 3.0)]


def test_a_trace_state_of_somebody_else_does_not_hide_parts(build, story):
    """Another tracer may put its own entry in front of ours; its children are still parts of the trajectory."""
    agent, reward = story.process("agent_loop"), story.process("reward")
    root = stories.trajectory(agent, 0, 10)
    reward.span("verl.reward", 5, 7, root._replace(trace_state="vendor=1,verl=t"))
    assert "reward" in {part.kind for part in build(story)[1][root.trace_id].parts}


def test_a_failed_trajectory_of_another_kind_of_score(build, story):
    """A trajectory that failed is marked, and one without score, step or index has none."""
    agent = story.process("agent_loop")
    agent.span("verl.trajectory", 0, 1, state=stories.TRAJECTORY, error__type="ToolError", verl__reward__score="high")
    (built,) = build(story)[1].values()
    assert (built.failed, built.score, built.step, built.rollout_index, built.uid) == (True, None, None, 0, "")


def test_activities_say_what_was_done_where_and_in_which_turn(build, story):
    """Calls, their servers, tools and rewards are there, with process and turn; what failed is marked."""
    agent, server, reward = story.process("agent_loop"), story.process("llm_server", 3), story.process("reward")
    root = stories.trajectory(agent, 0, 9, calls=[("llm", "m", 0, 2), ("tool", "search", 2, 4)], server=server)
    reward.span("verl.reward", 5, 7, root, error__type="E")
    found = build(story)[1][root.trace_id].activities
    assert [(each.kind, each.name, each.instance, each.turn, each.failed) for each in found] == [
        ("llm", "m", "agent_loop-0", 0, False),
        ("server", "", "llm_server-3", 0, False),
        ("tool", "search", "agent_loop-0", 1, False),
        ("reward", "", "reward-0", None, True),
    ]
    assert [(each.start_ns, each.end_ns) for each in found[:2]] == [(stories.at(0), stories.at(2))] * 2


def test_a_trajectory_says_tokens_turns_and_how_it_ended(build, story):
    """What the agent loop wrote onto the root is read; the last finish reason counts."""
    facts = {
        "verl__turns": 4, "verl__prompt__tokens": 16, "verl__response__tokens": 91, "verl__outcome": "success",
        "gen_ai__response__finish_reasons": ("tool_calls", "length"),
    }  # fmt: skip
    root = stories.trajectory(story.process("agent_loop"), 0, 9, **facts)
    built = build(story)[1][root.trace_id]
    assert (built.turns, built.prompt_tokens, built.response_tokens, built.outcome, built.finish) == (
        4, 16, 91, "success", "length",
    )  # fmt: skip
    assert built.instance == "agent_loop-0"


@pytest.mark.full
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_quantiles_are_of_the_numbers(values):
    """Each quantile is one of the numbers, and at least its share of them is not larger."""
    ordered = sorted(values)
    found = pick_quantiles(ordered)
    assert found == tuple(sorted(found))
    assert (found[0], found[-1]) == (ordered[0], ordered[-1])
    for share, value in zip((0.5, 0.95, 0.99), found[1:4], strict=True):
        assert sum(each <= value for each in ordered) >= share * len(ordered)
        assert sum(each < value for each in ordered) < share * len(ordered)


def test_of_no_trajectory_there_are_no_quantiles():
    """A step that trained on nothing has no quantiles."""
    assert pick_quantiles([]) == ()
