# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that were paused: a verdict names the process and why, whatever else it would have named."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import stories, texts
from verl_otel.analysis import reader
from verl_otel.analysis.model import Segment
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.blocked_loops import BlockedLoops
from verl_otel.model import SpanRecord

SLOW = 4
"""The step in which a process is paused."""
STOPPED = "the process did not run, stopped or waiting for a CPU"


def add_steps(story, pause, *, role="", reason="process", every=False, work=0.0, by="", queued=None, pieces=1):
    """Six steps with a phase of the trainer and an update on a rank; one of both takes longer while a process is paused.

    ``work``: seconds by which the update of that step takes longer besides. ``by``: the process that was paused, if another one noted it.
    ``queued``: seconds of the pause in the run queue. ``pieces``: into how many pauses it is divided.
    """
    trainer, agent = story.process(), story.process("agent_loop")
    rank, storage = story.process("actor_rollout_ref", verl__rank=0), story.process("transfer_queue")
    paused = {"trainer": trainer, "agent_loop": agent, "actor_rollout_ref": rank, "transfer_queue": storage}
    now = 0.0
    for number in range(1, 7):
        more = pause if number == SLOW or every else 0.0
        gen, adv, update = (more if role == each else 0.0 for each in ("agent_loop", "trainer", "actor_rollout_ref"))
        adv += more if role in ("transfer_queue", "") else 0.0
        update += work if number == SLOW else 0.0
        begin, ends = now + 0.1, [now + 1.1 + gen, now + 1.2 + gen + adv, now + 2.2 + gen + adv + update]
        consumed = [
            stories.trajectory(agent, begin, ends[0] - 0.05, uid=f"u{number}", index=index, step=number)
            for index in range(4)
        ]
        phases = [("gen", now, ends[0]), ("adv", ends[0], ends[1]), ("update_actor", ends[1], ends[2])]
        step = stories.step(trainer, number, now, ends[2], phases, consumed)
        rank.span("verl.worker W.update_actor", ends[1], ends[2], step, verl__worker__method="update_actor")
        if more and role:
            start = {"agent_loop": begin + 0.2, "actor_rollout_ref": ends[1] + 0.1}.get(role, ends[0] + 0.05)
            other = {"verl__stall__instance": by} if by else {}
            other |= {} if queued is None else {"verl__paused__queued_seconds": queued}
            cuts = [start + more * piece / pieces for piece in range(pieces + 1)]
            for a, b in itertools.pairwise(cuts):
                paused[role].span("verl.process.paused", a, b, reason=reason, **other)
        now = ends[2] + 0.05
    return story


@pytest.mark.parametrize("role", ["trainer", "agent_loop", "actor_rollout_ref", "transfer_queue"])
def test_a_stopped_process_is_named(story, role):
    """Where it does the work, and where another one waits for it that has no spans of it."""
    run = reader.read([add_steps(story, 2.5, role=role).write()])[0]
    held = {step.number: step.verdicts for step in run.steps if step.verdicts}
    assert list(held) == [SLOW]
    (verdict,) = held[SLOW]
    assert (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name) == (
        "process", f"{role}-0", "paused", STOPPED,
    )  # fmt: skip
    assert verdict.seconds == pytest.approx(2.5, abs=0.1)
    text = texts.explain(run)
    phase = " in adv" if role == "trainer" else ""
    assert f"{role}-0 was paused for 2.50 s{phase}: {STOPPED}." in text
    assert "paused process: " in text


def test_a_pause_is_one_verdict_also_where_a_rank_is_slow_besides(story):
    """What the pause cost, not what the rank was slower by."""
    run = reader.read([add_steps(story, 2.5, role="actor_rollout_ref", work=1.0).write()])[0]
    (verdict,) = (verdict for step in run.steps for verdict in step.verdicts)
    assert (verdict.kind, verdict.subject) == ("process", "actor_rollout_ref-0")
    assert verdict.saved == pytest.approx(2.5, abs=0.1)


