# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a trajectory says of the GPUs: which replicas worked for it when, and what idle ones could have waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from verl_otel.analysis import idleness

COUNTED: Final = (*idleness.STATES, "in server", "in tool", "in reward", "open", "hidden", "validating")
"""What is counted at any time: the states of the trainer, and trajectories by what they are at (`idleness.find_awaited`)."""
INDEX: Final = {name: index for index, name in enumerate(COUNTED)}
Served = list[tuple[str, int, int]]
"""Process of a replica, from, to."""
Changes = list[tuple[int, int, int]]
"""When what (index of `COUNTED`) changed by how much."""
Use = tuple[Served, Changes]
_WAITS: Final = (("tool", INDEX["in tool"]), ("reward", INDEX["in reward"]), ("llm", INDEX["hidden"]))
"""What a trajectory can be at, and how that is counted; its LLM calls only where none of them has a server's side."""


def find_use(start_ns: int, end_ns: int, activities: Iterable[Sequence[Any]], *, validate: bool, whole: bool) -> Use:
    """Return what a trajectory used and when: its requests occupy replicas, all else of it is what idle ones wait for.

    Args:
        start_ns: When it began.
        end_ns: When it ended.
        activities: Values of `facts.Activity`.
        validate: It belongs to a validation.
        whole: More than its root was kept.
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
    """Yield the times at which at least one of some things goes on: from, to, in order and without touching each other."""
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
