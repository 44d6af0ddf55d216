# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The fast path from the spans of a trajectory's trace to its packed form, in one pass.

`tree`, `timeline`, `completeness` and `critical_path` do the same in separate steps for any trace, with an object per span. Nearly
all traces are ordinary trajectories: without these objects a report takes 17 µs of CPU time a span instead of 21 µs (600 steps of 64
trajectories, tests/analysis/measure_reader.py). The result is the same, as tests/analysis/traces/test_shortcut.py checks for random trees;
unusual traces (a repeated span, a missing parent, parts of a step) are left to the general modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.packing import Packed, Plain, pack
from verl_otel.analysis.traces.segments import CLOSED, MAYBE_LLM, split_engine
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.analysis.traces.span_roles import Role, Roles
from verl_otel.analysis.traces.timeline import build_root, with_score
from verl_otel.analysis.traces.tree import Ahead, Written
from verl_otel.model import AttributeValue, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import CLIENT

_UNSURE: Final = ("", MAYBE_LLM)
_Row = list[Any]
"""A span: start, id, end, process, role, children, record. Rows sort like the children of a node."""
_START, _ID, _END, _PROCESS, _ROLE, _CHILDREN, _SPAN = range(7)
_Own = tuple[str, str, int | None, int]
"""The classification of a span's own time: kind, name, turn, span id."""
_NAME, _KIND, _PARENT, _SPAN_ID, _ATTRIBUTES = (
    SpanRecord._fields.index(name) for name in ("name", "kind", "parent_id", "span_id", "attributes")
)


class FastPath:
    """Builds trajectories from the traces of one slice.

    Args:
        instances: Name of each process.
        ahead: By how many nanoseconds the clock of a process is ahead of the trainer's at a time; None: of none.
        tally: Counts missing spans.
    """

    def __init__(self, instances: Sequence[str], ahead: Ahead | None, tally: Tally) -> None:
        self._instances = instances
        self._ahead = ahead
        self._tally = tally
        self._roles = Roles()

    def take(self, written: Sequence[Written]) -> Packed | None:
        """Return the trajectory that the spans of a trace form; None where the general analysis is needed."""
        root = self._build_row(written)
        if root is None:
            return None
        path: list[Plain] = []
        begin, end = root[_START], root[_END]
        if end > begin:
            try:
                self._sweep(path, root, ("trajectory", "", None, root[_ID]), begin, end)
            except RecursionError:
                return None
            path.reverse()
        activities, score = self._follow(root)
        head = with_score(build_root(root[_SPAN], self._instances[root[_PROCESS]]), score)
        if head.start_ns != begin:
            head = head._replace(start_ns=begin, end_ns=end)
        return pack(head, activities, path)

    def _build_row(self, written: Sequence[Written]) -> _Row | None:
        """Return the root of the tree that spans form; None if they form no tree or contain spans that do not belong to a trajectory."""
        ahead, roles = self._ahead, self._roles
        nodes: dict[int, _Row] = {}
        for span, process in written:
            _, span_id, _, name, _, start, end, attributes, *_ = span
            roles_by_name = roles.get(id(attributes))
            role = (roles_by_name and roles_by_name.get(name)) or roles.learn(name, attributes)
            if end < start or role.is_odd:
                return None
            if ahead is not None and (shift := ahead(process, start)):
                start, end = start - shift, end - shift
            nodes[span_id] = [start, span_id, end, process, role, None, span]
        return _link(nodes) if len(nodes) == len(written) else None

    def _follow(self, root: _Row) -> tuple[list[Plain], AttributeValue | None]:
        """Return the activities in the order of the tree and the score of the last reward, and count missing spans."""
        instances = self._instances
        rewarded: tuple[int, int] = (0, 0)
        score: AttributeValue | None = None
        activities: list[Plain] = []
        waiting: list[tuple[_Row, int | None]] = [(root, None)]
        while waiting:
            (start, _, end, process, role, children, span), turn = waiting.pop()
            activity = role[0]
            if activity == "turn":
                turn = role.turn
            elif activity:
                activities.append((activity, role[1], instances[process], start, end, turn, role[3]))
                if activity == "reward" and attr.REWARD_SCORE in span[_ATTRIBUTES]:
                    order = end, span[_SPAN_ID]
                    if order > rewarded:
                        rewarded, score = order, span[_ATTRIBUTES][attr.REWARD_SCORE]
            if role.provider is not None and span[_KIND] == CLIENT:
                self._count_call(role.provider, span.flags, children)
            if children is not None:
                for child in reversed(children):
                    waiting.append((child, turn))  # noqa: PERF401 - a third faster than making a list first
        return activities, score

    def _count_call(self, provider: str, flags: int, children: Iterable[_Row] | None) -> None:
        has_server = any(child[_ROLE].is_server for child in children or ())
        self._tally.add_llm_call(provider, flags, has_server=has_server)

    def _sweep(self, segments: list[Plain], row: _Row, own: _Own, begin: int, reached: int) -> None:
        """Append the critical path through a span from ``reached`` back to ``begin``, as `critical_path` does."""
        kind, name, turn, span_id = own
        instance = self._instances[row[_PROCESS]]
        waited = _find_waited(row, begin, reached)
        while waited:
            end, start, child = waited.pop()
            if end > reached:
                continue  # it ran in parallel to the awaited one
            if end < reached:
                if segments and segments[-1][-1] == span_id:
                    _extend(segments, own, instance, end, reached)
                else:
                    segments.append((end, reached, kind, name, "", instance, turn, span_id))
            reached, role = -start, child[_ROLE]
            place = _place(role, child[_ID], own)
            if role.is_engine and place[0] == "server":
                self._split(segments, child, place, reached, end)
            elif child[_CHILDREN] is not None:
                self._sweep(segments, child, place, reached, end)
            else:
                _extend(segments, place, self._instances[child[_PROCESS]], reached, end)
        if begin < reached:
            _extend(segments, own, instance, begin, reached)

    def _split(self, segments: list[Plain], row: _Row, own: _Own, begin: int, end: int) -> None:
        """Append the states of an engine request."""
        _, name, turn, span_id = own
        span = row[_SPAN]._replace(start_ns=row[_START], end_ns=row[_END])
        for state, start, stop in reversed(list(split_engine(span, begin, end))):
            segments.append((start, stop, state, name, "", self._instances[row[_PROCESS]], turn, span_id))