def test_a_process_that_shares_a_cpu_was_delayed_by_its_time_in_the_run_queue(story):
    """It ran in between: only 1.5 s of the 2.5 s are taken from it, and the rest is not blamed on other programs."""
    run = reader.read([add_steps(story, 2.5, role="actor_rollout_ref", reason="cpu", queued=1.5).write()])[0]
    paused = [verdict for step in run.steps for verdict in step.verdicts if verdict.kind == "process"]
    assert [(verdict.cause_name, pytest.approx(verdict.seconds)) for verdict in paused] == [("no CPU", 1.5)]


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("collection", "garbage collection"),
        ("interpreter", "a call into C that held the interpreter lock"),
        ("cpu", "no CPU"),
        ("executor", "no free thread of the executor"),
    ],
)
def test_the_reason_is_named(story, reason, name):
    """In words."""
    run = reader.read([add_steps(story, 2.5, role="agent_loop", reason=reason).write()])[0]
    assert [verdict.cause_name for step in run.steps for verdict in step.verdicts] == [name]


def test_a_slow_phase_without_a_pause_keeps_its_name(story):
    """Nothing is claimed that was not seen."""
    run = reader.read([add_steps(story, 2.5).write()])[0]
    assert [(verdict.kind, verdict.cause_name) for step in run.steps for verdict in step.verdicts] == [("phase", "adv")]


@pytest.mark.parametrize("reason", ["cpu", "executor", "collection", "interpreter"])
def test_a_pause_of_every_step_is_one_of_the_run(story, reason):
    """A process that is paused equally long in every step made none of them longer: verl 0.8 collects garbage in each one."""
    run = reader.read([add_steps(story, 2.5, role="agent_loop", reason=reason, every=True).write()])[0]
    assert not any(step.verdicts for step in run.steps)
    lines = texts.explain(run).splitlines()
    place = lines.index("  Pauses of the processes that the median step waits for")
    assert lines[place + 1].split()[:3] == ["2.50", "s", "53%"], "2.5 s of 4.7 s"
    assert any(line.startswith("  paused process: ") for line in lines), "what to do"


@pytest.mark.parametrize(("reason", "seconds"), [("process", 0.3), ("cpu", 0.9)])
def test_short_pauses_are_no_cause(story, reason, seconds):
    """A busy machine has them all the time; those without a CPU are not even on the path."""
    run = reader.read([add_steps(story, seconds, role="agent_loop", reason=reason).write()])[0]
    assert not any(verdict.kind == "process" for step in run.steps for verdict in step.verdicts)
    assert reason != "cpu" or "paused" not in {kind for step in run.steps for kind, _, _ in step.groups}


@pytest.mark.parametrize(("pieces", "names"), [(6, ["no CPU"]), (1, [])])
def test_short_pauses_of_many_processes_are_one_cause(story, pieces, names):
    """Other programs take the CPU: the phases of a step take longer alike, and its processes have none for short whiles, in turn."""
    trainer = story.process()
    ranks = [story.process("actor_rollout_ref", verl__rank=rank) for rank in range(2)]
    now = 0.0
    for number in range(1, 9):
        length = 3.0 if number == SLOW else 1.0
        parts = ("old_log_prob", "ref", "update_actor")
        phases = [(name, now + index * length, now + (index + 1) * length) for index, name in enumerate(parts)]
        stories.step(trainer, number, now, now + 3 * length, phases, [])
        for piece in range(pieces if number == SLOW else 0):
            begin = now + 0.5 + piece * 1.1
            ranks[piece % 2].span("verl.process.paused", begin, begin + 0.9, reason="cpu")
        now += 3 * length + 0.05
    held = {step.number: step.verdicts for step in reader.read([story.write()])[0].steps if step.verdicts}
    assert [verdict.cause_name for verdict in held.get(SLOW, ())] == names
    assert list(held) == [SLOW] * bool(names)


@pytest.mark.parametrize(
    ("keywords", "names"),
    [
        ({}, ["no CPU"]),
        ({"queued": 0.1}, []),
        ({"every": True}, []),
        ({"reason": "collection"}, ["garbage collection"]),
    ],
)
def test_short_waits_for_a_cpu_are_the_cause_where_nothing_else_is_found(story, keywords, names):
    """Each is too short to be on the path of a trajectory. They are most of what the step took longer, or are not named."""
    keywords = {"role": "agent_loop", "reason": "cpu", "pieces": 6, **keywords}
    run = reader.read([add_steps(story, 2.4, **keywords).write()])[0]
    found = [verdict for step in run.steps for verdict in step.verdicts]
    assert [verdict.cause_name for verdict in found] == names
    assert all(verdict.subject == "agent_loop-0" and verdict.saved == pytest.approx(2.4, abs=0.1) for verdict in found)


