# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals in which the event loop of a process was blocked, or the process was paused, and the parts of critical paths that waited for it.

They come from spans ``verl.event_loop.blocked`` and ``verl.process.paused`` and, where a process did not live to write one, from stalls that
the watchdog reported.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from verl_otel.analysis.model import Event, Saving, Segment, Step, Trajectory, Verdict
from verl_otel.analysis.traces.span_names import PAUSED, STOOD, TOOL_PREFIX
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.typed import Keyed
from verl_otel.analysis.verdicts.baselines import DETAIL_SHARE, PHASE_SECONDS, STEP_SHARE, TRAJECTORY_SECONDS
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr

KIND, PAUSED_KIND = "blocked", "paused"
"""Kinds of these segments: of a blocked event loop, and of a process that was paused."""
MAX_BLOCKINGS: Final = 10_000
"""Intervals that are kept of one process: the newest."""
PROCESS: Final = "process"
"""Reason of an interval in which the process did not run at all."""
NO_CPU: Final = "no CPU"
NAMES: Final = {
    PROCESS: "the process did not run, stopped or waiting for a CPU",
    "collection": "garbage collection",
    "cpu": NO_CPU,
    "interpreter": "a call into C that held the interpreter lock",
    "executor": "no free thread of the executor",
}
"""Names of what paused a process, by reason."""
LEAST_WITHOUT_CPU_NS: Final = 1_000_000_000
"""Shorter pauses without a CPU are left out: on a busy machine every process has them, and paths would consist of them."""
APART_NS: Final = 500_000_000
"""Pauses without a CPU that are less apart, of any processes, are one interval: each process is looked at four times a second."""
_SYNC: Final = "weight_sync"
"""Kind of a segment in which the trainer waits for replicas, which may block their loops each time."""
_WAITING: Final = frozenset(("start", "trajectory", "llm", "server", "tool", "reward"))
"""Kinds of segments that need the event loop of their process to go on."""
_SUBMISSION: Final = "submit"
"""The phase in which the trainer waits for agent loops, which take its prompts."""
_OF_AGENT: Final = frozenset(("trajectory", "llm", "tool"))
"""Kinds of segments in the process of the trajectory."""
_IDLE: Final = frozenset(("poll", "start"))
"""Kinds of segments that compute nothing."""
_SERVERS: Final = {"llm": "llm_server-", "trajectory": "reward-", _SUBMISSION: "agent_loop-", _SYNC: "llm_server-"}
"""Kinds of segments, and a phase, that may wait for another process, and the start of its instance."""
_OF_ROLLOUTS: Final = tuple(sorted(set(_SERVERS.values())))
"""Starts of the instances that make rollouts. In asynchronous modes they go on beside a step, and only the kinds above and
trajectories wait for them."""
_LINE: Final = re.compile(r'File "(?P<path>[^"]*)", line (?P<line>\d+) in (?P<name>\S+)')
_AT: Final = re.compile(r"its event loop is blocked at (File \"[^\"]*\", line \d+ in [^\s;]+)")
_NEVER: Final = 1 << 63
"""End of a stall that did not end before the run."""
_start: Final = attrgetter("start_ns")


class Blocking(NamedTuple):
    """An interval in which the event loop of a process ran no callback."""

    instance: str
    start_ns: int
    end_ns: int
    name: str
    """``tool <name>``, the name of a span, or a function with its place."""
    reason: str = "callback"
    """``callback``, ``callbacks``, ``worker``, or a key of `NAMES`."""
    trace_id: int = 0
    """Trace of the work that blocked it; 0: unknown."""
    kind: str = KIND
    """`KIND` or `PAUSED_KIND`."""
    line: str = ""
    """``FILE:LINE in FUNCTION`` of the code that ran; empty: unknown."""
    work: tuple[str, str] = ("", "")
    """Kind and name of the segment that waited for it; empty: it is not on a path."""
    share: float = 1.0
    """Share of it for which the process waited for a CPU, if that is the reason: it ran in between."""


