# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is missing or unfinished, in words: ranks, servers, nodes, orphans, the dead and those still at work."""

import pytest

from tests.builders import stories
from verl_otel.analysis import reader
from verl_otel.analysis.gpu import devices
from verl_otel.semconv.spans import CLIENT, SERVER


def find(story):
    """The gaps of a story."""
    return reader.read([story.write()])[0].completeness


def call(trainer, root, world, **more):
    """A call of a worker group."""
    return trainer.span("verl.call update_actor", 1, 2, root, kind=CLIENT, verl__world_size=world, **more)


def test_a_whole_run_has_no_gaps(tmp_path):
    """A run of which every process wrote its files misses nothing."""
    story = stories.training(tmp_path / "r1")
    assert find(story) == ((), (), 0)


def test_ranks_without_files_are_counted(story):
    """Calls that fewer ranks answered than there are, or none, are named by their group, with how often."""
    trainer, worker = story.process(), story.process("actor_rollout_ref")
    root = stories.step(trainer, 1, 0, 10)
    for _ in range(2):
        some = call(trainer, root, 4, verl__worker__group="actor")
        for _ in range(3):
            worker.span("verl.worker A.update_actor", 1, 2, some, kind=SERVER)
    call(trainer, root, 8, verl__worker__group="critic")
    whole = call(trainer, root, 1)
    worker.span("verl.worker A.update_actor", 1, 2, whole, kind=SERVER)
    assert find(story).missing == (
        "actor: only 3 of 4 ranks wrote files for 2 calls",
        "critic: none of 8 ranks wrote files for 1 call",
    )


def test_a_rank_that_is_still_at_work_is_not_missing(story):
    """A worker's span that is still open counts as its rank's answer."""
    trainer, worker = story.process(), story.process("actor_rollout_ref")
    root = stories.step(trainer, 1, 0, 10)
    made = call(trainer, root, 1)
    worker.still_open("verl.worker A.update_actor", 1, 9, made)
    assert find(story).missing == ()


def test_a_call_that_is_still_open_misses_nobody(story):
    """A call of which no rank has answered yet is not said to lack them while it is open."""
    trainer = story.process()
    root = trainer.still_open("verl.step", 0, 9)
    trainer.still_open("verl.call update_actor", 1, 9, root, kind=CLIENT, verl__world_size=4)
    assert find(story).missing == ()


def test_llm_calls_without_their_server_are_counted(story):
    """Calls of which no server wrote its side are counted; those of trajectories that were not kept whole are not."""
    agent, server = story.process("agent_loop"), story.process("llm_server")
    stories.trajectory(agent, 0, 3, calls=[("llm", "m", 0, 1)], server=server)
    stories.trajectory(agent, 0, 3, calls=[("llm", "m", 0, 1), ("llm", "m", 1, 2)])
    facts = {"gen_ai__operation__name": "chat"}
    agent.span("chat m", 0, 1, state=stories.TRAJECTORY, kind=CLIENT, flags=0, **facts)
    assert find(story).missing == ("LLM servers: 2 of 3 calls have no server side",)


@pytest.mark.parametrize(
    ("role", "provider", "facts", "missing"),
    [
        ("agent_loop", "openai", {}, False),
        ("agent_loop", "mine", {"verl__engine": "mine"}, True),
        ("agent", "verl", {}, False),
        ("agent", "verl", {"verl__version": "0.9.1"}, True),
    ],
    ids=["another service", "the engine of the run", "a program without verl", "a program of verl"],
)
def test_llm_calls_to_servers_of_verl_need_one(story, role, provider, facts, missing):
    """Those of another service, and of a program without verl, have no server side that could be missing."""
    agent = story.process(role)
    call = {"gen_ai__operation__name": "chat", "gen_ai__provider__name": provider}
    agent.span("chat m", 0, 1, state=stories.TRAJECTORY, kind=CLIENT, **call)
    story.manifest(**facts)
    assert find(story).missing == ("LLM servers: 1 of 1 call has no server side",) * missing


@pytest.mark.parametrize(
    ("hosts", "nodes", "missing"),
    [
        (("a",), "2", ("nodes: files of 1 of 2; give the folders of the others, too",)),
        (("a", "b"), "2", ()),
        (("a", "b"), "many", ()),
        (("a", "b"), None, ()),
    ],
)
def test_nodes_without_files_are_counted(story, hosts, nodes, missing):
    """Fewer nodes than the run says it has are said, with what to do."""
    for host in hosts:
        stories.step(story.process(host=host, ray__node__id=host), 1, 0, 1)
    story.manifest(**({} if nodes is None else {"verl__nodes": nodes}))
    assert find(story).missing == missing