def add_calls(story, *, waits, more, role="actor_rollout_ref", every=False, steps=9):
    """Steps in which the trainer calls two ranks for log probabilities, one second; step 4 takes ``more``.

    A process of each ``role`` waits for a CPU meanwhile, for a share ``waits`` of the time, in turn with the other one: in that step or in ``every``.
    """
    trainer = story.process()
    ranks = [story.process("actor_rollout_ref", verl__rank=rank) for rank in range(2)]
    waiting = ranks if role == "actor_rollout_ref" else [story.process(role)]
    now = 0.0
    for number in range(1, steps + 1):
        length = 1.0 + (more if number == SLOW else 0.0)
        phases = [("old_log_prob", now, now + length), ("update_actor", now + length, now + length + 1.0)]
        root = stories.step(trainer, number, now, now + length + 1.0, phases)
        for rank in ranks:
            rank.span(
                "verl.worker W.compute_log_prob", now, now + length, root, verl__worker__method="compute_log_prob"
            )
        pieces = range(round(length / 0.5)) if waits and (every or number == SLOW) else ()
        for piece in pieces:
            begin = now + 0.5 * piece
            queued = {"verl__paused__queued_seconds": 0.5 * waits}
            waiting[piece % len(waiting)].span("verl.process.paused", begin, begin + 0.5, reason="cpu", **queued)
        now += length + 1.05
    return story


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ({"waits": 0.7, "more": 1.0}, "no CPU"),
        ({"waits": 0.1, "more": 1.0}, "compute_log_prob"),
        ({"waits": 0.0, "more": 1.0}, "compute_log_prob"),
        ({"waits": 0.3, "more": 1.0, "every": True}, "compute_log_prob"),
        ({"waits": 0.9, "more": 1.0, "role": "llm_server"}, "compute_log_prob"),
    ],
)
def test_a_phase_is_slow_by_itself_unless_its_processes_waited_longer_than_usual(story, keywords, name):
    """Each of the ranks waited for less than half of it, one after the other. A replica goes on beside the phase, which does not wait for it."""
    run = reader.read([add_calls(story, **keywords).write()])[0]
    held = {step.number: [verdict.cause_name for verdict in step.verdicts] for step in run.steps if step.verdicts}
    assert held == {SLOW: [name]}


def test_a_replica_that_was_stopped_is_why_a_weight_sync_took_longer(story):
    """Also where the steps before took as long for another reason, so that its pause alone would not be named."""
    trainer, server, now = story.process(), story.process("llm_server"), 0.0
    for number in range(1, 10):
        more, before = (1.5 if number == SLOW else 0.0), (1.5 if number < SLOW else 0.0)
        at = now + 1.0 + before
        root = stories.step(trainer, number, now, at + 0.4 + more, [("adv", now, at)])
        phase = trainer.span("verl.phase.update_weights", at, at + 0.4 + more, root)
        trainer.span("verl.weight_sync", at, at + 0.4 + more, phase)
        if more:
            server.span("verl.process.paused", at - 0.5, at + 0.2 + more, reason="process")
        now = at + 0.5 + more
    run = reader.read([story.write()])[0]
    (verdict,) = (verdict for step in run.steps if step.number == SLOW for verdict in step.verdicts)
    assert (verdict.kind, verdict.subject) == ("process", "llm_server-0")


def test_a_process_without_telemetry_is_named(story):
    """The process that watches the node has recorded that another one was stopped."""
    run = reader.read([add_steps(story, 2.5, role="transfer_queue", by="raylet-7").write()])[0]
    (verdict,) = (verdict for step in run.steps for verdict in step.verdicts)
    assert (verdict.kind, verdict.subject, verdict.cause_name) == ("process", "raylet-7", STOPPED)


