# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""When work is overdue: soon where its peers are alike, late where they spread."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watchdog.snapshots import SnapshotBuilder
from verl_otel.recording import duration_stats
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.watchdog import diagnosis, overdue


def peers_of(durations):
    return DurationStats(len(durations), tuple(sorted(durations, reverse=True)[: duration_stats.MAX_TOP]))


def test_work_without_peers_has_the_limit_that_is_set():
    """The first of its kind may take as long as the setting says."""
    assert overdue.span_timeout(None, 1800.0) == overdue.span_timeout(DurationStats(), 1800.0) == 1800.0
    assert overdue.heartbeat_timeout(None, 1800.0) == 1800.0


def test_alike_peers_give_a_tight_limit():
    """Where all took about two seconds, thirteen are too many; eight peers and more count as many."""
    alike = peers_of([1.9, 2.0, 2.1] * 4)
    assert overdue.span_timeout(alike, 1800.0) == pytest.approx(1.5 * 2.1 + 10)
    assert overdue.heartbeat_timeout(alike, 1800.0) == pytest.approx(2.1 + 5)


def test_few_peers_or_a_heavy_tail_give_a_wide_limit():
    """With few peers four times the longest is ordinary; where each of the longest is twice the next one, eight times."""
    assert overdue.span_timeout(peers_of([2.0, 2.0]), 1800.0) == pytest.approx(4 * 2.0 + 10)
    assert overdue.heartbeat_timeout(peers_of([2.0, 2.0]), 1800.0) == pytest.approx(2 * 2.0 + 5)
    assert overdue.span_timeout(peers_of([2.0**power for power in range(10)]), 1800.0) == pytest.approx(8 * 2.0**9 + 10)


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=40))
def test_the_limit_is_bounded_by_the_longest_peer(durations):
    """Never below one and a half times the longest, never above eight times, and no process suspects later than its node."""
    peers, longest = peers_of(durations), max(durations)
    assert 1.5 * longest + 10 <= overdue.span_timeout(peers, 1800.0) + 1e-6
    assert overdue.span_timeout(peers, 1800.0) <= 8 * longest + 10 + 1e-6
    assert overdue.shortest_timeout(peers) <= overdue.span_timeout(peers, 1800.0) + 1e-6


@pytest.mark.parametrize(
    ("before", "then", "reports", "expected"),
    [
        ([2.0] * 9, [25.0], 1, 2.0),
        ([2.0] * 9, [25.0] * 8, 1, 2.0),
        ([2.0] * 9, [25.0] * 9, 1, 25.0),
        ([2.0] * 9, [25.0] * 16, 1, 25.0),
        ([2.0] * 9, [25.0] * 3, 3, 25.0),
        ([], [25.0], 1, None),
    ],
    ids=[
        "one hung",
        "as many as a node has ranks",
        "all take that long",
        "no shorter one is held",
        "reported again and again",
        "the first hung",
    ],
)
def test_what_was_reported_is_no_peer(before, then, reports, expected):
    """What hung for long does not make the next hang usual, until it is plain that the work is slow. Its process lists the next one as soon."""
    hung, peers = overdue.HungWork(), {"chat": peers_of([*before, *then]), "verl.step": peers_of([60.0, 30.0])}
    for _ in range(reports):
        hung.add("chat", 13.0)
    hung.add("verl.step", 60.0)
    usual = hung.leave_out(peers)
    assert usual.pop("verl.step") == peers["verl.step"]
    assert {name: stats.longest for name, stats in usual.items()} == ({"chat": expected} if expected else {})
    assert overdue.shortest_timeout(peers["chat"]) <= overdue.span_timeout(usual.get("chat"), 1800.0)


@given(st.lists(st.floats(0.001, 1e3), min_size=1, max_size=40), st.floats(0.1, 10.0))
def test_the_factor_does_not_depend_on_the_unit(durations, scale):
    """Durations that are all ten times as long have a factor that is the same."""
    factors = [
        (overdue.span_timeout(peers_of([duration * by for duration in durations]), 0.0) - 10) / (max(durations) * by)
        for by in (1.0, scale)
    ]
    assert factors[0] == pytest.approx(factors[1], rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(("spread", "median"), [(0.3, 30.0), (1.0, 5.0), (1.5, 5.0)])
def test_healthy_heavy_tails_are_hardly_ever_overdue(spread, median):
    """Of 30 runs of 300 steps with 64 log-normal durations each, at most two have one that is overdue while it is open."""
    draw = random.Random(5)
    alarms = 0
    for _ in range(30):
        peers = DurationStats()
        for _ in range(300):
            *ended, last = sorted(median * draw.lognormvariate(0, spread) for _ in range(64))
            peers = duration_stats.merge(peers, peers_of(ended))
            alarms += last > overdue.span_timeout(peers, 1800.0)
            peers = duration_stats.merge(peers, peers_of([last]))
    assert alarms <= 2


@pytest.mark.parametrize(
    ("still", "world", "age", "peers", "expected"),
    [
        (True, 2, 13, (), ["actor-0"]),
        (False, 2, 13, (), []),
        (True, 4, 13, (), []),
        (True, 2, 9, (), []),
        (True, 2, 13, (3.0, 2.0), ["actor-0"]),
        (False, 2, 13, (3.0, 2.0), []),
        (True, 2, 13, (7.0, 2.0), []),
    ],
)
def test_a_call_hangs_if_nothing_on_the_node_moves(still, world, age, peers, expected):
    """Before its time with the peers that it has, or without any; ranks of another node may compute for it."""
    builder = SnapshotBuilder().process("trainer-0", "trainer").still(still)
    if peers:
        builder.peers("verl.call save_checkpoint", peers=peers_of(peers))
    call = builder.open("trainer-0", "verl.call save_checkpoint", age, **{"verl.world_size": world})
    for rank in range(2):
        builder.process(f"actor-{rank}", "actor_rollout_ref", rank=rank)
        builder.open(f"actor-{rank}", "verl.worker W.save_checkpoint", age, call, **{"verl.rank": rank})
    assert [finding.process_name for finding in diagnosis.find(builder.build())] == expected
