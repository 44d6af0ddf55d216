# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What each span adds to the critical path of its trajectory, by what it is: what trajectories are compared by."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.io.packing import Packed, Plain, plain_path


class Span(NamedTuple):
    """The contribution of one span, or the sum of several, to the critical path of its trajectory."""

    instance: str
    turn: int | None
    start_ns: int
    end_ns: int
    length_ns: int
    """Less than from start to end where the span waited for a child."""

    def cut(self, begin: int) -> int:
        """Return the maximum part of its length that lies after a time."""
        return max(0, min(self.length_ns, self.end_ns - begin))


_new: Final = tuple.__new__
Spans = Mapping[tuple[str, str], Sequence[Span]]
"""Spans by kind and name."""


def find_spans(trajectory: Packed, kinds: Container[str] | None = None) -> Spans:
    """Return the contributions of the spans of a trajectory to its path.

    Args:
        trajectory: With its path.
        kinds: Kinds to return; None: all.
    """
    path = plain_path(trajectory)
    return _group(path if kinds is None else [segment for segment in path if segment[2] in kinds])


def _group(path: Iterable[Plain]) -> Spans:
    """Return the spans of a path in the form of `packing.plain_path`."""
    spans: dict[tuple[str, str], list[Span]] = {}
    places: dict[tuple[str, str, int], int] = {}
    for start, end, kind, name, _, instance, turn, span_id in path:
        alike = spans.get((kind, name))
        if alike is None:
            alike = spans[kind, name] = []
        key = kind, name, span_id
        place = places.get(key)
        if place is None:
            places[key] = len(alike)
            alike.append(_new(Span, (instance, turn, start, end, end - start)))
        else:
            alike[place] = _new(
                Span, (instance, turn, alike[place].start_ns, end, alike[place].length_ns + end - start)
            )
    return spans
