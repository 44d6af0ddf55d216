# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Of one slice only what surely lies in it becomes a trajectory; everything else is handed on."""

import pickle

import pytest

from tests.builders import stories
from verl_otel.analysis import slice_summary
from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.run_files import Slice
from verl_otel.analysis.model import Segment
from verl_otel.analysis.slice_summary import Context
from verl_otel.analysis.traces.clocks import Clock


@pytest.fixture
def digested(story):
    """Digest one trajectory from 100 to 110 s and one step, in a slice between two times."""

    def make(begin=None, end=None, **more):
        agent = story.process("agent_loop")
        root = stories.trajectory(agent, 100, 110, calls=[("llm", "m", 101, 102)])
        stories.step(story.process(), 1, 100, 111, [("gen", 100, 110)], [root])
        (whole,) = run_files.cut(run_files.find_files([story.write()], "traces"))
        bounds = (
            run_files.BEGINNING if begin is None else stories.at(begin),
            run_files.END if end is None else stories.at(end),
        )
        context = Context(**{key: value({root.trace_id}) if callable(value) else value for key, value in more.items()})
        return slice_summary.summarise_spans(Slice(*bounds, whole.extents), context)

    return make


@pytest.mark.parametrize(
    ("begin", "end", "inside"),
    [(None, None, True), (95, 115, True), (96, None, False), (None, 114, False), (95, None, True), (None, 115, True)],
)
def test_what_lies_near_an_edge_is_handed_on(digested, begin, end, inside):
    """Within five seconds of an edge a span of the trajectory could lie on its other side."""
    found = digested(begin, end)
    assert len(found.trajectories) == inside
    assert len(found.spans) == 3 + 3 * (not inside)
    assert found.read == 3 * inside


def test_clocks_that_are_apart_make_the_edges_wider(digested):
    """Files are ordered by the clocks of their hosts: what one wrote later may lie earlier."""
    clocks = {"a": Clock((0,), (7 * 10**9,), (0.0,)), "b": Clock((0,), (-(10**9),), (0.0,))}
    assert Context(clocks=clocks).slack_ns == 13 * 10**9
    assert not digested(90, 130, clocks=clocks).trajectories


def test_doubt_is_that_of_the_clocks_on_the_path():
    """The worst of the hosts that a path leads through; none with one clock."""
    clocks = {"a": Clock((0,), (0,), (0.0,)), "b": Clock((0,), (5,), (25e7,)), "c": Clock((0,), (5,), (7e9,))}
    path = [Segment(0, 1, "phase", "gen", instance="trainer-0"), Segment(1, 2, "tool", "t", instance="agent_loop-0")]
    hosts = {"trainer-0": "a", "agent_loop-0": "b", "agent_loop-1": "c"}
    assert Context(clocks=clocks, hosts=hosts).find_uncertainty(path) == 0.25
    assert Context(hosts=hosts).find_uncertainty(path) == 0.0
    assert Context(clocks=clocks).find_uncertainty(path) == 0.0


def test_what_is_still_open_is_handed_on(digested):
    """A trace of which a span had not ended is put together by whoever knows what is open."""
    assert not digested(open_traces=frozenset).trajectories


def test_scalars_of_a_part_of_the_files(story):
    """Values go into columns with the process that wrote them."""
    story.process("agent_loop").scalar("x", 5, 2.5)
    (part,) = run_files.split(run_files.find_files([story.write()], "metrics"))
    found = slice_summary.summarise_metrics(part)
    (series,) = found.columns.series()
    assert (series.labels, series.values) == ((("instance", "agent_loop-0"),), (2.5,))
    assert found.processes[0][1] == stories.at(5)


def test_a_summary_travels_to_another_process_unchanged(digested):
    """Trajectories and their parts arrive with their types."""
    summary = digested()
    arrived = pickle.loads(pickle.dumps(summary))
    assert (arrived.trajectories, arrived.spans) == (summary.trajectories, summary.spans)
    (trajectory,) = arrived.trajectories
    assert trajectory.path[0].seconds == 1
    assert [activity.kind for activity in trajectory.activities] == ["llm"]
