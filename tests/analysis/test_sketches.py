# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A step that lies in a slice with all that it trained on is sketched there; the others, later and with the same result."""

import pickle

import pytest

from tests.builders import stories
from verl_otel.analysis import aggregator, slice_summary, summary
from verl_otel.analysis.io import run_files, slices
from verl_otel.analysis.model import Segment
from verl_otel.analysis.slice_summary import ClockUncertainty, Context
from verl_otel.analysis.traces.clocks import Clock


@pytest.fixture
def folder(tmp_path):
    """A small training whose second step waited for a tool."""
    return stories.training(tmp_path / "r1").write()


def digested(folder):
    (piece,) = slices.cut(run_files.find_files([folder], "traces"))
    return slice_summary.summarise_spans(piece, Context())


def test_steps_are_sketched_where_they_lie(folder):
    """With their paths, and with what may have held them."""
    first, second = sorted(digested(folder).step_summaries, key=lambda each: each.step.number)
    assert (first.step.number, second.step.number) == (1, 2)
    assert sum(segment.end_ns - segment.start_ns for segment in second.step.path) == 15 * 10**9
    assert {(work.kind, work.name) for work in second.findings.awaited_work} == {("tool", "calculator")}
    assert second.spans == 6


def test_a_step_that_trained_on_something_else_is_not(tmp_path):
    """A trajectory that is not in the slice, or that was a validation's, may be known to others."""
    story = stories.Story(tmp_path / "r1")
    trainer, agent = story.process("trainer"), story.process("agent_loop")
    missing = stories.trajectory(story.process("agent_loop", 1), 0, 2)
    story.processes.pop()
    validated = stories.trajectory(agent, 0, 2, verl__validate=True)
    for number, consumed in enumerate(([missing], [validated], []), 1):
        stories.step(trainer, number, 0, 3, [("gen", 0, 2)], consumed)
    assert [each.step.number for each in digested(story.write()).step_summaries] == [3]


def test_sketches_travel_unchanged(folder):
    """They are equal after the journey, in all their types."""
    sketches = digested(folder).step_summaries
    again = pickle.loads(pickle.dumps(sketches))
    assert tuple(again) == sketches
    assert [repr(each.findings.awaited_work) for each in again] == [
        repr(each.findings.awaited_work) for each in sketches
    ]
    assert [repr(each.step) for each in again] == [repr(each.step) for each in sketches]


def test_it_makes_no_difference_where_a_step_is_sketched(folder, monkeypatch):
    """Explained without any sketch of a slice a run is the same."""
    with monkeypatch.context() as patched:
        patched.setattr(aggregator, "summarise_step", lambda *_: pytest.fail("drawn a second time"))
        expected = summary.explain([folder], processes=0)
    monkeypatch.setattr(slice_summary, "_summarise_step", lambda *_: None)
    assert summary.explain([folder], processes=0) == expected


def test_doubt_is_that_of_the_clocks_on_the_path():
    """The worst of the hosts that a path leads through; none with one clock."""
    clocks = {"a": Clock((0,), (0,), (0.0,)), "b": Clock((0,), (5,), (25e7,)), "c": Clock((0,), (5,), (7e9,))}
    path = [Segment(0, 1, "phase", "gen", instance="trainer-0"), Segment(1, 2, "tool", "t", instance="agent_loop-0")]
    hosts = {"trainer-0": "a", "agent_loop-0": "b", "agent_loop-1": "c"}
    assert ClockUncertainty(clocks, hosts).find(path) == 0.25
    assert ClockUncertainty({}, hosts).find(path) == 0.0
    assert ClockUncertainty(clocks, {}).find(path) == 0.0
