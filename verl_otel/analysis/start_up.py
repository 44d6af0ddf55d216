# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Divides the time before the first step of an attempt: calls of the trainer, waits, and what has no record.

The trainer's thread is followed from the start of the attempt to that of its first step. A call to workers has two
parts: until the method began on the first of them, which is their start and their imports, and the method itself, such
as ``init_model``. What lies between two calls is named by its neighbours, because nothing is recorded of the start of
Ray, of engines and of agent loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from verl_otel.analysis.traces.span_names import CALL_PREFIX, CHECKPOINT, VALIDATION, WEIGHT_SYNC, WORKER_PREFIX
from verl_otel.analysis.traces.tree import Node, walk

MAX_PARTS: Final = 50
"""Maximum number of parts of one start-up; later ones are one part ``rest``."""
_NAMED: Final = {CHECKPOINT: "checkpoint", VALIDATION: "validation", WEIGHT_SYNC: "weight_sync"}
"""Kinds of roots that are no calls to workers."""


class StartUpPart(NamedTuple):
    """What filled a part of a start-up."""

    kind: str
    """``begin`` (until the first call), ``workers_start``, ``call``, ``weight_sync``, ``checkpoint``, ``validation``,
    ``between`` (after a call), ``rest``."""
    name: str
    """The method that was called; for ``between`` the one before; otherwise empty."""
    nanoseconds: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.nanoseconds / 1e9


class StartUp(NamedTuple):
    """The time before the first step of an attempt."""

    attempt: int
    start_ns: int
    end_ns: int
    """Start of the first step, which may not have ended, or the last record where there was none."""
    parts: tuple[StartUpPart, ...]
    """In the order of time, without a gap."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9


def divide(attempt: int, start_ns: int, end_ns: int, roots: Sequence[Node]) -> StartUp:
    """Return the parts of the time before a first step.

    Args:
        attempt: Number of the attempt.
        start_ns: When it started.
        end_ns: When its first step started.
        roots: Roots of traces, other than trajectories, that overlap this time.
    """
    parts: list[StartUpPart] = []
    reached, before = start_ns, ""
    intervals = sorted(_find_intervals(roots), key=lambda interval: interval[2:])
    for kind, name, begin, end in [*intervals, ("", "", end_ns, end_ns)]:
        if min(begin, end_ns) > reached:
            parts.append(StartUpPart("between" if before else "begin", before, min(begin, end_ns) - reached))
            reached = min(begin, end_ns)
        if min(end, end_ns) > reached:
            parts.append(StartUpPart(kind, name, min(end, end_ns) - reached))
            reached, before = min(end, end_ns), name or kind
    if len(parts) > MAX_PARTS:
        rest = sum(part.nanoseconds for part in parts[MAX_PARTS - 1 :])
        parts[MAX_PARTS - 1 :] = [StartUpPart("rest", "", rest)]
    return StartUp(attempt, start_ns, end_ns, tuple(parts))


def _find_intervals(roots: Iterable[Node]) -> Iterator[tuple[str, str, int, int]]:
    """Yield what the trainer did: kind, name, start, end. A call is two intervals if its method began later."""
    for root in roots:
        span = root.span
        if span.name in _NAMED:
            yield _NAMED[span.name], "", span.start_ns, span.end_ns
        elif span.name.startswith(CALL_PREFIX):
            name = span.name.removeprefix(CALL_PREFIX)
            starts = [node.span.start_ns for node in walk(root) if node.span.name.startswith(WORKER_PREFIX)]
            began = min(starts, default=span.start_ns)
            yield "workers_start", name, span.start_ns, began
            yield "call", name, began, span.end_ns
