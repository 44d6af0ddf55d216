# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Blocked event loops: a verdict names what blocked the loop and how many trajectories waited."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import stories, texts
from verl_otel.analysis import reader
from verl_otel.analysis.model import Event, Segment
from verl_otel.analysis.verdicts import blocked_loops
from verl_otel.analysis.verdicts.blocked_loops import BlockedLoops, Blocking, _add

SLOW = 4
"""The step in which a loop is blocked."""


def add_steps(story, *, span=True, blocked=2.5, linked=True, tool="add", reason="callback"):
    """Six steps of four trajectories in one process; in one of them the tool of trajectory 3 blocks the loop."""
    trainer, agent = story.process(), story.process("agent_loop")
    rank, server = story.process("actor_rollout_ref", verl__rank=0), story.process("llm_server")
    now = 0.0
    for number in range(1, 7):
        more = blocked if number == SLOW else 0.0
        begin, consumed = now + 0.1, []
        for index in range(4):
            slow = more if index == 3 else 0.0
            calls = [("tool", "add", begin + 0.2, begin + 0.3 + slow)]
            where = {"uid": f"u{number}", "index": index, "step": number}
            own = stories.trajectory(agent, begin, begin + 1.0 + more, calls=calls, **where)
            server.span("verl.generate", begin, begin + 0.1, own, state=stories.TRAJECTORY)
            consumed.append(own)
        if more and span:
            culprit = (stories.LinkRecord(consumed[3].trace_id, consumed[3].span_id, {}, "", 0),)
            agent.span(
                "verl.event_loop.blocked", begin + 0.2, begin + 0.3 + more, links=culprit * linked, reason=reason,
                gen_ai__tool__name=tool, verl__blocked__span=f"execute_tool {tool}" if tool else "",
                verl__blocked__line='File "/code/tools.py", line 19 in add',
            )  # fmt: skip
        end = begin + 1.1 + more
        step = stories.step(
            trainer, number, now, end + 1.0, [("gen", now, end), ("update_actor", end, end + 1)], consumed
        )
        rank.span("verl.worker W.update_actor", end, end + 1.0, step, verl__worker__method="update_actor")
        now = end + 1.05
    return story


def test_a_blocking_tool_is_named_with_the_number_that_waited(story):
    """One verdict instead of slow calls; the path and the account of GPU time have the same."""
    run = reader.read([add_steps(story).write()])[0]
    held = {step.number: step for step in run.steps if step.verdicts}
    assert list(held) == [SLOW]
    (verdict,) = held[SLOW].verdicts
    assert (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name, verdict.waiting) == (
        "loop", "agent_loop-0", "blocked", "tool add", 3,
    )  # fmt: skip
    assert verdict.seconds == pytest.approx(2.6)
    assert held[SLOW].groups[0][:2] == ("blocked", "tool add")
    assert sum(length for _, _, length in held[SLOW].groups) == held[SLOW].end_ns - held[SLOW].start_ns
    assert held[SLOW].devices[0].nanoseconds["loop_wait"] == pytest.approx(2.6e9)
    text = texts.explain(run)
    assert (
        "Tool add blocked the event loop of agent_loop-0 for 2.60 s, at /code/tools.py:19 in add; 3 other trajectories waited."
        in text
    )
    assert "blocked loop: " in text
    assert "2.60 s if no code had blocked an event loop" in text


def test_several_lines_of_a_function_block_a_loop_together(story):
    """Each of four short blocks is below the floor: one function called the library in four lines, and its time is their sum."""
    trainer, agent = story.process(), story.process("agent_loop")
    for number in range(1, 7):
        begin, more = 10.0 * number, 1.0 if number == SLOW else 0.0
        own = stories.trajectory(agent, begin, begin + 2 + more, uid=f"u{number}", step=number)
        for part in range(4 if more else 0):
            agent.span(
                "verl.event_loop.blocked", begin + part / 2, begin + part / 2 + 0.25, reason="callback",
                verl__blocked__line=f'File "/code/fetch.py", line {part + 10} in fetch',
            )  # fmt: skip
        stories.step(trainer, number, begin, begin + 3 + more, [("gen", begin, begin + 2 + more)], [own])
    step = reader.read([story.write()])[0].steps[SLOW - 1]
    found = [
        (verdict.kind, verdict.cause_name[:9], verdict.seconds) for verdict in step.verdicts if verdict.kind == "loop"
    ]
    assert found == [("loop", "fetch (fe", pytest.approx(1.0))]


