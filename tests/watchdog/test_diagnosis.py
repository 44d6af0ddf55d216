# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The culprit of a stall, in snapshots that are built by hand."""

from types import SimpleNamespace

import pytest

from tests.watchdog.snapshots import PEERS, SnapshotBuilder
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.watchdog import diagnosis, reporter
from verl_otel.watchdog.overdue import DIED, FROZEN, STOPPED, could_be_overdue

EVERY = ("verl.step", "verl.phase.gen", "verl.trajectory", "verl.turn", "chat tiny", "verl.generate", "execute_tool python",
         "verl.call update_actor", "verl.worker W.update_actor", "verl.phase.adv")  # fmt: skip
CHAT = {"gen_ai.operation.name": "chat"}


@pytest.fixture
def builder():
    """A trainer that waits for the trajectories of its step, all kinds of work known."""
    builder = SnapshotBuilder().process("trainer-0", "trainer").peers(*EVERY)
    builder.step = builder.open("trainer-0", "verl.step", 60)
    builder.gen = builder.open("trainer-0", "verl.phase.gen", 50, builder.step)
    return builder


def find(builder):
    return [
        (finding.reason, finding.process_name, finding.row and finding.row.name)
        for finding in diagnosis.find(builder.build())
    ]


def find_waiting(builder):
    (finding,) = diagnosis.find(builder.build())
    return [row.name for row in finding.waiting]


def open_trajectory(builder, process_name, age, **more):
    return builder.open(
        process_name,
        "verl.trajectory",
        age,
        links=[builder.gen],
        **{"verl.sample.uid": "u", "verl.rollout.index": 1},
        **more,
    )


def test_a_hanging_tool_is_the_culprit_of_all_that_waits(builder):
    """Step, phase, trajectory and turn are as old, but the tool is what they wait for."""
    builder.process("agent-0")
    root = open_trajectory(builder, "agent-0", 45)
    turn = builder.open("agent-0", "verl.turn", 44, root)
    builder.open("agent-0", "execute_tool python", 43, turn)
    assert find(builder) == [("overdue", "agent-0", "execute_tool python")]
    assert find_waiting(builder) == ["verl.turn", "verl.trajectory", "verl.phase.gen", "verl.step"]


def test_one_server_is_named_for_the_calls_that_wait_for_it(builder):
    """A call whose server's side is open in a frozen process: that process."""
    builder.process("agent-0").process("server-0", "llm_server", FROZEN)
    for _ in range(3):
        chat = builder.open("agent-0", "chat tiny", 30, open_trajectory(builder, "agent-0", 40), **CHAT)
        builder.open("server-0", "verl.generate", 29, chat)
    assert find(builder) == [("frozen", "server-0", "verl.generate")]
    assert find_waiting(builder) == ["chat tiny", "verl.trajectory", "verl.phase.gen", "verl.step"]


def test_a_frozen_server_that_has_begun_nothing_is_named_for_its_callers(builder):
    """Frozen before the request came: it has nothing open, and who calls it hangs."""
    builder.process("agent-0").process("server-0", "llm_server", FROZEN)
    builder.open("agent-0", "chat tiny", 30, open_trajectory(builder, "agent-0", 40), **CHAT)
    assert find(builder) == [("frozen", "server-0", None)]


@pytest.mark.parametrize(("state", "age", "named"), [(FROZEN, 8, True), (FROZEN, 6, False), (STOPPED, 1, True)])
def test_a_process_that_does_not_move_is_named_soon_after_its_peers(builder, state, age, named):
    """Peers took 2 s: from 7 s on it is late where nothing moves. That a process is stopped needs no peers."""
    builder.process("agent-0", state=state).process("agent-1")
    open_trajectory(builder, "agent-0", age)
    open_trajectory(builder, "agent-1", age)
    assert bool(find(builder)) == named


@pytest.mark.full
def test_a_dead_process_is_a_crash_with_what_it_held(builder):
    """However young its work is; trajectories are listed, the oldest first."""
    builder.process("agent-0", state=DIED)
    for age in (3, 5, 4):
        open_trajectory(builder, "agent-0", age)
    snapshot = builder.build()
    (finding,) = diagnosis.find(snapshot)
    assert (finding.kind, finding.process_name, finding.others) == ("crash", "agent-0", 2)
    assert [snapshot.age(row) for row in reporter.list_trajectories(snapshot, "agent-0")] == [5, 4, 3]
    assert {row.name for row in finding.waiting} == {"verl.phase.gen", "verl.step"}