class _Intervals(msgspec.Struct):
    """The newest intervals of one process, in the order of their start. The intervals of one step are found without a search through all."""

    _sorted: list[Blocking] = []
    _latest_ns: list[int] = []
    """The latest end of each interval and those before it."""

    def add(self, blocking: Blocking) -> None:
        """Add an interval."""
        place = bisect_right(self._sorted, blocking.start_ns, key=_start)
        self._sorted.insert(place, blocking)
        before = self._latest_ns[place - 1] if place else 0
        ends = (later.end_ns for later in self._sorted[place:])
        self._latest_ns[place:] = list(accumulate(ends, max, initial=before))[1:]
        if len(self._sorted) > MAX_BLOCKINGS:
            del self._sorted[0], self._latest_ns[0]

    def __bool__(self) -> bool:
        return bool(self._sorted)

    def begins_before(self, other: _Intervals) -> bool:
        """Return whether the last interval begins before the last end of others. Neither is empty."""
        return self._sorted[-1].start_ns < other._latest_ns[-1]

    def find(self, begin_ns: int, end_ns: int) -> Iterator[Blocking]:
        """Yield the intervals that may overlap two times."""
        for place in range(bisect_right(self._latest_ns, begin_ns), len(self._sorted)):
            if self._sorted[place].start_ns >= end_ns:
                return
            yield self._sorted[place]


_ByInstance = dict[str, _Intervals]