@pytest.mark.parametrize(
    ("reason", "text", "key"),
    [
        ("cpu", "The event loop of agent_loop-0 was paused for 2.60 s: no CPU; ", "paused process: "),
        ("callback", "add (tools.py:19) blocked the event loop of agent_loop-0 for 2.60 s; ", "blocked loop: "),
    ],
)
def test_what_blocked_a_loop_outside_of_tools_is_named_as_it_is(story, reason, text, key):
    """A loop without a CPU is not blocked by code, and has other advice; a function keeps its name."""
    rendered = texts.explain(reader.read([add_steps(story, linked=False, tool="", reason=reason).write()])[0])
    assert text in " ".join(rendered.split())
    assert key in rendered


def test_a_culprit_that_is_unknown_does_not_wait_for_itself(story):
    """Code outside of spans blocks the loop from within one of the trajectories, so that at most all others waited."""
    (verdict,) = reader.read([add_steps(story, linked=False).write()])[0].steps[SLOW - 1].verdicts
    assert (verdict.kind, verdict.waiting) == ("loop", 3)


def test_short_blocks_are_no_cause(story):
    """What is below the floor of a trajectory has no verdict."""
    run = reader.read([add_steps(story, blocked=0.05).write()])[0]
    assert not any(step.verdicts for step in run.steps)


def test_a_stall_report_is_evidence(story):
    """Where the process wrote no span, what the watchdog found while it was blocked is used."""
    folder = add_steps(story, span=False).write()
    begin = next(step for step in reader.read([folder])[0].steps if step.number == SLOW).start_ns
    key = ["stall", "agent_loop-node-1-1001", "execute_tool add"]
    culprit = {"instance": "agent_loop-0", "span": "execute_tool add", "age": 2.0, "trace_id": "0"}
    text = 'STALL in agent_loop-0 (pid 1): ...; its event loop is blocked at File "/code/tools.py", line 19 in add'
    found = {
        "kind": "stall",
        "time_ns": begin + 2_300_000_000,
        "text": text,
        "detail": {"key": key, "culprit": culprit},
    }
    over = {"kind": "resolved", "time_ns": begin + 2_900_000_000, "text": "", "detail": {"key": key}}
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (found, over)))
    step = reader.read([folder])[0].steps[SLOW - 1]
    assert [(verdict.kind, verdict.cause_name) for verdict in step.verdicts] == [("loop", "tool add")]
    assert step.devices[0].nanoseconds["loop_wait"] == pytest.approx(2.6e9)


def test_a_stall_that_is_over_ends(story):
    """A report without an end is replaced by the one with its end, even if an earlier one of another node comes with it."""
    detail = {"culprit": {"instance": "agent_loop-0", "span": "x", "age": 2.0}}
    open_stall = Event("stall", 10 * 10**9, 'its event loop is blocked at File "a", line 1 in f', detail)
    earlier = open_stall._replace(time_ns=5 * 10**9, detail={**detail, "resolved": 1.0})
    loops = BlockedLoops()
    loops.set_events([open_stall])
    assert loops.find_all(["agent_loop-0"], 0, 10**12) == [(8 * 10**9, 10**12)]
    loops.set_events([earlier, open_stall._replace(detail={**detail, "resolved": 3.0})])
    assert loops.find_all(["agent_loop-0"], 0, 10**12) == [(3 * 10**9, 6 * 10**9), (8 * 10**9, 13 * 10**9)]


