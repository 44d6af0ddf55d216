# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What goes from one process to another comes out as it was put in."""

import pickle

from tests.builders import stories
from verl_otel.analysis import slice_summary
from verl_otel.analysis.io import packing, slices
from verl_otel.analysis.model import Trajectory
from verl_otel.analysis.slice_summary import Context


def test_a_digest_travels_unchanged(tmp_path):
    """Trajectories with path, parts and activities, and spans with links, are equal after the journey, with their types."""
    story = stories.training(tmp_path / "r1")
    stories.trajectory(story.processes[1], 30, 40, whole=False, gen_ai__response__finish_reasons=("a", "b"))
    (piece,) = slices.cut(sorted(story.write().glob("traces-*")))
    found = slice_summary.summarise_spans(piece, Context())
    assert found.trajectories
    assert any(span.links for span, _ in found.spans)
    again = pickle.loads(pickle.dumps(found))
    plain = {"tally": None, "columns": None, "trajectories": ()}
    assert again._replace(**plain) == found._replace(**plain)
    assert vars(again.tally) == vars(found.tally)
    for before, after in zip(found.trajectories, again.trajectories, strict=True):
        assert type(after) is type(before)
        assert packing.unpack(after) == packing.unpack(before)
        assert (list(map(tuple, after.use)), after.calls) == (list(map(tuple, before.use)), before.calls)
        for name in ("parts", "path", "activities"):
            assert list(map(type, getattr(after, name))) == list(map(type, getattr(before, name)))
    for (before, _), (after, _) in zip(found.spans, again.spans, strict=True):
        assert (type(after), list(map(type, after.links))) == (type(before), list(map(type, before.links)))


def test_numbers_of_any_size_travel(tmp_path):
    """A damaged id of more than 64 bits is as good as any other; what was sent on twice is the same, too."""
    story = stories.Story(tmp_path / "r1")
    agent = story.process("agent_loop")
    root = stories.trajectory(agent, 1, 4)
    agent.span("execute_tool t", 2, 3, root, gen_ai__tool__name="t")
    agent.spans[-1] = agent.spans[-1]._replace(span_id=1 << 70)
    (piece,) = slices.cut(sorted(story.write().glob("traces-*")))
    found = slice_summary.summarise_spans(piece, Context()).trajectories
    once = packing.unpack_trajectories(packing.pack_trajectories(found))
    twice = packing.unpack_trajectories(packing.pack_trajectories(once))
    assert 1 << 70 in {segment.span_id for segment in found[0].path}
    assert [packing.unpack(each) for each in twice] == [packing.unpack(each) for each in found]


def test_what_is_packed_says_what_its_detail_says(tmp_path):
    """Unpacked it is a plain trajectory; which replicas worked for it and its path can be asked for before."""
    (piece,) = slices.cut(sorted(stories.training(tmp_path / "r1").write().glob("traces-*")))
    packed = slice_summary.summarise_spans(piece, Context()).trajectories[0]
    found = packing.unpack(packed)
    assert type(found) is Trajectory
    assert [(*each[:6], found.trace_id, *each[6:]) for each in packing.plain_path(packed)] == list(found.path)
    assert list(packing.find_served(packed)) == [
        (each.instance, each.start_ns, each.end_ns) for each in found.activities if each.kind == "server"
    ]


def test_nothing_is_something_too():
    """An empty slice is packed as well."""
    assert packing.unpack_trajectories(packing.pack_trajectories([])) == []
