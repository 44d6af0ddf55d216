# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What each span adds to the critical path of its trajectory, by what it is: what trajectories are compared by."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.packing import Packed, Plain, plain_path


class Span(NamedTuple):
    """What one span adds to the critical path of its trajectory; or several, summed up."""

    instance: str
    turn: int | None
    start_ns: int
    end_ns: int
    length_ns: int
    """Less than from start to end where a child of it was waited for."""

    def cut(self, begin: int) -> int:
        """Return how much of its length lies after a time, at most."""
        return max(0, min(self.length_ns, self.end_ns - begin))


_new: Final = tuple.__new__
Spans = Mapping[tuple[str, str], Sequence[Span]]
"""By kind and name."""


def find_spans(trajectory: Packed, kinds: Container[str] | None = None) -> Spans:
    """Return what the spans of a trajectory add to its path.

    Args:
        trajectory: With its path.
        kinds: Only those of these kinds; None: all.
    """
    path = plain_path(trajectory)
    return _group(path if kinds is None else [each for each in path if each[2] in kinds])


def _group(path: Iterable[Plain]) -> Spans:
    """Return the spans of a path, given as `packing.plain_path`."""
    found: dict[tuple[str, str], list[Span]] = {}
    places: dict[tuple[str, str, int], int] = {}
    for start, end, kind, name, _, instance, turn, span_id in path:
        same = found.get((kind, name))
        if same is None:
            same = found[kind, name] = []
        key = kind, name, span_id
        place = places.get(key)
        if place is None:
            places[key] = len(same)
            same.append(_new(Span, (instance, turn, start, end, end - start)))
        else:
            same[place] = _new(Span, (instance, turn, same[place].start_ns, end, same[place].length_ns + end - start))
    return found
