# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Of one piece only what surely lies in it becomes a trajectory; everything else is handed on."""

import pytest

from tests.builders import stories
from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.followed_files import Piece
from verl_otel.analysis.io.run_files import Extent, Writers
from verl_otel.analysis.model import Segment
from verl_otel.analysis.pieces import Context, summarise
from verl_otel.analysis.traces.clocks import Clock


@pytest.fixture
def read(story):
    """Read one trajectory from 100 to 110 s and one step, in a piece between two times."""

    def make(begin, end, clocks=None):
        agent = story.process("agent_loop")
        root = stories.trajectory(agent, 100, 110, calls=[("llm", "m", 101, 102)])
        stories.step(story.process(), 1, 100, 111, [("gen", 100, 110)], [root])
        paths = run_files.find_files([story.write()], "traces")
        extents = tuple(Extent(path, 0, path.stat().st_size) for path in paths)
        piece = Piece(extents, stories.at(begin), stories.at(end))
        return summarise(piece, Context(clocks=clocks or {}), frozenset(), Writers(), Tally(), [])

    return make


@pytest.mark.parametrize(
    ("begin", "end", "inside"), [(0, 999, True), (95, 115, True), (96, 999, False), (0, 114, False)]
)
def test_what_lies_near_an_edge_is_handed_on(read, begin, end, inside):
    """Within five seconds of an edge a span of the trajectory could lie on its other side."""
    found = read(begin, end)
    assert len(found.trajectories) == inside
    assert len(found.spans) == 3 + 3 * (not inside)
    assert found.read == 3 * inside


def test_clocks_that_are_apart_make_the_edges_wider(read):
    """Files are ordered by the clocks of their hosts: what one wrote later may lie earlier."""
    clocks = {"a": Clock((0,), (7 * 10**9,), (0.0,)), "b": Clock((0,), (-(10**9),), (0.0,))}
    assert Context(clocks=clocks).slack_ns == 13 * 10**9
    assert not read(90, 120, clocks).trajectories


def test_doubt_is_that_of_the_clocks_on_the_path():
    """The worst of the hosts that a path leads through; none with one clock."""
    clocks = {"a": Clock((0,), (0,), (0.0,)), "b": Clock((0,), (5,), (25e7,)), "c": Clock((0,), (5,), (7e9,))}
    path = [Segment(0, 1, "phase", "gen", instance="trainer-0"), Segment(1, 2, "tool", "t", instance="agent_loop-0")]
    hosts = {"trainer-0": "a", "agent_loop-0": "b", "agent_loop-1": "c"}
    assert Context(clocks=clocks, hosts=hosts).find_uncertainty(path) == 0.25
    assert Context(hosts=hosts).find_uncertainty(path) == 0.0
    assert Context(clocks=clocks).find_uncertainty(path) == 0.0
