# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whom everybody waits for, in scenes that are told by hand."""

import sys
from pathlib import Path

import pytest

from verl_otel.session.black_box import culprits, records
from verl_otel.session.black_box.scene import DIED, FROZEN, STOPPED, could_be_overdue

sys.path.insert(0, str(Path(__file__).parent))
from black_box_scenes import PEERS, Story

EVERY = ("verl.step", "verl.phase.gen", "verl.trajectory", "verl.turn", "chat tiny", "verl.generate", "execute_tool python",
         "verl.call update_actor", "verl.worker W.update_actor", "verl.phase.adv")  # fmt: skip
CHAT = {"gen_ai.operation.name": "chat"}


@pytest.fixture
def story():
    """A trainer that waits for the trajectories of its step, all kinds of work known."""
    made = Story().process("trainer-0", "trainer").peers(*EVERY)
    made.step = made.open("trainer-0", "verl.step", 60)
    made.gen = made.open("trainer-0", "verl.phase.gen", 50, made.step)
    return made


def found(story):
    return [(each.reason, each.who, each.row and each.row.name) for each in culprits.find(story.scene())]


def waiting(story):
    (finding,) = culprits.find(story.scene())
    return [row.name for row in finding.waiting]


def trajectory(story, who, age, **more):
    return story.open(
        who, "verl.trajectory", age, links=[story.gen], **{"verl.sample.uid": "u", "verl.rollout.index": 1}, **more
    )


def test_a_hanging_tool_is_the_culprit_of_all_that_waits(story):
    """Step, phase, trajectory and turn are as old, but the tool is what they wait for."""
    story.process("agent-0")
    root = trajectory(story, "agent-0", 45)
    turn = story.open("agent-0", "verl.turn", 44, root)
    story.open("agent-0", "execute_tool python", 43, turn)
    assert found(story) == [("overdue", "agent-0", "execute_tool python")]
    assert waiting(story) == ["verl.turn", "verl.trajectory", "verl.phase.gen", "verl.step"]


def test_one_server_is_named_for_the_calls_that_wait_for_it(story):
    """A call whose server's side is open in a frozen process: that process."""
    story.process("agent-0").process("server-0", "llm_server", FROZEN)
    for _ in range(3):
        chat = story.open("agent-0", "chat tiny", 30, trajectory(story, "agent-0", 40), **CHAT)
        story.open("server-0", "verl.generate", 29, chat)
    assert found(story) == [("frozen", "server-0", "verl.generate")]
    assert waiting(story) == ["chat tiny", "verl.trajectory", "verl.phase.gen", "verl.step"]


def test_a_frozen_server_that_has_begun_nothing_is_named_for_its_callers(story):
    """Frozen before the request came: it has nothing open, and who calls it hangs."""
    story.process("agent-0").process("server-0", "llm_server", FROZEN)
    story.open("agent-0", "chat tiny", 30, trajectory(story, "agent-0", 40), **CHAT)
    assert found(story) == [("frozen", "server-0", None)]


@pytest.mark.parametrize(("state", "age", "named"), [(FROZEN, 8, True), (FROZEN, 6, False), (STOPPED, 8, True)])
def test_a_process_that_does_not_move_is_named_soon_after_its_peers(story, state, age, named):
    """Peers took 2 s: from 7 s on it is late where nothing moves."""
    story.process("agent-0", state=state).process("agent-1")
    trajectory(story, "agent-0", age)
    trajectory(story, "agent-1", age)
    assert bool(found(story)) == named


def test_a_dead_process_is_a_crash_with_what_it_held(story):
    """However young its work is; trajectories are listed, the oldest first."""
    story.process("agent-0", state=DIED)
    rows = [trajectory(story, "agent-0", age) for age in (3, 5, 4)]
    scene = story.scene()
    (finding,) = culprits.find(scene)
    assert (finding.kind, finding.who, finding.others) == ("crash", "agent-0", 2)
    assert [scene.age(row) for row in records.find_trajectories(scene, "agent-0")] == [5, 4, 3]
    assert {row.name for row in finding.waiting} == {"verl.phase.gen", "verl.step"}
    assert rows


def test_a_trajectory_whose_calls_come_and_go_is_slow_and_no_stall(story):
    """Old, but something ended below it two seconds ago; so the trainer that waits for it is no stall, either."""
    story.process("agent-0")
    trajectory(story, "agent-0", 45, quiet=2)
    assert found(story) == []


def test_a_trainer_whose_trajectories_are_too_short_to_be_seen_is_no_stall(story):
    """Nothing is open for a second, and spans end all the time."""
    story.process("agent-0").moving("agent-0")
    assert found(story) == []


def test_a_trainer_that_waits_for_nobody_is_the_culprit_itself(story):
    """No trajectories, nobody broken, nothing moves: its own phase."""
    story.process("agent-0")
    assert found(story) == [("overdue", "trainer-0", "verl.phase.gen")]


def test_a_dead_agent_loop_without_open_work_is_named_for_the_trainer(story):
    """It died between two trajectories: what the trainer waits for never begins."""
    story.process("agent-0", state=DIED)
    assert found(story) == [("died", "agent-0", None)]


