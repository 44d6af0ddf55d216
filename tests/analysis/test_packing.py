# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What goes from one process to another comes out as it was put in."""

import pickle

from verl_otel.analysis import digest, packing, slices
from verl_otel.analysis.digest import Context


def test_a_digest_travels_unchanged(stories, tmp_path):
    """Trajectories with path, parts and activities, and spans with links, are equal after the journey, with their types."""
    story = stories.training(tmp_path / "r1")
    stories.trajectory(story.processes[1], 30, 40, whole=False, gen_ai__response__finish_reasons=("a", "b"))
    (piece,) = slices.cut(sorted(story.write().glob("traces-*")))
    found = digest.digest_spans(piece, Context())
    assert found.trajectories
    assert any(span.links for span, _ in found.spans)
    again = pickle.loads(pickle.dumps(found))
    assert again._replace(tally=None, columns=None) == found._replace(tally=None, columns=None)
    assert vars(again.tally) == vars(found.tally)
    for before, after in zip(found.trajectories, again.trajectories, strict=True):
        assert type(after) is type(before)
        for name in ("parts", "path", "activities"):
            assert list(map(type, getattr(after, name))) == list(map(type, getattr(before, name)))
    for (before, _), (after, _) in zip(found.spans, again.spans, strict=True):
        assert (type(after), list(map(type, after.links))) == (type(before), list(map(type, before.links)))


def test_nothing_is_something_too():
    """An empty slice is packed as well."""
    assert packing.unpack_trajectories(packing.pack_trajectories([])) == []
    assert packing.unpack_spans(packing.pack_spans([])) == []
