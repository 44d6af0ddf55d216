# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Of one piece only what surely lies in it becomes a trajectory; everything else is handed on."""

import pytest

from tests.builders import stories
from verl_otel.analysis import aggregator
from verl_otel.analysis.io.followed_files import Piece
from verl_otel.analysis.model import Segment
from verl_otel.analysis.traces.clocks import Clock, Context


@pytest.fixture
def is_inside(story):
    """Whether one trajectory from 100 to 110 s lies in a piece between two times."""

    def judge(begin, end, clocks=None):
        agent = story.process("agent_loop")
        stories.trajectory(agent, 100, 110, calls=[("llm", "m", 101, 102)])
        piece = Piece((), stories.at(begin), stories.at(end))
        slack_ns = Context(clocks=clocks or {}).slack_ns
        return aggregator.is_inside([(span, 0) for span in agent.spans], piece, slack_ns)

    return judge


@pytest.mark.parametrize(
    ("begin", "end", "inside"), [(0, 999, True), (95, 115, True), (96, 999, False), (0, 114, False)]
)
def test_what_lies_near_an_edge_is_handed_on(is_inside, begin, end, inside):
    """Within five seconds of an edge a span of the trajectory could lie on its other side."""
    assert is_inside(begin, end) == inside


def test_clocks_that_are_apart_make_the_edges_wider(is_inside):
    """Files are ordered by the clocks of their hosts: what one wrote later may lie earlier."""
    clocks = {"a": Clock((0,), (7 * 10**9,), (0.0,)), "b": Clock((0,), (-(10**9),), (0.0,))}
    assert Context(clocks=clocks).slack_ns == 13 * 10**9
    assert not is_inside(90, 120, clocks)


def test_doubt_is_that_of_the_clocks_on_the_path():
    """The worst of the hosts that a path leads through; none with one clock."""
    clocks = {"a": Clock((0,), (0,), (0.0,)), "b": Clock((0,), (5,), (25e7,)), "c": Clock((0,), (5,), (7e9,))}
    path = [Segment(0, 1, "phase", "gen", instance="trainer-0"), Segment(1, 2, "tool", "t", instance="agent_loop-0")]
    hosts = {"trainer-0": "a", "agent_loop-0": "b", "agent_loop-1": "c"}
    assert Context(clocks=clocks, hosts=hosts).find_uncertainty(path) == 0.25
    assert Context(hosts=hosts).find_uncertainty(path) == 0.0
    assert Context(clocks=clocks).find_uncertainty(path) == 0.0
