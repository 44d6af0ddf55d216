# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Limits are found in the times of spans: tools that block, slots of servers; and none where the times do not show one."""

import random

import pytest

from verl_otel.analysis.levers.schedules import Piece, Recorded, find_blocking_tools, find_slots, infer_slots

MS = 10**6


def agents(*, blocking, calls=12, length=100, seed=1):
    """Trajectories of one process that each call a tool between short pieces of their own."""
    chance, free_at, made = random.Random(seed), 40 * MS, []
    for number in range(calls):
        begin = number * MS
        ready = begin + 10 * MS + chance.randrange(5 * MS)
        start = max(ready, free_at) if blocking else ready
        end = start + length * MS
        free_at = end
        own = [(begin, ready - MS), (ready - MS, start), (start, end), (end, end + 30 * MS)]
        if blocking:  # no trajectory goes on while another one is in the tool
            own[-1] = (end, end)
        kinds = ("trajectory", "llm", "tool", "trajectory")
        pieces = [Piece(a, b, kind, "add" if kind == "tool" else "", "agent-0") for kind, (a, b) in zip(kinds, own, strict=True)]  # fmt: skip
        made.append(Recorded("agent-0", tuple(pieces)))
    last = free_at
    return [Recorded(each.instance, (*each.pieces[:-1], each.pieces[-1]._replace(end_ns=last + MS))) for each in made]


def test_a_tool_that_blocks_is_found():
    """While it is called, no other trajectory of the process gets any further."""
    (calls,) = find_blocking_tools(agents(blocking=True))["agent-0"].values()
    assert len(calls) == 12


def test_a_tool_that_does_not_block_is_not():
    """Calls overlap, and others go on."""
    assert not find_blocking_tools(agents(blocking=False))


@pytest.mark.parametrize("change", [{"calls": 2}, {"length": 10}], ids=["few", "short"])
def test_too_little_is_no_evidence(change):
    """Two calls, or calls of a few milliseconds, do not tell."""
    assert not find_blocking_tools(agents(blocking=True, **change))


def test_one_trajectory_at_a_time_shows_nothing():
    """Where no other trajectory could have gone on, nothing shows that a tool blocks."""
    alone = [Recorded("a", (Piece(n * 100 * MS, (n * 100 + 90) * MS, "tool", "add", "a"),)) for n in range(20)]
    assert not find_blocking_tools(alone)


def serve(slots, count=24, *, seed=3, spread=0.05, at_once=8):
    """Start and end of calls that come in groups and share some slots."""
    chance, ends, calls = random.Random(seed), [0] * slots, []
    for number in range(count):
        arrival = number // at_once * 10**10 + chance.randrange(20 * MS)
        calls.append((arrival, chance.gauss(1, spread) * 500 * MS))
    made = []
    for arrival, length in sorted(calls):
        first = min(range(slots), key=lambda slot: ends[slot])
        ends[first] = round(max(arrival, ends[first]) + length)
        made.append((arrival, ends[first]))
    return made


@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_slots_are_found_in_the_lengths_of_calls(slots):
    """Calls that are alike but for their waiting show how many are worked on at once."""
    assert infer_slots(serve(slots)) == slots


@pytest.mark.parametrize(
    "calls", [serve(8), serve(64), serve(4, spread=0.8, seed=5)[:4], []], ids=["free", "none", "few", "empty"]
)
def test_no_slots_are_made_up(calls):
    """Without waiting there is no limit to be found."""
    assert infer_slots(calls) is None


def test_an_engine_that_tells_of_its_queue_is_believed():
    """Its slots are the most that it worked on at once; one that never had a queue shows no limit."""
    calls = [(0, 100, 0), (0, 100, 0), (10, 200, 90), (10, 200, 90)]
    pieces = [Piece(start, end, "server", "", "s", 0, queued) for start, end, queued in calls]
    assert find_slots({"s": pieces}) == {"s": 2}
    assert find_slots({"s": [piece._replace(queued_ns=1) for piece in pieces]}) == {}
