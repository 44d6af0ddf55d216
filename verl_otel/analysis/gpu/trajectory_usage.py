# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU usage of a trajectory: which replicas served it and when, and what idle replicas could have waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from verl_otel.analysis.gpu import idle_causes

COUNTED: Final = (*idle_causes.STATES, "in server", "in tool", "in reward", "open", "hidden", "validating", "blocked")
"""What is counted over time: the states of the trainer, and trajectories by what they wait for (`idle_causes.find_awaited`)."""
INDEX: Final = {name: index for index, name in enumerate(COUNTED)}
Served = list[tuple[str, int, int]]
"""Process of a replica, start, end."""
Changes = list[tuple[int, int, int]]
"""Time, index of `COUNTED`, delta."""
Use = tuple[Served, Changes]
_WAITS: Final = (("tool", INDEX["in tool"]), ("reward", INDEX["in reward"]), ("llm", INDEX["hidden"]))
"""What a trajectory can wait for, and how that is counted; LLM calls count only where none of them has a server side."""


def find_use(start_ns: int, end_ns: int, activities: Iterable[Sequence[Any]], *, validate: bool, whole: bool) -> Use:
    """Return the usage of a trajectory: its requests occupy replicas, its other activities explain idle ones.

    Args:
        start_ns: When it began.
        end_ns: When it ended.
        activities: Values of `model.Activity`.
        validate: True: it belongs to a validation.
        whole: True: more than its root was kept.
    """
    served: Served = []
    changes: Changes = []
    others: dict[str, list[tuple[int, int]]] = {}
    for kind, _, instance, start, end, _, _ in activities:
        if kind != "server":
            others.setdefault(kind, []).append((start, end))
            continue
        served.append((instance, start, end))
    if end_ns > start_ns:
        what = INDEX["validating" if validate else "open" if whole else "hidden"]
        changes += (start_ns, what, 1), (end_ns, what, -1)
    if whole and not validate:
        for kind, what in _WAITS:
            if kind in others and not (kind == "llm" and served):
                for begin, stop in unite(others[kind]) if len(others[kind]) > 1 else others[kind]:
                    start, end = max(begin, start_ns), min(stop, end_ns)
                    if end > start:
                        changes += (start, what, 1), (end, what, -1)
    return served, changes


def unite(times: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the union of intervals: start, end, in order and disjoint."""
    upcoming = iter(sorted(times))
    begin, end = next(upcoming, (0, 0))
    for start, stop in upcoming:
        if start > end:
            if end > begin:
                yield begin, end
            begin, end = start, stop
        elif stop > end:
            end = stop
    if end > begin:
        yield begin, end
