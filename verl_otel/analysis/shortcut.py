# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From spans to a trajectory in one go, for traces that are as they should be: those are nearly all of a run, and this is its hottest loop.

What `traces`, `timeline`, `gaps` and `critical_path` do one after the other for any trace, with an object for each span, happens here at once
and without. The result is the same; whatever is unusual (a span twice, a missing parent, parts of a step) is left to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from verl_otel.analysis.gaps import Tally
from verl_otel.analysis.packing import Packed, Plain, pack
from verl_otel.analysis.roles import Role, Roles
from verl_otel.analysis.segments import CLOSED, MAYBE_LLM, split_engine
from verl_otel.analysis.timeline import TRAJECTORY, build_root
from verl_otel.analysis.traces import Ahead, Written
from verl_otel.model import SpanRecord
from verl_otel.semconv.spans import CLIENT

_UNSURE: Final = ("", MAYBE_LLM)
_Row = list[Any]
"""A span: start, id, end, process, role, children, the record. Rows sort like the children of a node."""
_START, _ID, _END, _PROCESS, _ROLE, _CHILDREN, _SPAN = range(7)
_Own = tuple[str, str, int | None, int]
"""What the own time of a span is: kind, name, turn, span id."""
_NAME, _KIND, _PARENT = (SpanRecord._fields.index(name) for name in ("name", "kind", "parent_id"))


class Shortcut:
    """Makes trajectories of the traces of one slice.

    Args:
        instances: Name of each process.
        ahead: By how many nanoseconds the clock of a process is ahead of the trainer's at a time; None: of none.
        tally: Counts what is missing.
    """

    def __init__(self, instances: Sequence[str], ahead: Ahead | None, tally: Tally) -> None:
        self._instances = instances
        self._ahead = ahead
        self._tally = tally
        self._roles = Roles()

    def take(self, written: Sequence[Written]) -> Packed | None:
        """Return the trajectory that the spans of a trace are; None where that takes a closer look."""
        root = self._plant(written)
        if root is None:
            return None
        path: list[Plain] = []
        begin, end = root[_START], root[_END]
        if end > begin:
            try:
                self._cover(path, root, ("trajectory", "", None, root[_ID]), begin, end)
            except RecursionError:
                return None
            path.reverse()
        activities = self._follow(root)
        head = build_root(root[_SPAN], self._instances[root[_PROCESS]])
        if head.start_ns != begin:
            head = head._replace(start_ns=begin, end_ns=end)
        return pack(head, activities, path)

    def _plant(self, written: Sequence[Written]) -> _Row | None:
        """Return the root of the tree that spans make; None if it is not one, or holds what has no place in a trajectory."""
        ahead, roles = self._ahead, self._roles
        nodes: dict[int, _Row] = {}
        for span, process in written:
            _, span_id, _, name, _, start, end, attributes, *_ = span
            known = roles.get(id(attributes))
            role = (known and known.get(name)) or roles.learn(name, attributes)
            if end < start or role.is_odd:
                return None
            if ahead is not None and (shift := ahead(process, start)):
                start, end = start - shift, end - shift
            nodes[span_id] = [start, span_id, end, process, role, None, span]
        return _link(nodes) if len(nodes) == len(written) else None

    def _follow(self, root: _Row) -> list[Plain]:
        """Return what was done, in the order of the tree, and count what is missing."""
        instances = self._instances
        found: list[Plain] = []
        waiting: list[tuple[_Row, int | None]] = [(root, None)]
        while waiting:
            (start, _, end, process, role, children, span), turn = waiting.pop()
            activity = role[0]
            if activity == "turn":
                turn = role.turn
            elif activity:
                found.append((activity, role[1], instances[process], start, end, turn, role[3]))
            if role.provider is not None and span[_KIND] == CLIENT:
                self._count_call(role.provider, span.flags, children)
            if children is not None:
                for child in reversed(children):
                    waiting.append((child, turn))  # noqa: PERF401 - a third faster than making a list first
        return found

    def _count_call(self, provider: str, flags: int, children: Iterable[_Row] | None) -> None:
        has_server = any(child[_ROLE].is_server for child in children or ())
        self._tally.add_llm_call(provider, flags, has_server=has_server)

    def _cover(self, found: list[Plain], row: _Row, own: _Own, begin: int, reached: int) -> None:
        """Append the critical path through a span from ``reached`` back to ``begin``: as `critical_path` walks it."""
        kind, name, turn, span_id = own
        instance = self._instances[row[_PROCESS]]
        waited = _find_waited(row, begin, reached)
        while waited:
            end, start, child = waited.pop()
            if end > reached:
                continue  # it went on beside the one that was waited for
            if end < reached:
                if found and found[-1][-1] == span_id:
                    _extend(found, own, instance, end, reached)
                else:
                    found.append((end, reached, kind, name, "", instance, turn, span_id))
            reached, role = -start, child[_ROLE]
            place = _place(role, child[_ID], own)
            if role.is_engine and place[0] == "server":
                self._split(found, child, place, reached, end)
            elif child[_CHILDREN] is not None:
                self._cover(found, child, place, reached, end)
            else:
                _extend(found, place, self._instances[child[_PROCESS]], reached, end)
        if begin < reached:
            _extend(found, own, instance, begin, reached)

    def _split(self, found: list[Plain], row: _Row, own: _Own, begin: int, end: int) -> None:
        """Append the states of an engine's request."""
        _, name, turn, span_id = own
        span = row[_SPAN]._replace(start_ns=row[_START], end_ns=row[_END])
        for state, start, stop in reversed(list(split_engine(span, begin, end))):
            found.append((start, stop, state, name, "", self._instances[row[_PROCESS]], turn, span_id))


def _link(nodes: Mapping[int, _Row]) -> _Row | None:
    """Put the children of each span below it, in the order of their starts; return the root, None if there is not one."""
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
            continue  # on one clock it went on after its parent had ended: nobody waited for it
        start = begin if begin > start else start  # noqa: FURB136 - twice as fast as max(), in the hottest loop
        end = reached if reached < end else end  # noqa: FURB136 - as above
        if end > start:
            waited.append((end, -start, child))
    if len(waited) > 1:
        waited.sort()
    return waited


def _place(role: Role, span_id: int, above: _Own) -> _Own:
    """Return what the own time of a span is, as `segments.find_place`."""
    kind = role.kind
    if kind == "turn":
        return above[0], above[1], above[2] if role.turn is None else role.turn, span_id
    if kind == "above" or (kind in _UNSURE and above[0] in CLOSED):
        return above
    return "llm" if kind == MAYBE_LLM else kind or above[0], role.name, above[2], span_id


def _extend(found: list[Plain], own: _Own, instance: str, begin: int, end: int) -> None:
    """Append a span's own time, or add it to what was appended last; ``found`` goes backwards in time."""
    kind, name, turn, span_id = own
    if found:
        last = found[-1]
        if last[7] == span_id and last[2] == kind and last[5] == instance:
            found[-1] = (begin, *last[1:])
            return
    found.append((begin, end, kind, name, "", instance, turn, span_id))