def _link(nodes: Mapping[int, _Row]) -> _Row | None:
    """Link the children of each span in the order of their starts; return the root, None if there is not exactly one."""
    root: _Row | None = None
    for row in sorted(nodes.values()):
        parent = nodes.get(row[_SPAN][_PARENT])
        if parent is None:
            if root is not None:
                return None
            root = row
        elif parent is row:
            return None
        elif parent[_CHILDREN] is None:
            parent[_CHILDREN] = [row]
        else:
            parent[_CHILDREN].append(row)
    if root is None:
        return None
    span = root[_SPAN]
    return None if span[_PARENT] or span[_NAME] != TRAJECTORY or span[_KIND] == CLIENT else root


def _find_waited(row: _Row, begin: int, reached: int) -> list[tuple[int, int, _Row]]:
    """Return the children that a span may have waited for, clipped, the one that ended last at the end: end, negative start, row."""
    limit, process = row[_END], row[_PROCESS]
    waited = []
    for child in row[_CHILDREN] or ():
        start, end = child[_START], child[_END]
        if end > limit and child[_PROCESS] == process:
            continue  # on the same clock it outlived its parent, so the parent did not wait for it
        start = begin if begin > start else start  # noqa: FURB136 - twice as fast as max(), in the hottest loop
        end = reached if reached < end else end  # noqa: FURB136 - as above
        if end > start:
            waited.append((end, -start, child))
    if len(waited) > 1:
        waited.sort()
    return waited


def _place(role: Role, span_id: int, above: _Own) -> _Own:
    """Return the classification of a span's own time, as `segments.find_place`."""
    kind = role.kind
    if kind == "turn":
        return above[0], above[1], above[2] if role.turn is None else role.turn, span_id
    if kind == "above" or (kind in _UNSURE and above[0] in CLOSED):
        return above
    return "llm" if kind == MAYBE_LLM else kind or above[0], role.name, above[2], span_id


def _extend(segments: list[Plain], own: _Own, instance: str, begin: int, end: int) -> None:
    """Append a span's own time, or extend the last segment; ``segments`` is in reverse order of time."""
    kind, name, turn, span_id = own
    if segments:
        last = segments[-1]
        if last[7] == span_id and last[2] == kind and last[5] == instance:
            segments[-1] = (begin, *last[1:])
            return
    segments.append((begin, end, kind, name, "", instance, turn, span_id))