def test_a_node_counts_once_over_all_attempts(story):
    """It has another id in each attempt; the node that wrote nothing in either is missing all the same."""
    for attempt in (1, 2):
        stories.step(story.process(ray__node__id=f"a{attempt}", verl__run__attempt=attempt), 1, 10 * attempt, 11)
    story.manifest(verl__nodes="2")
    assert find(story).missing == ("nodes: files of 1 of 2; give the folders of the others, too",)


def test_nodes_are_not_missing_where_nobody_names_them(story):
    """A run outside of Ray, whose processes have no node ids, is not said to miss its one node."""
    stories.step(story.process(), 1, 0, 1)
    story.manifest(verl__nodes="1")
    assert find(story).missing == ()


def test_gpus_that_no_process_reports_are_missing(story):
    """Where a driver measures GPUs and no process has any, that is a problem; without GPUs it is none."""
    trainer = story.process()
    stories.step(trainer, 1, 0, 1)
    run = reader.read([story.write()])[0]
    assert (run.has_gpu, run.problems) == (False, ())
    trainer.scalar("hw.gpu.utilization", 1, 0.5)
    run = reader.read([story.write()])[0]
    assert (run.has_gpu, run.problems) == (True, (devices.UNKNOWN_GPUS,))


def test_orphans_are_counted(story):
    """Spans whose parent is neither ended nor open are orphans; children of an open span are not."""
    trainer = story.process()
    opened = trainer.still_open("verl.step", 0, 9)
    trainer.span("verl.phase.gen", 1, 2, opened)
    lost = stories.step(trainer, 1, 0, 10)
    trainer.span("verl.phase.adv", 1, 2, lost)
    trainer.span("verl.phase.adv", 1, 2, lost)
    trainer.spans.remove(lost)
    assert find(story).orphans == 2


def test_trajectories_without_a_step_are_those_that_none_took(story):
    """One that began between two steps belongs to the step that trained on it."""
    loop = story.process("process")
    taken, _ = (stories.trajectory(loop, 0, 1, uid=uid, step=None) for uid in ("taken", "left"))
    stories.step(loop, 1, 2, 3, consumed=[taken], verl__step__lineage="submitted")
    (text,) = find(story).missing
    assert "1 trajectory belongs to no step" in text
    assert "verl_otel.consume" in text


def test_the_dead_are_told_from_those_at_work(story):
    """A process with open work that fell silent while others went on is dead; one that wrote just now is not."""
    trainer, dead, alive = story.process(), story.process("agent_loop"), story.process("agent_loop", 1)
    stories.step(trainer, 1, 0, 100)
    dead.still_open("verl.trajectory", 50, 60, state=stories.TRAJECTORY, last_child="chat m")
    dead.still_open("verl.trajectory", 40, 60, state=stories.TRAJECTORY)
    alive.still_open("verl.trajectory", 90, 99, state=stories.TRAJECTORY)
    first, second = find(story).unfinished
    assert (first.process.instance, first.dead, first.silent) == ("agent_loop-0", True, 40.0)
    assert [(work.age, work.last_child) for work in first.work] == [(20.0, ""), (10.0, "chat m")]
    assert (second.process.instance, second.dead, second.silent) == ("agent_loop-1", False, 1.0)


@pytest.mark.parametrize(("silent", "dead"), [(11.9, False), (12.1, True)])
def test_twelve_seconds_of_silence_are_enough(story, silent, dead):
    """A process writes its open work at least every ten seconds; twelve seconds without are the end of it."""
    trainer, agent = story.process(), story.process("agent_loop")
    stories.step(trainer, 1, 0, 100)
    agent.still_open("verl.trajectory", 80, 100 - silent, state=stories.TRAJECTORY)
    assert find(story).unfinished[0].dead is dead


def test_one_process_alone_is_not_dead(story):
    """Without anybody else to be silent against, open work is just open."""
    story.process().still_open("verl.step", 0, 500)
    (only,) = find(story).unfinished
    assert (only.dead, only.silent) == (False, 0.0)


def test_a_worker_that_wrote_anything_else_is_alive(story):
    """A scalar is a sign of life, too."""
    trainer, agent = story.process(), story.process("agent_loop")
    stories.step(trainer, 1, 0, 100)
    agent.still_open("verl.trajectory", 50, 60, state=stories.TRAJECTORY)
    agent.scalar("x", 99, 1)
    assert find(story).unfinished[0].dead is False