def test_a_trajectory_whose_calls_come_and_go_is_slow_and_no_stall(builder):
    """Old, but something ended below it two seconds ago; so the trainer that waits for it is no stall, either."""
    builder.process("agent-0")
    open_trajectory(builder, "agent-0", 45, quiet=2)
    assert find(builder) == []


def test_a_trainer_whose_trajectories_are_too_short_to_be_seen_is_no_stall(builder):
    """Nothing is open for a second, and spans end all the time."""
    builder.process("agent-0").moving("agent-0")
    assert find(builder) == []


def test_a_trainer_that_waits_for_no_other_process_is_the_culprit_itself(builder):
    """No trajectories, no broken process, no progress: its own phase."""
    builder.process("agent-0")
    assert find(builder) == [("overdue", "trainer-0", "verl.phase.gen")]


def test_a_dead_agent_loop_without_open_work_is_named_for_the_trainer(builder):
    """It died between two trajectories: what the trainer waits for never begins."""
    builder.process("agent-0", state=DIED)
    assert find(builder) == [("died", "agent-0", None)]


def test_a_phase_of_the_trainers_own_does_not_wait_for_trajectories():
    """In asynchronous modes trajectories are open all the time; they do not hold up the advantages."""
    builder = SnapshotBuilder().process("trainer-0", "trainer").process("agent-0", state=FROZEN).peers(*EVERY)
    builder.open("trainer-0", "verl.phase.adv", 30, builder.open("trainer-0", "verl.step", 60))
    builder.open("agent-0", "verl.trajectory", 3)
    assert find(builder) == [("overdue", "trainer-0", "verl.phase.adv")]


def open_ranks(builder, states, ages):
    """A call of ranks; a rank without an age has begun nothing."""
    call = builder.open("trainer-0", "verl.call update_actor", 40, builder.gen, **{"verl.world_size": len(states)})
    for rank, (state, age) in enumerate(zip(states, ages, strict=True)):
        builder.process(f"rank-{rank}", "actor", state, rank=rank)
        if age is not None:
            builder.open(f"rank-{rank}", "verl.worker W.update_actor", age, call, **{"verl.rank": rank})
    return call


def test_the_rank_that_has_not_begun_is_named_for_those_that_wait_in_the_collective(builder):
    """Three ranks hang in the same method because the fourth never came."""
    open_ranks(builder, ["alive"] * 4, [39, 39, None, 39])
    (finding,) = diagnosis.find(builder.build())
    assert (finding.reason, finding.process_name, finding.rank) == ("never arrived", "rank-2", 2)
    assert finding.waiting[0].name == "verl.call update_actor"
    text = reporter.format_incident(builder.build(), finding, None, "")
    assert text.startswith("STALL rank 2, rank-2 (pid ")
    assert "has not begun verl.call update_actor" in text


@pytest.mark.parametrize(("longest", "words"), [(0.00171, "2 ms"), (2.0, "2.00 s"), (3725.4, "1 h 02 m")])
def test_the_longest_before_is_written_as_a_duration(builder, longest, words):
    """Steps may take hours."""
    builder.peers("verl.step", peers=DurationStats(1, (longest,)))
    row = builder.open("trainer-0", "verl.step", 90_000)
    finding = diagnosis.Finding("overdue", "trainer-0", row, ())
    assert f", the longest before took {words}" in reporter.format_incident(builder.build(), finding, None, "")


def test_a_rank_that_has_answered_already_is_not_missing(builder):
    """It has served this call: the others hang without it, the oldest is shown."""
    call = open_ranks(builder, ["alive"] * 2, [39, None])
    builder.process("rank-1", "actor", rank=1, served=[call.span_id])
    assert find(builder) == [("overdue", "rank-0", "verl.worker W.update_actor")]


def test_the_frozen_rank_is_named_for_those_that_wait(builder):
    """All ranks are open, one of them does not move."""
    open_ranks(builder, ["alive", FROZEN, "alive"], [39, 39, 39])
    assert find(builder) == [("frozen", "rank-1", "verl.worker W.update_actor")]


def test_a_rank_that_stops_between_two_calls_is_named_with_the_trainer(builder):
    """The last that it wrote is work that has ended since: the call of that is no longer open, and the trainer waits for the next one."""
    builder.process("rank-0", "actor", STOPPED, rank=0)
    ended = SimpleNamespace(trace_id=f"{1:032x}", span_id=f"{1:016x}")
    builder.open("rank-0", "verl.worker W.update_actor", 39, ended)
    (finding,) = [finding for finding in diagnosis.find(builder.build()) if finding.process_name == "rank-0"]
    assert finding.reason == "stopped"
    assert finding.waiting[0].process_name == "trainer-0"