@pytest.mark.parametrize(
    ("spans", "kind"),
    [
        ({"verl.process.paused": "process"}, "process"),
        ({"verl.event_loop.blocked": "process"}, "loop"),
        ({"verl.event_loop.blocked": "callback", "verl.process.paused": "process"}, "process"),
    ],
)
def test_a_replica_that_stands_is_named_in_a_weight_sync(story, spans, kind):
    """The trainer waits for it before a worker sends weights: to abort, to sleep. A callback did not take the time in which its process stood."""
    trainer, server = story.process(), story.process("llm_server")
    now = 0.0
    for number in range(1, 7):
        more = 2.0 if number == SLOW else 0.0
        root = stories.step(trainer, number, now, now + 1.4 + more, [("adv", now, now + 1)])
        phase = trainer.span("verl.phase.update_weights", now + 1, now + 1.4 + more, root)
        trainer.span("verl.weight_sync", now + 1, now + 1.4 + more, phase)
        for name, reason in spans.items() if more else ():
            server.span(name, now + 0.8, now + 1.2 + more, reason=reason)
        now += 1.5 + more
    (verdict,) = (verdict for step in reader.read([story.write()])[0].steps for verdict in step.verdicts)
    assert (verdict.kind, verdict.subject, verdict.cause_name) == (kind, "llm_server-0", STOPPED)


@pytest.mark.parametrize("reason", ["process", "interpreter"])
def test_a_submission_waits_for_an_agent_loop(story, reason):
    """Asynchronous rollouts of the step before block the process that is to take the next prompts: one verdict, not one on the phase, too."""
    trainer, agent = story.process(), story.process("agent_loop")
    now = 0.0
    for number in range(1, 7):
        more = 1.5 if number == SLOW else 0.0
        phases = [("submit", now, now + 0.1 + more), ("adv", now + 0.1 + more, now + 1.2 + more)]
        stories.step(trainer, number, now, now + 1.2 + more, phases)
        if more:
            agent.span("verl.process.paused", now - 0.5, now + more, reason=reason)
        now += 1.3 + more
    (verdict,) = (verdict for step in reader.read([story.write()])[0].steps for verdict in step.verdicts)
    assert (verdict.kind, verdict.subject) == ("process", "agent_loop-0")
    assert verdict.seconds == pytest.approx(1.5, abs=0.1)


LINE = 'File "/app/agent.py", line 7 in think'


@pytest.mark.parametrize(
    ("span", "attributes", "cause", "name"),
    [
        ("paused", {"reason": "interpreter"}, "paused", "a call into C that held the interpreter lock"),
        ("blocked", {"reason": "callback", "verl__blocked__line": LINE}, "blocked", "think (agent.py:7)"),
    ],
)
def test_what_held_a_validation_is_named(story, span, attributes, cause, name):
    """It consists of rollouts, which wait for the process of the agents, whatever pauses that or blocks its loop."""
    trainer, agent = story.process(), story.process("agent_loop")
    now = 0.0
    for number in range(1, 8):
        more = 2.0 if number == SLOW else 0.0
        stories.step(trainer, number, now, now + 1, [("adv", now, now + 1)])
        trainer.span("verl.validation", now + 1.1, now + 1.6 + more)
        if more:
            kind = {"paused": "verl.process.paused", "blocked": "verl.event_loop.blocked"}[span]
            agent.span(kind, now + 1.2, now + 1.2 + more, **attributes)
        now += 1.8 + more
    (verdict,) = (verdict for step in reader.read([story.write()])[0].steps for verdict in step.verdicts)
    assert (verdict.kind, verdict.subject, verdict.instance) == ("between", "validation", "agent_loop-0")
    assert (verdict.cause, verdict.cause_name) == (cause, name)


def add_causes(story, *works, pause=0.0, overlap=0.0):
    """Six steps of four trajectories; in one of them a trajectory takes longer in each of some tools, then its process is paused.

    ``works``: names of tools and the seconds by which each is slower. ``overlap``: seconds of the pause in which the last tool was running.
    """
    trainer, agent = story.process(), story.process("agent_loop")
    now = 0.0
    for number in range(1, 7):
        begin, consumed = now + 0.1, []
        for index in range(4):
            is_slow = number == SLOW and index == 3
            longer = dict(works) if is_slow else {}
            more = sum(longer.values()) + (pause - overlap if is_slow else 0.0)
            at, calls = begin + 0.1, []
            for name, _ in works:
                end = at + 0.1 + longer.get(name, 0.0)
                calls.append(("tool", name, at, end))
                at = end
            if is_slow and pause:
                agent.span("verl.process.paused", at - overlap, at - overlap + pause, reason="process")
            where = {"uid": f"u{number}", "index": index, "step": number}
            consumed.append(stories.trajectory(agent, begin, begin + 1.0 + more, calls=calls, **where))
        end = begin + 1.1 + (sum(dict(works).values()) + pause - overlap if number == SLOW else 0.0)
        stories.step(trainer, number, now, end + 1.0, [("gen", now, end), ("update_actor", end, end + 1.0)], consumed)
        now = end + 1.05
    return story


