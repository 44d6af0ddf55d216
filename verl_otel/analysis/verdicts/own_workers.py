# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds workers of an own loop that delayed the others.

In an own loop the methods that are decorated with `verl_otel.update` lie in a phase, in any other span of the loop, or in a call of verl's
worker group. Methods of one name in one such span are compared if different workers ran them at the same time. Without a collective
the slow worker ends late, with one it also delays the ends of the others.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from verl_otel.analysis.model import Straggler
from verl_otel.analysis.traces.span_names import CALL_PREFIX, WORKER_PREFIX
from verl_otel.analysis.traces.timeline import SUBMITTED
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts import stragglers
from verl_otel.analysis.verdicts.stragglers import (
    LEAD_SECONDS,
    LEAD_SHARE,
    PAIR_FACTOR,
    RankValues,
    method_of,
    sum_delays,
)
from verl_otel.semconv import attributes as attr

BEGAN: Final = "began"
TOOK: Final = "took"
EVIDENCE: Final = (BEGAN, TOOK)
"""The method began later than on the other workers, or took longer and ended later."""
_PAIR: Final = 2


def is_own(root: Node) -> bool:
    """Return whether a step is one of an own loop."""
    return root.span.attributes.get(attr.STEP_LINEAGE) == SUBMITTED


def find(root: Node, *, uncertainty: float = 0.0) -> tuple[Straggler, ...]:
    """Return the workers that delayed the others in one step of an own loop, the largest delay first.

    Args:
        root: The step, including the spans of its workers.
        uncertainty: Seconds by which the clocks of its hosts may differ; smaller delays are ignored.
    """
    if not is_own(root):
        return ()
    return sum_delays(
        straggler
        for is_call, group in _groups(root)
        for straggler in _compare(group, uncertainty)
        if not (is_call and straggler.evidence == BEGAN)  # found by `stragglers`
    )


def find_blind_spots(root: Node) -> tuple[str, ...]:
    """Return the kinds of `stragglers.EVIDENCE` that the spans of a step do not contain; those of own workers show no tokens and CPU time."""
    if is_own(root) and any(not is_call for is_call, _ in _groups(root)):
        return ("tokens", "cpu")
    return stragglers.find_blind_spots(root)


def _groups(root: Node) -> Iterator[tuple[bool, list[Node]]]:
    """Yield the groups of methods of one name, one of each worker; the second call of each is another group.

    Workers are processes, and objects of different rank in one process.

    With each group comes whether it is in a call of verl's worker group.
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.span.name.startswith(WORKER_PREFIX):
            continue
        is_call = node.span.name.startswith(CALL_PREFIX)
        waiting.extend(node.children)
        calls: dict[str, dict[object, list[Node]]] = defaultdict(lambda: defaultdict(list))
        for child in node.children:
            if child.span.name.startswith(WORKER_PREFIX):
                worker = child.instance, child.span.attributes.get(attr.RANK)
                calls[child.span.name][worker].append(child)
        for by_worker in calls.values():
            for number in range(max(map(len, by_worker.values()))):
                group = [nodes[number] for nodes in by_worker.values() if number < len(nodes)]
                if len(group) > 1 and _overlap(group):
                    yield is_call, group


def _overlap(group: Sequence[Node]) -> bool:
    """Return whether any two methods ran at the same time. A loop that calls one worker after the other has no late ones."""
    ordered = sorted(group, key=lambda node: node.span.start_ns)
    return any(later.span.start_ns < earlier.span.end_ns for earlier, later in itertools.pairwise(ordered))


def _compare(group: Sequence[Node], uncertainty: float) -> Iterator[Straggler]:
    first = min(node.span.start_ns for node in group)
    starts = [(node.span.start_ns - first) / 1e9 for node in group]
    ends = [(node.span.end_ns - first) / 1e9 for node in group]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    lead = max(LEAD_SECONDS, LEAD_SHARE * max(ends)) * (PAIR_FACTOR if len(group) == _PAIR else 1.0)
    of_starts, of_ends, of_lengths = RankValues(starts), RankValues(ends), RankValues(lengths)
    for node, start, end, length in zip(group, starts, ends, lengths, strict=True):
        if end < of_ends.median_without(end) - LEAD_SECONDS:
            continue  # it ended before the others, so they did not wait for it
        began = of_starts.excess(start, lead + uncertainty)
        took = min(of_lengths.excess(length, lead), of_ends.excess(end, lead + uncertainty))
        for evidence, seconds in ((BEGAN, began), (TOOK, took)):
            if seconds:
                yield Straggler(method_of(node.span), _number(node), node.instance, seconds, evidence)


def _number(node: Node) -> int:
    """Return the rank of a worker; where it recorded none, the number of its process."""
    rank = node.span.attributes.get(attr.RANK)
    if isinstance(rank, int):
        return rank
    digits = node.instance.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0