def test_the_frozen_rank_that_has_begun_nothing_is_named(builder):
    """Frozen before the call reached it."""
    open_ranks(builder, ["alive", FROZEN], [39, None])
    assert find(builder) == [("frozen", "rank-1", None)]


def test_two_broken_processes_are_two_findings_the_dead_first(builder):
    """Each is named."""
    builder.process("agent-0", state=FROZEN).process("agent-1", state=DIED)
    open_trajectory(builder, "agent-0", 30)
    open_trajectory(builder, "agent-1", 20)
    assert [row[:2] for row in find(builder)] == [("died", "agent-1"), ("frozen", "agent-0")]


def test_the_first_of_its_kind_may_take_as_long_as_the_setting_says():
    """Without a peer anywhere: half an hour, or what is set."""
    for default_timeout, named in ((1800, False), (100, True)):
        builder = SnapshotBuilder(default_timeout).process("trainer-0", "trainer")
        builder.open("trainer-0", "verl.checkpoint", 120)
        assert bool(find(builder)) == named


def test_a_new_tool_may_take_as_long_as_whole_trajectories_do():
    """A tool without peers is compared with what it is a part of; a checkpoint within a step is not."""
    builder = SnapshotBuilder().process("agent-0").process("trainer-0", "trainer").peers("verl.trajectory", "verl.step")
    builder.open("agent-0", "execute_tool new", 20, builder.open("agent-0", "verl.trajectory", 20))
    builder.open("trainer-0", "verl.checkpoint", 20, builder.open("trainer-0", "verl.step", 20))
    assert find(builder) == [("overdue", "agent-0", "execute_tool new")]


def test_the_cheap_check_covers_all_findings_of_the_snapshot(builder):
    """What is found to be overdue in a live process could be overdue by its name and age alone."""
    builder.process("agent-0")
    builder.open("agent-0", "execute_tool new", 43, open_trajectory(builder, "agent-0", 45))
    snapshot = builder.build()
    for finding in diagnosis.find(snapshot):
        assert could_be_overdue(finding.row.name, snapshot.age(finding.row), snapshot.peers, 1800.0)
    assert not could_be_overdue("verl.checkpoint", 60, {"verl.step": PEERS}, 1800.0)


def test_spans_that_are_each_others_parents_end_the_search(builder):
    """Damaged files give no endless loop."""
    builder.process("agent-0", state=FROZEN)
    row = open_trajectory(builder, "agent-0", 30)
    builder._rows[-1] = row._replace(parent_id=row.span_id)
    assert find(builder)[0][:2] == ("frozen", "agent-0")


@pytest.mark.parametrize("state", ["alive", FROZEN])
def test_a_users_span_around_a_training_is_no_stall_while_the_training_moves(state):
    """It has no peers and is as old as the run: only where nothing has ended in its process for as long is it one."""
    for busy in (True, False):
        builder = SnapshotBuilder(100).process("trainer-0", "trainer", state)
        builder.open("trainer-0", "experiment", 120)
        if busy:
            builder.busy("trainer-0")
        assert find(builder) == (
            [] if busy else [("overdue" if state == "alive" else state, "trainer-0", "experiment")]
        )


@pytest.mark.parametrize("state", [STOPPED, DIED])
def test_a_process_without_telemetry_that_does_not_run_is_what_is_waited_for(builder, state):
    """TransferQueue's storage has no spans: whatever waits too long may wait for it. While it runs, the span itself is named."""
    adv = builder.open("trainer-0", "verl.phase.adv", 40, builder.step)
    builder.process("transfer_queue-7", "transfer_queue", is_helper=True)
    assert ("overdue", "trainer-0", adv.name) in find(builder)
    builder.process("transfer_queue-7", "transfer_queue", state, is_helper=True)
    assert find(builder) == [(state, "transfer_queue-7", None)]


def test_a_call_that_has_not_reached_its_rank_waits_for_the_raylet(builder):
    """Both ranks run; Ray's own process, which hands them their work, does not."""
    builder.process("raylet-7", "raylet", STOPPED, is_helper=True)
    call = builder.open("trainer-0", "verl.call update_actor", 40, builder.step, **{"verl.world_size": 2})
    for rank in range(2):
        builder.process(f"rank-{rank}", "actor_rollout_ref", rank=rank)
    builder.open("rank-0", "verl.worker W.update_actor", 39, call, **{"verl.rank": 0})
    assert ("stopped", "raylet-7", None) in find(builder)
    assert not any(reason == diagnosis.MISSING for reason, _, _ in find(builder))