def test_a_phase_of_the_trainers_own_does_not_wait_for_trajectories():
    """In asynchronous modes trajectories are open all the time; they do not hold up the advantages."""
    story = Story().process("trainer-0", "trainer").process("agent-0", state=FROZEN).peers(*EVERY)
    story.open("trainer-0", "verl.phase.adv", 30, story.open("trainer-0", "verl.step", 60))
    story.open("agent-0", "verl.trajectory", 3)
    assert found(story) == [("overdue", "trainer-0", "verl.phase.adv")]


def ranks(story, states, ages):
    """A call of ranks; a rank without an age has begun nothing."""
    call = story.open("trainer-0", "verl.call update_actor", 40, story.gen, **{"verl.world_size": len(states)})
    for rank, (state, age) in enumerate(zip(states, ages, strict=True)):
        story.process(f"rank-{rank}", "actor", state, rank=rank)
        if age is not None:
            story.open(f"rank-{rank}", "verl.worker W.update_actor", age, call, **{"verl.rank": rank})
    return call


def test_the_rank_that_has_not_begun_is_named_for_those_that_wait_in_the_collective(story):
    """Three ranks hang in the same method because the fourth never came."""
    ranks(story, ["alive"] * 4, [39, 39, None, 39])
    (finding,) = culprits.find(story.scene())
    assert (finding.reason, finding.who, finding.rank) == ("never arrived", "rank-2", 2)
    assert finding.waiting[0].name == "verl.call update_actor"
    text = records.tell(story.scene(), finding, None, "")
    assert text.startswith("STALL rank 2, rank-2 (pid ")
    assert "has not begun verl.call update_actor" in text


def test_a_rank_that_has_answered_already_is_not_missing(story):
    """It has served this call: the others hang without it, the oldest is shown."""
    call = ranks(story, ["alive"] * 2, [39, None])
    story.process("rank-1", "actor", rank=1, served=[call.span])
    assert found(story) == [("overdue", "rank-0", "verl.worker W.update_actor")]


def test_the_frozen_rank_is_named_for_those_that_wait(story):
    """All ranks are open, one of them does not move."""
    ranks(story, ["alive", FROZEN, "alive"], [39, 39, 39])
    assert found(story) == [("frozen", "rank-1", "verl.worker W.update_actor")]


def test_the_frozen_rank_that_has_begun_nothing_is_named(story):
    """Frozen before the call reached it."""
    ranks(story, ["alive", FROZEN], [39, None])
    assert found(story) == [("frozen", "rank-1", None)]


def test_two_broken_processes_are_two_findings_the_dead_first(story):
    """Each is named."""
    story.process("agent-0", state=FROZEN).process("agent-1", state=DIED)
    trajectory(story, "agent-0", 30)
    trajectory(story, "agent-1", 20)
    assert [row[:2] for row in found(story)] == [("died", "agent-1"), ("frozen", "agent-0")]


def test_the_first_of_its_kind_may_take_as_long_as_the_setting_says():
    """Without a peer anywhere: half an hour, or what is set."""
    for alone, named in ((1800, False), (100, True)):
        story = Story(alone).process("trainer-0", "trainer")
        story.open("trainer-0", "verl.checkpoint", 120)
        assert bool(found(story)) == named


def test_a_new_tool_may_take_as_long_as_whole_trajectories_do():
    """A tool without peers is compared with what it is a part of; a checkpoint within a step is not."""
    story = Story().process("agent-0").process("trainer-0", "trainer").peers("verl.trajectory", "verl.step")
    story.open("agent-0", "execute_tool new", 20, story.open("agent-0", "verl.trajectory", 20))
    story.open("trainer-0", "verl.checkpoint", 20, story.open("trainer-0", "verl.step", 20))
    assert found(story) == [("overdue", "agent-0", "execute_tool new")]


def test_the_cheap_question_never_misses_what_the_whole_scene_finds(story):
    """What is found to be overdue in a live process could be overdue by its name and age alone."""
    story.process("agent-0")
    story.open("agent-0", "execute_tool new", 43, trajectory(story, "agent-0", 45))
    scene = story.scene()
    for finding in culprits.find(scene):
        assert could_be_overdue(finding.row.name, scene.age(finding.row), scene.peers, 1800.0)
    assert not could_be_overdue("verl.checkpoint", 60, {"verl.step": PEERS}, 1800.0)


def test_spans_that_are_each_others_parents_end_the_search(story):
    """Damaged files give no endless loop."""
    story.process("agent-0", state=FROZEN)
    one = trajectory(story, "agent-0", 30)
    story._rows[-1] = one._replace(parent=one.span)
    assert found(story)[0][:2] == ("frozen", "agent-0")


@pytest.mark.parametrize("state", ["alive", FROZEN])
def test_a_users_span_around_a_training_is_no_stall_while_the_training_moves(state):
    """It has no peers and is as old as the run: only where nothing has ended in its process for as long is it one."""
    for busy in (True, False):
        story = Story(100).process("trainer-0", "trainer", state)
        story.open("trainer-0", "experiment", 120)
        if busy:
            story.busy("trainer-0")
        assert found(story) == ([] if busy else [("overdue" if state == "alive" else state, "trainer-0", "experiment")])
