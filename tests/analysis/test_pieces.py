# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the clocks of several hosts do to the pieces of a run and to the doubt about its steps."""

from verl_otel.analysis.model import Segment
from verl_otel.analysis.traces.clocks import Clock, Context


def test_clocks_that_are_apart_make_traces_wait_longer():
    """Files are ordered by the clocks of their hosts: what one wrote later may lie earlier."""
    clocks = {"a": Clock((0,), (7 * 10**9,), (0.0,)), "b": Clock((0,), (-(10**9),), (0.0,))}
    assert Context(clocks=clocks).slack_ns == 13 * 10**9


def test_doubt_is_that_of_the_clocks_on_the_path():
    """The worst of the hosts that a path leads through; none with one clock."""
    clocks = {"a": Clock((0,), (0,), (0.0,)), "b": Clock((0,), (5,), (25e7,)), "c": Clock((0,), (5,), (7e9,))}
    path = [Segment(0, 1, "phase", "gen", instance="trainer-0"), Segment(1, 2, "tool", "t", instance="agent_loop-0")]
    hosts = {"trainer-0": "a", "agent_loop-0": "b", "agent_loop-1": "c"}
    assert Context(clocks=clocks, hosts=hosts).find_uncertainty(path) == 0.25
    assert Context(hosts=hosts).find_uncertainty(path) == 0.0
    assert Context(clocks=clocks).find_uncertainty(path) == 0.0