@pytest.mark.parametrize(
    ("works", "pause", "overlap", "causes", "longer"),
    [
        ([("search", 1.9)], 1.5, 0.0, [("search", 1.9), (STOPPED, 1.5)], 3.4),
        ([("search", 1.9)], 1.5, 1.0, [(STOPPED, 1.5), ("search", 0.9)], 2.4),
        ([("search", 1.9), ("lookup", 1.5)], 0.0, 0.0, [("search", 1.9), ("lookup", 1.5)], 3.4),
    ],
)
def test_each_cause_of_a_step_is_named_and_the_title_has_their_sum(story, works, pause, overlap, causes, longer):
    """The largest first. A pause hides no slow tool: only the time in which the tool was paused is the pause's."""
    run = reader.read([add_causes(story, *works, pause=pause, overlap=overlap).write()])[0]
    (step,) = (step for step in run.steps if step.verdicts)
    found = [(verdict.cause_name, pytest.approx(verdict.saved, abs=0.05)) for verdict in step.verdicts]
    assert causes == found
    assert f"Step {SLOW} took {step.seconds:.2f} s, {longer:.2f} s longer than usual" in texts.explain(run)


def test_causes_that_are_the_same_time_are_not_added(story):
    """Each of two tools of one trajectory would have saved its lead over the others, and both together no more."""
    story = add_causes(story, ("search", 1.9), ("lookup", 1.5))
    others = [span for teller in story.processes for span in teller.spans if span.name == "verl.trajectory"]
    late = next(span for span in others if span.attributes["verl.sample.uid"] == f"u{SLOW}")
    for teller in story.processes:
        teller.spans = [
            span._replace(end_ns=span.end_ns + 1_400_000_000) if span is late else span for span in teller.spans
        ]
    run = reader.read([story.write()])[0]
    (step,) = (step for step in run.steps if step.verdicts)
    assert [verdict.saved for verdict in step.verdicts] == [pytest.approx(1.9, abs=0.11), pytest.approx(1.5, abs=0.11)]
    assert "are the same time: together they are 2.00 s" in texts.explain(run)


def test_a_client_waits_for_a_server_that_is_paused(story):
    """A process that is stopped begins no span: the call has not reached it."""
    trainer, agent, server = story.process(), story.process("agent_loop"), story.process("llm_server")
    now = 0.0
    for number in range(1, 7):
        more = 2.5 if number == SLOW else 0.0
        own = stories.trajectory(agent, now + 0.1, now + 1.0 + more, uid=f"u{number}", step=number)
        call = agent.span(
            "chat model", now + 0.2, now + 0.9 + more, own, state=stories.TRAJECTORY, gen_ai__operation__name="chat"
        )
        server.span("verl.generate", now + 0.8 + more, now + 0.9 + more, call, state=stories.TRAJECTORY)
        if more:
            server.span("verl.process.paused", now + 0.25, now + 0.25 + more, reason="process")
        end = now + 1.1 + more
        stories.step(trainer, number, now, end + 0.5, [("gen", now, end), ("update_actor", end, end + 0.5)], [own])
        now = end + 0.55
    run = reader.read([story.write()])[0]
    held = {step.number: step.verdicts for step in run.steps if step.verdicts}
    assert list(held) == [SLOW]
    assert [(verdict.kind, verdict.subject) for verdict in held[SLOW]] == [("process", "llm_server-0")]