@pytest.mark.parametrize(
    "detail", [{}, {"culprit": 1}, {"culprit": {"age": "x"}}, {"culprit": {"age": 1, "trace_id": "?"}}]
)
def test_damaged_reports_do_no_harm(detail):
    """Files of a run may hold anything."""
    loops = BlockedLoops()
    loops.set_events([Event("stall", 10, 'its event loop is blocked at File "a", line 1 in f', detail)])
    assert list(loops.find("agent_loop-0", 0, 100)) == []


TIMES = st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda each: (each[0], each[0] + each[1]))


@given(st.lists(TIMES, max_size=6), st.lists(st.integers(1, 10), min_size=1, max_size=6))
def test_a_marked_path_is_as_long_as_before(blockings, lengths):
    """Nothing is lost and nothing overlaps, however intervals lie; what is marked is blocked time."""
    loops, path, now = BlockedLoops(), [], 0
    for begin, end in blockings:
        _add(loops._spans, Blocking("a", begin, end, "x"))
    for number, length in enumerate(lengths):
        path.append(Segment(now, now + length, "llm" if number % 2 else "phase", "", "", "a"))
        now += length
    marked, waits = loops.mark(path)
    assert [segment.start_ns for segment in marked[1:]] == [segment.end_ns for segment in marked[:-1]]
    assert (marked[0].start_ns, marked[-1].end_ns) == (0, now)
    blocked = {tick for begin, end in blockings for tick in range(begin, end)}
    ticks = {
        tick for segment in marked if segment.kind == "blocked" for tick in range(segment.start_ns, segment.end_ns)
    }
    waiting = {tick for segment in path if segment.kind == "llm" for tick in range(segment.start_ns, segment.end_ns)}
    assert ticks == blocked & waiting
    assert sum(wait.end_ns - wait.start_ns for wait in waits) == len(ticks)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=60), st.integers(0, 220), st.integers(0, 60)
)
def test_intervals_are_found_without_a_search_through_all(intervals, begin, length):
    """In whatever order they are added, all that overlap are found in the order of their start; of disjoint ones no others."""
    known = blocked_loops._Intervals()
    for start, seconds in intervals:
        known.add(Blocking("loop", start, start + seconds, ""))
    yielded = [(blocking.start_ns, blocking.end_ns) for blocking in known.find(begin, begin + length)]
    every = sorted((start, start + seconds) for start, seconds in intervals)
    assert [pair[0] for pair in yielded] == sorted(pair[0] for pair in yielded)
    assert set(yielded) >= {pair for pair in every if pair[0] < begin + length and pair[1] > begin}
    disjoint = blocked_loops._Intervals()
    for start in range(0, 200, 10):
        disjoint.add(Blocking("loop", start, start + 5, ""))
    overlapping = [start for start in range(0, 200, 10) if start < begin + length and start + 5 > begin]
    assert [blocking.start_ns for blocking in disjoint.find(begin, begin + length)] == overlapping


def test_the_newest_intervals_are_kept(monkeypatch):
    """A process that is blocked again and again does not fill the memory."""
    monkeypatch.setattr(blocked_loops, "MAX_BLOCKINGS", 3)
    known = blocked_loops._Intervals()
    for start in (40, 10, 30, 20, 50):
        known.add(Blocking("loop", start, start + 5, ""))
    assert [blocking.start_ns for blocking in known.find(0, 100)] == [30, 40, 50]


def test_a_process_that_lived_knows_better_when_its_loop_was_blocked(story):
    """The run ended before the watchdog saw that the process went on."""
    folder = add_steps(story).write()
    begin = next(step for step in reader.read([folder])[0].steps if step.number == SLOW).start_ns
    text = 'STALL in agent_loop-0 (pid 1): ...; its event loop is blocked at File "/code/tools.py", line 19 in add; x waits'
    detail = {"culprit": {"instance": "agent_loop-0", "span": "execute_tool add", "age": 2.0}}
    found = {"kind": "stall", "time_ns": begin + 2_300_000_000, "text": text, "detail": detail}
    (folder / "events.jsonl").write_text(json.dumps(found) + "\n")
    assert [step.number for step in reader.read([folder])[0].steps if step.verdicts] == [SLOW]
