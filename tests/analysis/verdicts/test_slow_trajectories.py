# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What spans add to a path adds up to the path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import forests as f
from verl_otel.analysis.verdicts.slow_trajectories import find_spans

pytestmark = pytest.mark.full


@given(st.lists(f.seeds(leaves=6), max_size=4), st.sets(st.sampled_from(["tool", "weight_sync", "trajectory", "none"])))
def test_lengths_add_up_to_the_path(below, kinds):
    """All spans together are as long as the trajectory, each lies within its own segments, and kinds choose among them."""
    trajectory = f.roll(0, 24, *map(f.plant, below))
    found = find_spans(trajectory)
    assert sum(span.length_ns for same in found.values() for span in same) == 24
    assert set(found) == {(segment.kind, segment.name) for segment in trajectory.path}
    for (kind, name), same in found.items():
        segments = [each for each in trajectory.path if (each.kind, each.name) == (kind, name)]
        assert sum(span.length_ns for span in same) == sum(each.end_ns - each.start_ns for each in segments)
        assert len(same) == len({each.span_id for each in segments})
        assert {span.start_ns for span in same} <= {each.start_ns for each in segments}
        assert {span.end_ns for span in same} <= {each.end_ns for each in segments}
    assert find_spans(trajectory, kinds) == {key: same for key, same in found.items() if key[0] in kinds}