def test_a_trajectory_that_has_not_started_waits_for_its_process(story):
    """The event loop of its agent loop was blocked before it could begin any of them."""
    trainer, agent, now = story.process(), story.process("agent_loop"), 0.0
    for number in range(1, 7):
        more = 2.5 if number == SLOW else 0.0
        end = now + 1.1 + more
        own = agent.span(
            "verl.trajectory", now + 0.1 + more, end - 0.1, state=stories.TRAJECTORY, verl__sample__uid=f"u{number}",
            verl__rollout__index=0, verl__step__number=number,
        )  # fmt: skip
        if more:
            agent.span("verl.event_loop.blocked", now + 0.1, now + 0.1 + more, reason="collection")
        stories.step(trainer, number, now, end + 0.5, [("gen", now, end), ("update_actor", end, end + 0.5)], [own])
        now = end + 0.55
    held = {step.number: step.verdicts for step in reader.read([story.write()])[0].steps if step.verdicts}
    assert list(held) == [SLOW]
    (verdict,) = held[SLOW]
    assert (verdict.kind, verdict.subject, verdict.cause_name) == ("loop", "agent_loop-0", "garbage collection")
    assert verdict.rests_on == "counters"


TIMES = st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda each: (each[0], each[0] + each[1]))
WHERE = st.sampled_from(["agent_loop-0", "llm_server-1", "trainer-0"])


@given(
    st.lists(st.tuples(TIMES, WHERE, st.booleans()), max_size=8),
    st.lists(st.tuples(st.integers(1, 10), st.sampled_from(["llm", "phase", "worker"])), min_size=1, max_size=6),
    st.randoms(),
)
def test_a_path_keeps_its_length_and_order_does_not_matter(known, parts, chance):
    """Nothing is lost and nothing overlaps, however pauses and blocked times of several processes lie."""

    def mark(order):
        loops = BlockedLoops()
        for (begin, end), where, paused in order:
            name = "verl.process.paused" if paused else "verl.event_loop.blocked"
            span = SpanRecord(1, 2, 0, name, 1, begin, end, {"reason": "process"}, (), (), 0, "", 1, "")
            loops.add_span(Node(span, where, 0, []))
        return loops.mark(path)

    path, now = [], 0
    for length, kind in parts:
        path.append(Segment(now, now + length, kind, "", "", "trainer-0" if kind == "phase" else "agent_loop-0"))
        now += length
    marked, waits = mark(known)
    assert [segment.start_ns for segment in marked[1:]] == [segment.end_ns for segment in marked[:-1]]
    assert (marked[0].start_ns, marked[-1].end_ns) == (0, now)
    held = [segment for segment in marked if segment.kind in ("blocked", "paused")]
    assert sum(wait.end_ns - wait.start_ns for wait in waits) == sum(each.end_ns - each.start_ns for each in held)
    again, _ = mark(chance.sample(known, len(known)))
    ticks = [
        {tick for each in path if each.kind in ("blocked", "paused") for tick in range(each.start_ns, each.end_ns)}
        for path in (marked, again)
    ]
    assert ticks[0] == ticks[1]


def test_the_title_has_what_no_cause_explains(story):
    """Two slow tools of trajectories beside each other: each alone would have saved only its lead."""
    trainer, agent, now = story.process(), story.process("agent_loop"), 0.0
    for number in range(1, 8):
        slow = {2: ("sandbox", 2.0), 3: ("search", 3.5)} if number == SLOW else {}
        begin, consumed = now + 0.1, []
        for index in range(4):
            name, more = slow.get(index, ("search", 0.0))
            calls = [
                ("tool", tool, begin + at, begin + at + 0.1 + (more if tool == name else 0.0))
                for tool, at in (("search", 0.1), ("sandbox", 0.3))
            ]
            where = {"uid": f"u{number}", "index": index, "step": number}
            consumed.append(stories.trajectory(agent, begin, begin + 1.0 + more, calls=calls, **where))
        end = begin + 1.1 + (3.5 if slow else 0.0)
        stories.step(trainer, number, now, end + 1.0, [("gen", now, end), ("update_actor", end, end + 1.0)], consumed)
        now = end + 1.05
    text = texts.explain(reader.read([story.write()])[0])
    assert (
        "Step 4 took 5.70 s, 3.50 s longer than usual (others: median 2.20 s), of which 2.00 s are not explained."
        in text
    )
    assert (
        "1 of 7 steps was delayed, by 3.50 s in all (18% of the time of all steps and between them), of which 2.00 s are not explained."
        in text
    )