class BlockedLoops(msgspec.Struct):
    """The intervals of a run in which event loops were blocked or processes were paused, by process."""

    _spans: _ByInstance = {}
    _stalls: _ByInstance = {}
    _pauses: _ByInstance = {}
    _starved: _Intervals = msgspec.field(default_factory=_Intervals)
    """Pauses without a CPU of all processes, also the short ones."""
    _stood: _ByInstance = {}
    """Times for which a step or a trajectory stood at one line. Nothing was paused or blocked: they only name the line."""
    _servers: dict[str, dict[str, None]] = msgspec.field(
        default_factory=lambda: {prefix: {} for prefix in _SERVERS.values()}
    )
    """Processes of which intervals are known, by the start of their names."""

    def __bool__(self) -> bool:
        return bool(self._spans or self._stalls or self._pauses or self._starved)

    def add_span(self, node: Node) -> None:
        """Add the interval that a span records."""
        span = node.span
        culprit = next((link.trace_id for link in span.links), 0)
        reason = str(span.attributes.get(attr.REASON, "callback"))
        name = _name(span.attributes, reason)
        kind, known = (PAUSED_KIND, self._pauses) if span.name == PAUSED else (KIND, self._spans)
        known = self._stood if span.name == STOOD else known
        instance = str(span.attributes.get(attr.STALL_INSTANCE, node.instance))  # a process without telemetry
        for prefix, names in self._servers.items():
            if instance.startswith(prefix):
                names[instance] = None
        line = _read_line(span.attributes)
        blocking = Blocking(instance, span.start_ns, span.end_ns, name, reason, culprit, kind, line)
        if reason == "cpu":
            starved = blocking._replace(kind=PAUSED_KIND, share=_read_share(span))
            self._starved.add(starved)
            blocking = _queue(starved)._replace(kind=kind)
            if blocking.end_ns - blocking.start_ns < LEAST_WITHOUT_CPU_NS:
                return
        _add(known, blocking)

    def set_events(self, events: Iterable[Event]) -> None:
        """Replace the intervals of stalls whose reports contain that an event loop is blocked: a stall may have ended since the last call."""
        self._stalls = {}
        for event in events:
            blocking = _read_stall(event)
            if blocking is not None:
                _add(self._stalls, blocking)

    def find(self, instance: str, begin_ns: int, end_ns: int) -> Iterator[Blocking]:
        """Yield the intervals of a process within two times, disjoint and in the order of time."""
        return _cut(self._get_blocked(instance), begin_ns, end_ns)

    def _get_blocked(self, instance: str) -> list[_Intervals]:
        """Return what is known of a process. The end that it has recorded counts, not that of a report."""
        spans, stalls = self._spans.get(instance), self._stalls.get(instance)
        if spans and stalls and stalls.begins_before(spans):
            stalls = None
        return [known for known in (spans, stalls, self._pauses.get(instance)) if known]

    def find_pauses(self, begin_ns: int, end_ns: int) -> dict[str, list[Blocking]]:
        """Return the intervals within two times in which processes were paused, also the short ones without a CPU, or their loops blocked."""
        found: dict[str, list[Blocking]] = defaultdict(list)
        for instance, known in self._pauses.items():
            found[instance] += (pause for pause in _cut([known], begin_ns, end_ns) if pause.reason != "cpu")
        for instance in {**self._spans, **self._stalls}:
            found[instance] += (blocking for blocking in self.find(instance, begin_ns, end_ns) if blocking.kind == KIND)
        for starved in self._starved.find(begin_ns, end_ns):
            found[starved.instance].append(starved)
        return {instance: pauses for instance, pauses in found.items() if pauses}

    def find_stood(self, begin_ns: int, end_ns: int) -> list[Blocking]:
        """Return the times for which steps and trajectories of all processes stood at one line within two times."""
        return [stay for known in self._stood.values() for stay in known.find(begin_ns, end_ns)]

    def find_starved(self, path: Iterable[Segment]) -> list[Blocking]:
        """Return the intervals on a critical path in which a process that it may wait for had no CPU, disjoint and sorted."""
        found: list[Blocking] = []
        for segment in path if self._starved else ():
            times = [(segment.start_ns, segment.end_ns)]
            is_own = segment.kind not in _IDLE and segment.kind not in _SERVERS and segment.name != _SUBMISSION
            for starved in self._starved.find(*times[0]):
                if segment.trace_id or not is_own or not starved.instance.startswith(_OF_ROLLOUTS):
                    found += cut_to(starved, times)
        return list(_make_disjoint(sorted(found, key=_start)))

    def count_starved(self, path: Iterable[Segment]) -> float:
        """Return the seconds of a critical path for which the process that it was in waited for a CPU."""
        return count_seconds(
            part
            for segment in path
            for starved in self._starved.find(segment.start_ns, segment.end_ns)
            if starved.instance == segment.instance
            for part in cut_to(starved, [(segment.start_ns, segment.end_ns)])
        )

    def _join_starved(self, begin_ns: int, end_ns: int) -> _Intervals:
        """Return the intervals between two times in which processes had no CPU, each with the process that waited longest.

        Not those that make rollouts: they may go on beside the step.
        """
        known = [
            _queue(starved)
            for starved in self._starved.find(begin_ns, end_ns)
            if not starved.instance.startswith(_OF_ROLLOUTS)
        ]
        found = _Intervals()
        while known:
            together = [known.pop(0)]
            reached = together[0].end_ns
            while known and known[0].start_ns < reached + APART_NS:
                together.append(known.pop(0))
                reached = max(reached, together[-1].end_ns)
            waited_ns = sum(part.end_ns - part.start_ns for part in _make_disjoint(together))
            if waited_ns >= LEAST_WITHOUT_CPU_NS:
                longest = max(together, key=lambda each: each.end_ns - each.start_ns)
                start_ns = together[0].start_ns
                found.add(longest._replace(start_ns=start_ns, end_ns=start_ns + waited_ns))
        return found

    def _find_awaited(self, segment: Segment, starved: _Intervals, starter: str) -> Iterator[Blocking]:
        """Yield the intervals that a segment waited for: of its process, and of those that it may wait for.

        Outside of trajectories, which wait for much else, every process of a call may be the one without a CPU. ``starter`` is the process of the
        trajectory that follows: one that had not started waited for it.
        """
        kind = _SUBMISSION if segment.kind == "phase" and segment.name == _SUBMISSION else segment.kind
        names = list(self._servers.get(_SERVERS.get(kind, ""), ()))
        names += [starter] if kind == "start" and starter else []
        own = segment.instance
        known = [intervals for name in names for intervals in self._get_blocked(name)]
        if kind in _WAITING:
            known += self._get_blocked(own)
        elif own in self._pauses:
            known.append(self._pauses[own])
        known += [] if segment.trace_id or segment.kind in _IDLE else [starved]
        return _cut(known, segment.start_ns, segment.end_ns)

    def find_all(self, instances: Iterable[str], begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Return start and end of all intervals of some processes within two times."""
        return [
            (blocking.start_ns, blocking.end_ns)
            for instance in instances
            for blocking in self.find(instance, begin_ns, end_ns)
        ]

    def mark(self, path: Sequence[Segment], *, shared: bool = True) -> tuple[tuple[Segment, ...], tuple[Blocking, ...]]:
        """Return a critical path in which the parts that waited for a blocked event loop are segments of their own.

        Args:
            path: The path.
            shared: Whether the short times in which other processes of a call had no CPU count, too: they are more than the path waited for.

        Returns:
            The path, without a gap as before, and the intervals that it contains now.
        """
        marked: list[Segment] = []
        waits: list[Blocking] = []
        starved = self._join_starved(path[0].start_ns, path[-1].end_ns) if path and shared else _Intervals()
        for segment, starter in zip(path, _find_starters(path), strict=True):
            reached = segment.start_ns
            for blocking in self._find_awaited(segment, starved, starter):
                if blocking.start_ns > reached:
                    marked.append(segment._replace(start_ns=reached, end_ns=blocking.start_ns))
                start_ns, end_ns, kind, name = blocking.start_ns, blocking.end_ns, blocking.kind, blocking.name
                marked.append(segment._replace(start_ns=start_ns, end_ns=end_ns, kind=kind, name=name))
                waits.append(blocking._replace(work=(segment.kind, segment.name)))
                reached = blocking.end_ns
            if reached < segment.end_ns:
                marked.append(segment._replace(start_ns=reached))
        return tuple(marked), tuple(waits)


def _find_starters(path: Sequence[Segment]) -> list[str]:
    """Return for each segment the process of the first trajectory after it; empty: there is none."""
    starters, starter = [], ""
    for segment in reversed(path):
        starters.append(starter)
        starter = segment.instance if segment.trace_id and segment.kind in _OF_AGENT else starter
    return starters[::-1]


def _cut(known: Iterable[_Intervals], begin_ns: int, end_ns: int) -> Iterator[Blocking]:
    """Yield the parts of intervals within two times, disjoint and in the order of time.

    While a process did not run, no callback blocked its loop.
    """
    found = list(heapq.merge(*(intervals.find(begin_ns, end_ns) for intervals in known), key=_start))
    stopped = [blocking for blocking in found if blocking.reason == PROCESS]
    if stopped:
        running = (part for blocking in found if blocking.reason != PROCESS for part in _cut_out(blocking, stopped))
        found = sorted([*stopped, *running], key=_start)
    yield from _make_disjoint(found, begin_ns, end_ns)


def _make_disjoint(found: Iterable[Blocking], begin_ns: int = 0, end_ns: int = _NEVER) -> Iterator[Blocking]:
    """Yield the parts of sorted intervals that lie within two times and in no interval before them."""
    reached = begin_ns
    for blocking in found:
        start, end = max(blocking.start_ns, reached), min(blocking.end_ns, end_ns)
        if end > start:
            yield blocking._replace(start_ns=start, end_ns=end)
            reached = end


def _cut_out(blocking: Blocking, others: Iterable[Blocking]) -> Iterator[Blocking]:
    """Yield the parts of an interval outside of others of its process, which are in the order of time."""
    reached = blocking.start_ns
    for other in others:
        if other.instance == blocking.instance:
            if other.start_ns > reached:
                yield blocking._replace(start_ns=reached, end_ns=min(other.start_ns, blocking.end_ns))
            reached = max(reached, other.end_ns)
        if reached >= blocking.end_ns:
            return
    yield blocking._replace(start_ns=reached)


def _add(by_instance: _ByInstance, blocking: Blocking) -> None:
    by_instance.setdefault(blocking.instance, _Intervals()).add(blocking)


def _read_stall(event: Event) -> Blocking | None:
    """Return the interval of a stall; None if its report does not contain that an event loop is blocked."""
    match = _AT.search(event.text)
    culprit = event.detail.get("culprit")
    if event.kind != "stall" or match is None or not isinstance(culprit, dict):
        return None
    age, resolved = culprit.get("age"), event.detail.get("resolved")
    if not isinstance(age, (int, float)):
        return None
    end = event.time_ns + round(resolved * 1e9) if isinstance(resolved, (int, float)) else _NEVER
    values = {attr.BLOCKED_SPAN: str(culprit.get("span", "")), attr.BLOCKED_LINE: match[1]}
    start = event.time_ns - round(age * 1e9)
    instance = str(culprit.get("instance", ""))
    name, line = _name(values, ""), _read_line(values)
    return Blocking(instance, start, max(start, end), name, "callback", _read_id(culprit), line=line)


def _read_share(span: SpanRecord) -> float:
    """Return the share of a pause for which its process waited for a CPU."""
    queued, length_ns = span.attributes.get(attr.QUEUED_SECONDS), span.end_ns - span.start_ns
    return min(1.0, queued * 1e9 / length_ns) if isinstance(queued, (int, float)) and length_ns > 0 else 1.0


def _queue(blocking: Blocking) -> Blocking:
    """Return an interval as if the process had waited for a CPU first, and then run."""
    length_ns = round((blocking.end_ns - blocking.start_ns) * blocking.share)
    return blocking._replace(end_ns=blocking.start_ns + length_ns, share=1.0)


def _name(values: Any, reason: str) -> str:
    """Return the name of what blocked a loop, from the attributes of its span."""
    if reason in NAMES:
        return NAMES[reason]
    tool, span = str(values.get(attr.GEN_AI_TOOL, "")), str(values.get(attr.BLOCKED_SPAN, ""))
    if not tool and span.startswith(TOOL_PREFIX):
        tool = span.removeprefix(TOOL_PREFIX)
    if tool:
        return f"tool {tool}"
    line = _LINE.search(str(values.get(attr.BLOCKED_LINE, "")))
    place = f"{line['name']} ({line['path'].rpartition('/')[2]}:{line['line']})" if line is not None else ""
    return place or span or "unknown code"


def is_pause(verdict: Verdict) -> bool:
    """Return whether an event loop stood still for what pauses a process, and not for code that blocked it."""
    return verdict.kind == "loop" and verdict.cause_name in NAMES.values()


def _read_line(values: Any) -> str:
    """Return ``FILE:LINE in FUNCTION`` of the code that ran, from the attributes of a span; empty: unknown."""
    line = _LINE.search(str(values.get(attr.BLOCKED_LINE, "")))
    return f"{line['path']}:{line['line']} in {line['name']}" if line is not None else ""


def _read_id(culprit: dict[str, Any]) -> int:
    try:
        return int(str(culprit.get("trace_id", "0")), 16)
    except ValueError:
        return 0


# -- Verdicts on event loops that were blocked, and on processes that were paused, while a step waited for them --

_LOOP, _PAUSED = "loop", "process"
"""Kinds of these verdicts: a blocked event loop, and a process that was paused."""
_RANK: Final = "rank"
_COMPARED: Final = frozenset(("phase", _RANK))
"""Kinds of verdicts that only more than the usual lack of CPU explains: threads that wait have some, too."""
_EXPLAINED: Final = frozenset(("trajectory", "replica", "tool", "reward", "code"))
"""Kinds of verdicts that see a blocked loop as a slow call."""
_OF_TRAINER: Final = frozenset(("phase", "step", "call", "poll", _SYNC))
"""Causes that may be the wait for a process that has no spans of its own, or for a replica."""
_VALIDATION: Final = "validation"
"""Cause that consists of rollouts, which wait for agents, replicas and rewards, whatever pauses their processes."""
_USUAL: Final = frozenset(("cpu", "executor", "collection", "interpreter"))
"""Reasons that every step may have: verl 0.8, for example, collects garbage in each step."""


class Blocked(NamedTuple):
    """What blocked a step."""

    verdicts: tuple[Verdict, ...] = ()
    """One for each process and what blocked it."""
    covered: Keyed[tuple[str, str], float] = Keyed()
    """Seconds of its critical path that these took from each kind and name of work."""
    starved: Verdict | None = None
    """That processes had no CPU for many short times; it counts where nothing else is found."""
    starved_share: float = 0.0
    """Share of the steps before for which a process that they waited for had no CPU."""


def judge(
    step: Step, waits: Iterable[Blocking], members: Sequence[Trajectory], usual: float, usually_starved: float = 0.0
) -> Blocked:
    """Return the blocked loops and paused processes that a step waited for noticeably.

    A callback that blocked its loop, and a process that was stopped, need no comparison with other steps: neither should happen at all.
    Every other reason may be usual, and counts only where it made the step longer than the steps before.

    Args:
        step: The step.
        waits: The intervals on its critical path.
        members: The trajectories that it trained on.
        usual: Median of the seconds of the steps before; 0: unknown.
        usually_starved: Median of the seconds of them in which a process that they waited for had no CPU.
    """
    by_subject: dict[tuple[str, str, str], list[Blocking]] = defaultdict(list)
    for blocking in waits:
        by_subject[blocking.instance, _find_code(blocking), blocking.kind].append(blocking)
    verdicts: list[Verdict] = []
    covered: Keyed[tuple[str, str], float] = Keyed()
    for blockings in by_subject.values():
        seconds = count_seconds(blockings)
        if (blockings[0].reason, blockings[0].kind) == ("cpu", PAUSED_KIND) and usual:
            seconds = min(seconds - usually_starved, step.seconds - usual)
        is_callback = all(blocking.reason == "callback" for blocking in blockings)
        least = TRAJECTORY_SECONDS if is_callback else PHASE_SECONDS  # a busy machine delays a process, too
        if seconds < max(least, STEP_SHARE * step.seconds, step.uncertainty):
            continue
        may_be_usual = blockings[0].reason in _USUAL or blockings[0].work[0] == _SYNC
        if may_be_usual and step.seconds - usual < seconds / 2:
            continue
        waiting = _count_waiting(members, blockings)
        during = _find_phase(blockings)
        verdicts.append(_make(step, blockings, seconds, seconds)._replace(waiting=waiting, during=during))
        for blocking in blockings:
            covered[blocking.work] = covered.get(blocking.work, 0.0) + count_seconds([blocking])
    return Blocked(tuple(verdicts), covered)


def judge_starved(step: Step, starved: Sequence[Blocking], usual: float, usually_starved: float) -> Verdict | None:
    """Return the verdict that processes had no CPU for many short times; None if that is not why the step is long.

    Other programs that take the CPUs delay each process of a step a little.

    Args:
        step: The step.
        starved: The intervals in it in which processes had no CPU, disjoint.
        usual: Median of the seconds of the steps before; 0: unknown.
        usually_starved: Median of the seconds of such intervals in the steps before.
    """
    longer, seconds = step.seconds - usual, count_seconds(starved) - usually_starved
    if not usual or longer < max(PHASE_SECONDS, usual / 2, step.uncertainty) or seconds < longer / 2:
        return None
    return _make(step, starved, seconds, min(seconds, longer))


def _find_code(blocking: Blocking) -> str:
    """Return the function that ran, whatever its lines, or the name of what is no function."""
    place, _, function = blocking.line.rpartition(" in ")
    is_function = blocking.name.startswith(f"{function} (")
    return f"{place.rpartition(':')[0]} {function}" if place and is_function else blocking.name


def find_saving(waits: Iterable[Blocking], members: Sequence[Trajectory]) -> tuple[Saving, ...]:
    """Return by how much a step would have been shorter if no code had blocked an event loop; empty: none did while it waited."""
    blockings = [blocking for blocking in waits if blocking.kind == KIND and blocking.reason not in NAMES]
    if not blockings:
        return ()
    by_instance: dict[str, list[Blocking]] = defaultdict(list)
    for blocking in blockings:
        by_instance[blocking.instance].append(blocking)
    waiting = sum(_count_waiting(members, own) for own in by_instance.values())
    return (Saving("blocked", waiting, count_seconds(blockings)),)


def _find_phase(blockings: Iterable[Blocking]) -> str:
    """Return the phase in which the process itself was paused, if it was the only one. Without a CPU it may be another process."""
    works = {("", "") if blocking.reason == "cpu" else blocking.work for blocking in blockings}
    (kind, name), *others = works
    return name if kind == "phase" and not others else ""


def count_seconds(blockings: Iterable[Blocking]) -> float:
    """Return how long some intervals are together."""
    return sum(blocking.end_ns - blocking.start_ns for blocking in blockings) / 1e9


def _make(step: Step, blockings: Sequence[Blocking], seconds: float, saved: float) -> Verdict:
    first = max(blockings, key=lambda blocking: blocking.end_ns - blocking.start_ns)
    return Verdict(
        step.number,
        step.seconds,
        _LOOP if first.kind == KIND else _PAUSED,
        first.instance,
        first.kind,
        first.name,
        seconds,
        saved,
        max((blocking.trace_id for blocking in blockings), default=0),
        instance=first.instance,
        uncertainty=step.uncertainty,
        line=first.line,
        rests_on=_find_evidence(first),
    )


def _find_evidence(blocking: Blocking) -> str:
    return "counters" if blocking.reason in NAMES else "stacks"


def name_pauses(
    step: Step, verdicts: tuple[Verdict, ...], pauses: Mapping[str, Sequence[Blocking]], starved_share: float = 0.0
) -> tuple[Verdict, ...]:
    """Return verdicts of which those on processes that were paused meanwhile name the pause, one for each pause of a process.

    A verdict on a phase or a rank compares a process with others; the pause is why it took longer. A validation may have waited for a blocked
    loop, too. Of what a trajectory waited for, `drop_explained` has taken the pauses out.

    Args:
        step: The step.
        verdicts: The verdicts on it.
        pauses: The intervals of the step in which processes were paused, or their loops blocked, by process.
        starved_share: Share of the steps before for which a process that they waited for had no CPU.
    """
    if not pauses or not verdicts:
        return verdicts
    named = [_name_pause(step, verdict, pauses, starved_share) for verdict in verdicts]
    kept: list[Verdict] = []
    seen: set[tuple[str, str]] = set()
    for verdict in sorted(named, key=lambda verdict: -verdict.saved):
        key = verdict.subject, verdict.cause_name
        if verdict.kind != _PAUSED or key not in seen:
            kept.append(verdict)
        if verdict.kind == _PAUSED:
            seen.add(key)
    return tuple(kept)


def _name_pause(
    step: Step, verdict: Verdict, pauses: Mapping[str, Sequence[Blocking]], starved_share: float
) -> Verdict:
    if verdict.kind in (_LOOP, _PAUSED) or verdict.kind in _EXPLAINED - {"code"}:
        return verdict
    times = find_times(step, verdict)
    found = [(count_seconds(blockings), blockings) for blockings in _find_pauses_of(verdict, pauses, times)]
    if verdict.kind in _COMPARED:
        found.append(_find_without_cpu(step, verdict, pauses, times, starved_share))
    for waited, blockings in found:
        if blockings and waited >= DETAIL_SHARE * verdict.seconds:
            longest = max(blockings, key=lambda blocking: blocking.end_ns - blocking.start_ns)
            if verdict.kind == "between":
                return verdict._replace(
                    cause=longest.kind,
                    cause_name=longest.name,
                    instance=longest.instance,
                    line=longest.line,
                    rests_on=_find_evidence(longest),
                )
            seconds = min(waited, verdict.seconds)
            return _make(step, blockings, seconds, min(seconds, verdict.saved))
    return verdict


def _find_pauses_of(
    verdict: Verdict, pauses: Mapping[str, Sequence[Blocking]], times: Sequence[tuple[int, int]]
) -> Iterator[list[Blocking]]:
    """Yield the pauses within some times of the process of a verdict, and of those that it may have waited for.

    By process and reason.
    """
    names = [verdict.instance]
    if verdict.cause in _OF_TRAINER or verdict.cause == _VALIDATION:
        names += [name for name in pauses if name != verdict.instance]
    for instance in names:
        by_name: dict[str, list[Blocking]] = defaultdict(list)
        for pause in pauses.get(instance, ()):
            is_compared = pause.reason == "cpu" and verdict.kind in _COMPARED
            if pause.kind == KIND and verdict.cause != _VALIDATION:
                continue
            may_hold = instance == verdict.instance or pause.reason == PROCESS or verdict.cause == _VALIDATION
            if may_hold and not is_compared:
                by_name[pause.name] += cut_to(pause, times)
        yield from by_name.values()


def _find_without_cpu(
    step: Step,
    verdict: Verdict,
    pauses: Mapping[str, Sequence[Blocking]],
    times: Sequence[tuple[int, int]],
    starved_share: float,
) -> tuple[float, list[Blocking]]:
    """Return for how much longer than usual a late rank, or the processes of a phase, had no CPU, and when."""
    phase = _find_phase_of(verdict)
    roles = {_find_role(part.instance) for part in step.path if part.phase == phase and not part.trace_id}
    starved = [
        part
        for instance, known in pauses.items()
        if (instance == verdict.instance if verdict.kind == _RANK else _find_role(instance) in roles)
        for pause in known
        if pause.reason == "cpu"
        for part in cut_to(pause, times)
    ]
    parts = list(_make_disjoint(sorted(starved, key=_start)))
    usual = sum(end_ns - begin_ns for begin_ns, end_ns in times) / 1e9 - verdict.seconds
    return count_seconds(parts) - starved_share * max(0.0, usual), parts


def _find_role(instance: str) -> str:
    return instance.rpartition("-")[0]


def find_times(step: Step, verdict: Verdict) -> list[tuple[int, int]]:
    """Return the intervals that a verdict is about: those of the phase, the time after the step, or else all of the step."""
    if verdict.kind == "between":
        return [(step.end_ns, step.open_ns or step.next_ns)]
    phase = _find_phase_of(verdict)
    parts = [(part.start_ns, part.end_ns) for part in step.path if part.phase == phase and not part.trace_id]
    return parts if verdict.kind == "phase" and parts else [(step.start_ns, step.end_ns)]


def _find_phase_of(verdict: Verdict) -> str:
    return verdict.subject if verdict.subject != "step" else ""


def cut_to(blocking: Blocking, times: Iterable[tuple[int, int]]) -> list[Blocking]:
    """Return the parts of an interval that lie within some times, without the time in which its process had a CPU."""
    cut = [(max(blocking.start_ns, begin_ns), min(blocking.end_ns, end_ns)) for begin_ns, end_ns in times]
    parts = [blocking._replace(start_ns=begin_ns, end_ns=end_ns) for begin_ns, end_ns in cut if end_ns > begin_ns]
    return [_queue(part) for part in parts]


def _count_waiting(members: Sequence[Trajectory], blockings: Sequence[Blocking]) -> int:
    """Return how many trajectories waited. Where the trace of what blocked a loop is unknown, it may be that of one of those in its process."""
    waiting = {member.trace_id for member in members if _has_waited(member, blockings)}
    if blockings[0].kind == KIND and not all(blocking.trace_id for blocking in blockings):
        present = {member.trace_id for member in members if member.instance == blockings[0].instance}
        return min(len(waiting), len(waiting | present) - bool(present))
    return len(waiting)


def _has_waited(member: Trajectory, blockings: Sequence[Blocking]) -> bool:
    """Return whether a trajectory was in the process of one of the intervals, and is not known to be what blocked it."""
    instance = blockings[0].instance
    times = [(member.start_ns, member.end_ns)] if member.instance == instance else []
    if not times:
        times = [
            (activity.start_ns, activity.end_ns) for activity in member.activities if activity.instance == instance
        ]
    return any(
        start < blocking.end_ns and end > blocking.start_ns and blocking.trace_id != member.trace_id
        for start, end in times
        for blocking in blockings
    )


def drop_explained(step: Step, verdicts: tuple[Verdict, ...], blocked: Blocked) -> tuple[Verdict, ...]:
    """Return verdicts on a step about what no blocked loop and no pause explains; small rests are dropped.

    Args:
        step: The step.
        verdicts: Its other verdicts.
        blocked: The verdicts on blocked loops and paused processes.
    """
    if not blocked.verdicts:
        return verdicts
    paused = {verdict.instance: verdict.seconds for verdict in blocked.verdicts if verdict.kind == _PAUSED}
    stopped = {verdict.instance for verdict in blocked.verdicts if verdict.cause_name != NO_CPU}
    names = {verdict.cause_name for verdict in blocked.verdicts}
    least = max(TRAJECTORY_SECONDS, STEP_SHARE * step.seconds)

    def explain(verdict: Verdict) -> float:
        if verdict.kind == _RANK and verdict.instance not in stopped:
            return 0.0
        if verdict.kind not in _EXPLAINED:
            phase = verdict.subject if verdict.kind == "phase" else ""
            parts = [part for part in step.path if part.phase == phase and part.kind in (KIND, PAUSED_KIND)]
            inside = sum(part.seconds for part in parts if phase and not part.trace_id and part.name in names)
            return max(paused.get(verdict.instance, 0.0), inside)
        if verdict.cause == "unknown":  # only the root of the trajectory was kept
            return sum(blocked.covered.values())
        return blocked.covered.get((verdict.cause, verdict.cause_name), 0.0)

    kept = []
    for verdict in verdicts:
        explained = explain(verdict)
        rest = verdict.seconds - explained
        if not explained:
            kept.append(verdict)
        elif rest >= least:
            kept.append(verdict._replace(seconds=rest, saved=min(rest, verdict.saved)))
    return tuple(kept)
