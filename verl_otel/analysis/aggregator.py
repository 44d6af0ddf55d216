# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Aggregates a run slice by slice in the order of time; data of finished steps is discarded."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any, Final, Generic, NamedTuple, TypeVar

from verl_otel._internal.printable import counted
from verl_otel._internal.quantiles import pick_quantiles
from verl_otel.analysis.bounded_steps import SLOWEST_OF_STEP, Limits, RecentSteps, Slowest, Steps
from verl_otel.analysis.gpu.accounting import GpuAccount, find_cost, find_unused_reason, lose, needs_spread
from verl_otel.analysis.gpu.devices import find_devices, find_owners
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.run_files import END, Writers, list_attempts
from verl_otel.analysis.model import Counts, DeviceTime, Event, OpenSpan, Segment, Step, Trajectory
from verl_otel.analysis.scalars import Columns
from verl_otel.analysis.slice_summary import (
    Context,
    SliceSummary,
    ahead_of,
    find_trajectory,
    name_instance,
)
from verl_otel.analysis.start_up import StartUp, divide
from verl_otel.analysis.step_lengths import find_repeated
from verl_otel.analysis.traces import critical_path, timeline
from verl_otel.analysis.traces.span_names import BLOCKED, PAUSED, STEP, TRAJECTORY, VALIDATION
from verl_otel.analysis.traces.timeline import (
    add_consumption,
    consumes_submitted,
    is_submitted,
    mark_unlinked,
    name_call,
)
from verl_otel.analysis.traces.tree import LATE_NS, IncompleteTraces, Node, Trace, Written, assemble, walk
from verl_otel.analysis.verdicts import blocked_loops, judge, own_workers, stragglers
from verl_otel.analysis.verdicts.baselines import REMEMBERED_STEPS
from verl_otel.analysis.verdicts.between_steps import BetweenSteps
from verl_otel.analysis.verdicts.what_if import find_savings
from verl_otel.model import AttributeValue, Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import TRACESTATE_TRAJECTORY

# -- Divides the time of a run into adjacent windows, from the start of each step to the start of the next one --
#
# A run that was resumed has a gap before each attempt but the first: what lies between the last record of an attempt and
# the start of the next one belongs to no window. A window is closed when no more spans can overlap it: what was open in
# it ends before the longest span of the run would.

MAX_OUTSIDE: Final = 20
"""Names of calls outside of trajectories that are counted."""
MAX_HELD: Final = 50_000
"""Maximum number of trajectories kept for open windows; above it the oldest window is closed early."""

MAX_RANKED: Final = 1000
"""Steps of a distributed loop by which one rank may be ahead of another."""
MAX_SILENCE_NS: Final = 3_600_000_000_000
"""Longest time from the start of a run to its first record. Of a run that has none for longer, the oldest files were removed to limit their size."""

MAX_SECONDS: Final = 1e11
"""Unix time that no run reaches; what is above it is damaged."""

Item = TypeVar("Item")


def find_restarts(manifest: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the start of each attempt but the first that the manifest of a run lists, in the order of time."""
    return tuple(sorted(filter(None, (_to_ns(attempt.get("started")) for attempt in list_attempts(manifest)[1:]))))


def find_start(manifest: Mapping[str, Any]) -> int:
    """Return when the first attempt started, by the manifest; 0: unknown."""
    attempts = list_attempts(manifest)
    return _to_ns(attempts[0].get("started")) if attempts else 0


def _to_ns(value: object) -> int:
    return round(value * 1e9) if isinstance(value, (int, float)) and 0 < value < MAX_SECONDS else 0


class Draft(NamedTuple):
    """A step without the data that depends on its whole window (GPU time, cost)."""

    step: Step
    members: tuple[Trajectory, ...]


def _join(known: Draft, other: Draft) -> Draft:
    """Return one step of what two ranks recorded of it: that which something delayed more, or which took longer, with the trajectories of both."""
    first, second = known, other
    ends, starts = (known.step.end_ns, other.step.end_ns), (known.step.start_ns, other.step.start_ns)
    # Ranks that do not wait for each other differ in time.
    if min(ends) > max(starts) and _measure(other.step) > _measure(known.step):
        first, second = other, known
    members = (*first.members, *second.members)
    step = first.step._replace(
        trajectories=(*first.step.trajectories, *second.step.trajectories),
        members=first.step.members + second.step.members,
        quantiles=pick_quantiles(sorted(member.seconds for member in members)),
        slowest=_slowest((*first.step.slowest, *second.step.slowest), first.step.path),
    )
    return Draft(step, members)


def _measure(step: Step) -> tuple[float, float]:
    return max((verdict.saved for verdict in step.verdicts), default=0.0), step.seconds


class Window(NamedTuple):
    """An interval of the run, and everything that overlaps it."""

    begin_ns: int
    end_ns: int
    draft: Draft | None
    """The step that starts with it; None before the first step."""
    roots: tuple[Node, ...]
    """Roots of traces that are no trajectories."""
    trajectories: tuple[Trajectory, ...]
    is_last: bool = False
    """Whether it ends with the run, or with an attempt."""
    restarted: bool = False
    """Whether it begins with an attempt that is not the first."""
    next_attempt_ns: int = END
    """Start of the next attempt; `END`: there is none."""


class _IntervalQueue(Generic[Item]):
    """A queue of intervals, queried by windows in the order of time."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._coming: list[tuple[int, int, int, Item]] = []
        """A heap by start: start, sequence number, end, item."""
        self._present: list[tuple[int, Item]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._coming) + len(self._present)

    def add(self, start_ns: int, end_ns: int, item: Item) -> None:
        self._added += 1
        heapq.heappush(self._coming, (start_ns, self._added, end_ns, item))
        self.longest_ns = max(self.longest_ns, end_ns - start_ns)

    def find_last_end(self, before_ns: int) -> int:
        """Return the last end of an item up to a time; 0 if none has ended."""
        ends = [end for end, _ in self._present] + [end for start, _, end, _ in self._coming if start < before_ns]
        return max((end for end in ends if end <= before_ns), default=0)

    def touching(self, begin_ns: int, end_ns: int) -> tuple[Item, ...]:
        """Return the items that overlap a window and discard those that end in it; windows come in the order of time."""
        while self._coming and self._coming[0][0] < end_ns:
            _, _, end, item = heapq.heappop(self._coming)
            self._present.append((end, item))
        touching = tuple(item for end, item in self._present if end > begin_ns)
        self._present = [present for present in self._present if present[0] > end_ns]
        return touching


class Windows:
    """Collects steps, traces and trajectories, and returns complete windows.

    Args:
        restarts: The start of each attempt but the first, in the order of time.
        started_ns: The start of the first one, before its first record; 0: unknown.
    """

    def __init__(self, restarts: Iterable[int] = (), started_ns: int = 0) -> None:
        self._started_ns = started_ns
        self._restarts = deque(restarts)
        self._restarted_ns = 0
        """Start of the attempt whose first window has not begun; 0: it has."""
        self.begin_ns: int | None = None
        """Start of the next window; None: there are no spans yet."""
        self._drafts: deque[Draft] = deque()
        self._is_before = True
        """True until the window of the first step starts."""
        self._roots: _IntervalQueue[Node] = _IntervalQueue()
        self._trajectories: _IntervalQueue[Trajectory] = _IntervalQueue()

    def note_time(self, time_ns: int) -> None:
        """Extend the start of the run to a time. After the first window is closed the start is fixed."""
        if self.begin_ns is None:
            is_near = 0 < time_ns - self._started_ns <= MAX_SILENCE_NS
            self.begin_ns = self._started_ns if self._started_ns and is_near else time_ns
        elif self._is_before and self._restarted_ns <= time_ns < self.begin_ns:
            self.begin_ns = time_ns

    def add_root(self, node: Node) -> None:
        """Add the root of a trace that is no trajectory."""
        self._roots.add(node.span.start_ns, max(descendant.span.end_ns for descendant in walk(node)), node)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Add a trajectory."""
        self._trajectories.add(trajectory.start_ns, trajectory.end_ns, trajectory)

    def add_step(self, draft: Draft) -> None:
        """Add a step; steps come in the order of their ends."""
        self._drafts.append(draft)

    def merge_step(self, draft: Draft) -> None:
        """Merge what another rank of a distributed loop has recorded of a step, unless its window is closed."""
        for index, known in enumerate(self._drafts):
            if (known.step.attempt, known.step.number) == (draft.step.attempt, draft.step.number):
                self._drafts[index] = _join(known, draft)
                return

    def drafts(self) -> tuple[Draft, ...]:
        """Return the steps whose windows are not complete."""
        return tuple(self._drafts)

    def close(self, watermark_ns: int) -> Iterator[Window]:
        """Return the windows that are complete when all spans up to ``watermark_ns`` are known."""
        while self._drafts:
            waits = self._is_before or len(self._drafts) > 1
            if not waits:
                return
            step = self._drafts[0 if self._is_before else 1].step
            end = step.start_ns
            longest = max(self._roots.longest_ns, self._trajectories.longest_ns)
            if end + longest > watermark_ns and len(self._trajectories) <= MAX_HELD:
                return
            yield from self._end_attempts(step.end_ns, end)
            yield self._cut(end)

    def close_all(self, end_ns: int) -> Iterator[Window]:
        """Return the remaining windows, up to the end of the run."""
        yield from self.close(1 << 65)
        if self.begin_ns is not None:
            yield from self._end_attempts(end_ns, end_ns)
            yield self._cut(end_ns)._replace(is_last=True)

    def _end_attempts(self, before_ns: int, latest_ns: int) -> Iterator[Window]:
        """Return the last window of each attempt that a restart follows.

        Args:
            before_ns: Restarts before this time are considered: the end of a step, since a manifest may be written after its first step has begun.
            latest_ns: The restart was not after this time.
        """
        while self._restarts and self._restarts[0] < before_ns:
            restart = self._restarts.popleft()
            begin, started_ns = self.begin_ns or 0, min(restart, latest_ns)
            if started_ns <= begin:  # no file of the attempt before is here
                continue
            known = [each.find_last_end(started_ns) for each in (self._roots, self._trajectories)]
            last = max(begin, *known, 0 if self._is_before else self._drafts[0].step.end_ns)
            yield self._cut(min(last, started_ns))._replace(is_last=True, next_attempt_ns=restart)
            self._is_before, self.begin_ns, self._restarted_ns = True, started_ns, started_ns

    def _cut(self, end_ns: int) -> Window:
        begin = self.begin_ns or 0
        end = max(begin, end_ns)
        draft = None if self._is_before else self._drafts.popleft()
        restarted, self._restarted_ns = bool(self._restarted_ns), 0
        self._is_before, self.begin_ns = False, end
        roots, trajectories = self._roots.touching(begin, end), self._trajectories.touching(begin, end)
        following = self._restarts[0] if self._restarts else END
        return Window(begin, end, draft, roots, trajectories, restarted=restarted, next_attempt_ns=following)


KEPT_START_UPS: Final = 20


class Aggregator:
    """Accumulates slice summaries and provides the parts of an `Explanation`.

    Args:
        writers: The processes known so far.
        manifest: The run's manifest (``run.json``).
        context: Data about the whole run, found before the slices are read.
        opened: Spans that had not ended when they were last written.
        asked: Numbers of steps whose detail is kept.
        limits: How much of the run is kept.
    """

    def __init__(
        self,
        writers: Writers,
        manifest: Mapping[str, Any],
        context: Context,
        opened: Iterable[OpenSpan] = (),
        asked: frozenset[int] | None = None,
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        self._limits = limits
        self.writers = writers
        self._manifest = manifest
        self._context = context
        self._needs_spread = needs_spread(manifest)
        self._open_spans: dict[int, list[OpenSpan]] = {}
        self._note_open(opened)
        self.opened: list[OpenSpan] = []
        """Spans that never ended."""
        self.tally = Tally(context.engine)
        self.columns = Columns()
        self.problems: list[str] = []
        self.validations: list[tuple[int | None, int, int]] = []
        self.slowest = Slowest()
        self.steps = Steps(asked, limits)
        self.end_ns = 0
        self.start_ns = 0
        self._unfinished = IncompleteTraces()
        self._restarts = find_restarts(manifest)
        self._attempt = 0
        """That of the step that was added last."""
        self._windows = Windows(self._restarts, find_start(manifest))
        self._waiting: OrderedDict[int, Trajectory] = OrderedDict()
        self._spent: OrderedDict[int, Trajectory] = OrderedDict()
        self._unused: dict[int | None, dict[str, int]] = {}
        """Response tokens that no step trained on, by the step for which they were generated (None: unknown) and by reason."""
        self._judge = judge.Judge()
        self._between_steps = BetweenSteps()
        self.blocked_loops = blocked_loops.BlockedLoops()
        self._blocked: dict[int, blocked_loops.Blocked] = {}
        self._crashes_ns: list[int] = []
        self.recent_steps = RecentSteps(limits.replayed)
        self._lengths: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        """Seconds of the last steps."""
        self._gpu_account: GpuAccount | None = None
        self.start_ups: deque[StartUp] = deque(maxlen=KEPT_START_UPS)
        """Of the newest attempts."""
        self._counts = dict.fromkeys(Counts._fields, 0)
        self._has_own_steps = False
        """Whether steps of an own loop were added."""
        self._ranks: OrderedDict[tuple[int, int | None], set[AttributeValue]] = OrderedDict()
        """The ranks of a distributed loop that have recorded a step, by attempt and number."""
        self._outside: Counter[str] = Counter()
        """Calls of tools, models and rewards that began in no trajectory and no step, by name."""

    def add(self, slice_summary: SliceSummary, watermark_ns: int) -> None:
        """Add a slice. Slices come in the order of time.

        Args:
            slice_summary: The summary of the slice.
            watermark_ns: All spans written before this time have been added, including this slice.
        """
        numbers = [self.writers.add(*process) for process in slice_summary.processes]
        self.tally.merge(slice_summary.tally)
        self.columns.merge(slice_summary.columns)
        self.problems += slice_summary.problems
        if slice_summary.last_ns:
            self._note_times(slice_summary.first_ns, slice_summary.last_ns)
        self._counts["spans"] += slice_summary.read
        for trajectory in slice_summary.trajectories:
            self._add_trajectory(trajectory)
        for span, process in slice_summary.spans:
            self._unfinished.add(span, numbers[process])
        if watermark_ns < END:
            known_ns = watermark_ns - self._context.slack_ns
            self._add_traces(self._unfinished.take_whole(known_ns + LATE_NS))
            self._close(self._windows.close(known_ns))

    def _note_open(self, opened: Iterable[OpenSpan]) -> None:
        for open_span in opened:
            self._open_spans.setdefault(open_span.span.trace_id, []).append(open_span)

    def finish(self, opened: Iterable[OpenSpan] = ()) -> None:
        """Finish: no more slices follow.

        Args:
            opened: Spans that had not ended when they were last written, if they were not given before.
        """
        self._note_open(opened)
        self.end_ns = max(
            [self.end_ns, *(self.set_clock(open_span.process, open_span.written_ns) for open_span in self._all_open())]
        )
        if self._windows.begin_ns is None:  # no span has ended yet: the run starts with its open spans
            for open_span in self._all_open():
                self._windows.note_time(self.set_clock(open_span.process, open_span.span.start_ns))
        self._add_traces(self._unfinished.take_rest())
        for trace_id in list(self._open_spans):
            self._add_traces([(trace_id, [])])
        if self._unfinished.discarded:
            self.problems.append(
                f"{self._unfinished.discarded} traces without an end were given up: too many are open at once"
            )
        for trajectory in self._waiting.values():
            self._discard(trajectory)
        self._close(self._windows.close_all(self.end_ns))

    @property
    def context(self) -> Context:
        """What is known of the whole run."""
        return self._context

    def set_context(self, context: Context) -> None:
        """Use other clocks for what is added from now on."""
        self._context = context

    def set_events(self, run_events: tuple[Event, ...]) -> None:
        """Replace the stalls and crashes of the run."""
        self.blocked_loops.set_events(run_events)
        self._crashes_ns = [event.time_ns for event in run_events if event.kind == "crash"]

    @property
    def begin_ns(self) -> int:
        """Start of the run, as far as it is known; 0: there is no span yet."""
        return self.start_ns or self._windows.begin_ns or 0

    @property
    def step_count(self) -> int:
        """Number of steps that have ended, as far as they are known."""
        return len(self.steps) + len(self._windows.drafts())

    def _note_times(self, first_ns: int, last_ns: int) -> None:
        self._windows.note_time(first_ns)
        self.end_ns = max(self.end_ns, last_ns)

    def set_clock(self, process: int, time_ns: int) -> int:
        """Convert a process's timestamp to the trainer's clock."""
        ahead = ahead_of(self.writers.resources, self._context.clocks)
        return time_ns if ahead is None else time_ns - ahead(process, time_ns)

    def _all_open(self) -> Iterable[OpenSpan]:
        return (open_span for open_spans in self._open_spans.values() for open_span in open_spans)

    # -- traces --

    def _add_traces(self, traces: Iterable[tuple[int, list[Written]]]) -> None:
        instances = [name_instance(values) for values in self.writers.resources]
        ahead = ahead_of(self.writers.resources, self._context.clocks)
        for trace_id, written in traces:
            self._counts["spans"] += len({span.span_id for span, _ in written})
            self._add_trace(assemble(trace_id, self._with_open(trace_id, written), instances, ahead))

    def _with_open(self, trace_id: int, written: list[Written]) -> list[Written]:
        """Return the spans of a trace with its open spans, which are taken to end now, or, in an attempt that was killed, when they were written."""
        opened = self._open_spans.pop(trace_id, ())
        if not opened:
            return written
        ended = {span.span_id for span, _ in written}
        unended = [open_span for open_span in opened if open_span.span.span_id not in ended]
        self.opened += unended
        return [
            *written,
            *((open_span.span._replace(end_ns=self._find_end(open_span)), open_span.process) for open_span in unended),
        ]

    def _find_end(self, open_span: OpenSpan) -> int:
        is_over = any(open_span.written_ns < restart for restart in self._restarts)
        return self.set_clock(open_span.process, open_span.written_ns) if is_over else self.end_ns

    def _add_trace(self, trace: Trace) -> None:
        self.tally.add(trace)
        is_open = any(attr.OPEN_AGE in root.span.attributes for root in trace.roots)
        trajectory = find_trajectory(trace)
        if trajectory is not None:
            (self._windows.add_trajectory if is_open else self._add_trajectory)(trajectory)
        for root in trace.roots:
            if root.span.name in (BLOCKED, PAUSED):
                self.blocked_loops.add_span(root)
                continue
            if root.span.name != TRAJECTORY and TRACESTATE_TRAJECTORY not in root.span.trace_state:
                self._windows.add_root(root)
            if root.span.parent_id or attr.OPEN_AGE in root.span.attributes:
                continue
            if root.span.name == STEP:
                self._add_step(root)
            elif root.span.name == VALIDATION:
                number = root.span.attributes.get(attr.STEP_NUMBER)
                step_number = number if isinstance(number, int) else None
                self.validations.append((step_number, root.span.start_ns, root.span.end_ns))
            elif name_call(root.span.name) and (root.span.name in self._outside or len(self._outside) < MAX_OUTSIDE):
                self._outside[root.span.name] += 1

    def _add_trajectory(self, trajectory: Trajectory) -> None:
        self._windows.add_trajectory(trajectory)
        counts = self._counts
        counts["trajectories"] += 1
        counts["cancelled"] += trajectory.cancelled
        counts["failed"] += trajectory.stopped and not trajectory.cancelled
        for activity in trajectory.activities:
            if activity.kind in _COUNTED:
                counts[_COUNTED[activity.kind]] += 1
        self.slowest.add(trajectory)
        if trajectory.validate:
            return
        self._waiting[trajectory.trace_id] = trajectory
        if len(self._waiting) > self._limits.waiting:
            self._discard(self._waiting.popitem(last=False)[1])

    def _discard(self, trajectory: Trajectory) -> None:
        """Count the tokens of a trajectory that no step trained on."""
        if trajectory.generated_tokens:
            tokens_by_reason = self._unused.setdefault(trajectory.step, {})
            reason = find_unused_reason(trajectory)
            tokens_by_reason[reason] = tokens_by_reason.get(reason, 0) + trajectory.generated_tokens

    def describe_outside(self) -> Iterator[str]:
        """Yield a sentence on each kind of call of an own loop that began in no trajectory and no step, so that nothing knows whose it is."""
        for name, count in self._outside.most_common() if self._has_own_steps else ():
            yield (
                f"{counted(count, 'call')} of {name_call(name)} began outside of every trajectory and step: "
                "a thread or an executor does not take the context over, verl_otel.bind_context does"
            )

    # -- steps --

    def _add_step(self, root: Node) -> None:
        is_own = attr.STEP_LINEAGE in root.span.attributes
        self._has_own_steps = self._has_own_steps or is_own
        submitted = [waiting for waiting in self._waiting.values() if is_submitted(root, waiting)] if is_own else []
        if consumes_submitted(root):
            add_consumption(root, submitted)
        consumed = timeline.find_consumed(root)
        trained = attr.ERROR_TYPE not in root.span.attributes
        found = {trace_id: self._consume(trace_id, counts=trained) for trace_id in consumed}
        members_by_id = {trace_id: member for trace_id, member in found.items() if member is not None}
        filtered = {one: self._waiting[one] for one in timeline.find_filtered(root) if one in self._waiting}
        step, findings = self._summarise_step(root, members_by_id, filtered, submitted)
        number = step.number
        members = tuple(  # what they name is the step that submitted them
            member if number is None else member._replace(step=number) for member in members_by_id.values()
        )
        stopped = [
            one if one.step is not None else one._replace(step=number)
            for one in {each.trace_id: each for each in (*submitted, *filtered.values())}.values()
            if one.trace_id not in members_by_id
        ]
        self.slowest.replace((*members, *stopped))
        attempt = 1 + sum(restart < step.end_ns for restart in self._restarts)
        is_first, self._attempt = attempt != self._attempt, attempt
        slowest = _slowest((*members, *(one for one in stopped if one.trace_id in filtered)), step.path)
        step = step._replace(slowest=slowest, attempt=attempt)
        step = self._mark_blocked(step, members, is_first=is_first)
        if not members and consumes_submitted(root):
            path = mark_unlinked(step.path, self._waiting.values())
            step = step._replace(path=path, groups=critical_path.group(path))
        step = step._replace(verdicts=self._judge.judge(step, findings))
        add = self._windows.merge_step if self._has_other_rank(step, root) else self._windows.add_step
        add(Draft(step, members))

    def _has_other_rank(self, step: Step, root: Node) -> bool:
        """Return whether another rank of a distributed loop has recorded this step before, and note this rank."""
        rank, key = root.span.attributes.get(attr.RANK), (step.attempt, step.number)
        if rank is None or step.number is None:
            return False
        ranks = self._ranks.setdefault(key, set())
        known = bool(ranks) and rank not in ranks
        if not known:
            ranks.clear()  # the same rank begins this number again
        ranks.add(rank)
        if len(self._ranks) > MAX_RANKED:
            self._ranks.popitem(last=False)
        return known

    def _summarise_step(
        self,
        root: Node,
        members_by_id: Mapping[int, Trajectory],
        filtered: Mapping[int, Trajectory],
        submitted: Iterable[Trajectory],
    ) -> tuple[Step, judge.Findings]:
        """Return a step without what depends on its neighbours (verdicts, GPU time, cost), and what may have held it.

        Args:
            root: The root span of the step.
            members_by_id: The trajectories that it trained on, by trace id, as far as they were found.
            filtered: Those that it waited for, too, and did not train on, as far as they were found.
            submitted: Those that it submitted, if it is of an own loop.
        """
        awaited = {**members_by_id, **filtered}
        path = critical_path.of_step(root, awaited, tuple(awaited))
        doubt = self._context.find_uncertainty(path)
        step = timeline.build_step(root, members_by_id, submitted)._replace(
            path=path,
            groups=critical_path.group(path),
            stragglers=(*stragglers.find(root, uncertainty=doubt), *own_workers.find(root, uncertainty=doubt)),
            blind_spots=own_workers.find_blind_spots(root),
            uncertainty=doubt,
        )
        waited_for = tuple(awaited.values())
        step = step._replace(savings=find_savings(step, waited_for, root))
        return step, judge.examine(step, root, waited_for)

    def _mark_blocked(self, step: Step, members: tuple[Trajectory, ...], *, is_first: bool) -> Step:
        """Return a step whose critical path names the blocked event loops and the paused processes that it waited for."""
        usual = median(self._lengths) if self._lengths else 0.0
        self._lengths.append(step.seconds)
        if not self.blocked_loops:
            return step
        path, waits = self.blocked_loops.mark(step.path)
        if not waits:
            return step
        step = step._replace(path=path, groups=critical_path.group(path))
        if not is_first:  # the first step of an attempt includes the start-up
            self._blocked[step.trace_id] = blocked_loops.judge(step, waits, members, usual)
        return step

    def _consume(self, trace_id: int, *, counts: bool) -> Trajectory | None:
        """Return a trajectory that a step took, and count it as trained on unless the step failed, whose update is lost."""
        trajectory = self._waiting.pop(trace_id, None)
        if trajectory is None:
            self._counts["trained"] += counts and trace_id not in self._spent
            return self._spent.get(trace_id)
        self._counts["trained"] += counts
        self._spent[trace_id] = trajectory
        if len(self._spent) > self._limits.spent:
            self._spent.popitem(last=False)
        return trajectory

    # -- windows --

    def _close(self, windows: Iterable[Window]) -> None:
        for window in windows:
            if not self.start_ns:
                self.start_ns = window.begin_ns
            if self._gpu_account is None or window.restarted:
                self._gpu_account = self._begin_attempt(window)
            if window.draft is None:
                attempt = 1 + sum(restart <= window.begin_ns for restart in self._restarts)
                self.start_ups.append(divide(attempt, window.begin_ns, window.end_ns, window.roots))
            instances = {trajectory.instance for trajectory in window.trajectories} if self.blocked_loops else ()
            blocked = self.blocked_loops.find_all(instances, window.begin_ns, window.end_ns)
            late = window.draft.step.stragglers if window.draft is not None else ()
            attempt_ns = max((restart for restart in self._restarts if restart <= window.begin_ns), default=0)
            devices = self._gpu_account.add_window(
                window.begin_ns,
                window.end_ns,
                window.roots,
                window.trajectories,
                blocked,
                late,
                is_lossy=any(attempt_ns <= crash <= window.end_ns for crash in self._crashes_ns),
            )
            self.end_ns = max(self.end_ns, window.end_ns)
            if window.draft is not None:
                step, members = window.draft
                step = self._between_steps.measure(
                    step._replace(devices=devices), window.roots, window.end_ns, judge=not window.is_last
                )
                self.recent_steps.add(step, members, window.roots, is_last=window.is_last)
                self.steps.add(step._replace(cost=find_cost(step, members, devices, needs_spread=self._needs_spread)))

    def _begin_attempt(self, window: Window) -> GpuAccount:
        """Return the account of GPU time, for an attempt that begins with its own devices.

        Args:
            window: Its first window, which is its start-up.
        """
        begin_ns = window.begin_ns if window.restarted else 0
        ahead = ahead_of(self.writers.resources, self._context.clocks)
        present = []
        for index, (values, oldest, newest) in enumerate(self.writers.processes()):
            shift = 0 if ahead is None else ahead(index, oldest)
            # Workers of a killed attempt may write for some seconds after the next one has started.
            belongs = oldest - shift >= begin_ns or newest - shift > window.end_ns
            if belongs and oldest - shift < window.next_attempt_ns:
                present.append(Resource(values))
        owners = find_owners(key for key, _ in self.columns.columns())
        devices = find_devices(present, self._manifest, owners)
        self.problems += [problem for problem in devices.problems if problem not in self.problems]
        if self._gpu_account is None:
            return GpuAccount(devices)
        self._gpu_account.restart(devices)
        return self._gpu_account

    def settled_steps(self) -> tuple[tuple[Step, ...], dict[str, int]]:
        """Return the steps with their final verdicts, in the order of time, and the unused tokens that belong to no step.

        Tokens generated for a step number are attributed to the last step of that number: a resumed run repeats earlier ones.
        """
        drafts = [draft.step for draft in self._windows.drafts()]
        between = self._between_steps.settle()
        steps = []
        for step in self._judge.settle([*self.steps.all(), *drafts]):
            blocked = self._blocked.get(step.trace_id, blocked_loops.Blocked())
            more = () if step.interrupted else (*blocked.verdicts, *between.get(step.trace_id, ()))
            judged = judge.add_verdicts(blocked_loops.drop_explained(step, blocked), more)
            pauses = self.blocked_loops.find_pauses(step.start_ns, step.end_ns) if judged.verdicts else {}
            steps.append(blocked_loops.name_pauses(judged, pauses))
        repeated = find_repeated([(step.attempt, step.number) for step in steps])
        steps = [step._replace(repeated=place in repeated) for place, step in enumerate(steps)]
        steps = [
            step._replace(cost=lose(step.cost)) if step.cost and (step.failed or step.repeated) else step
            for step in steps
        ]
        index_by_number: dict[int | None, int] = {
            step.number: index
            for index, step in enumerate(steps)
            if step.number is not None and step.number in self._unused and step.cost
        }
        rest: dict[str, int] = {}
        for number, wasted in self._unused.items():
            index = index_by_number.get(number)
            cost = steps[index].cost if index is not None else None
            if index is None or cost is None:
                rest = _add_up(rest, wasted)
            else:
                combined = cost._replace(wasted_tokens=_add_up(cost.wasted_tokens, wasted))
                steps[index] = steps[index]._replace(cost=combined)
        return tuple(steps), rest

    def counts(self) -> Counts:
        """Return the counts of the run."""
        outside = self._outside.total() if self._has_own_steps else 0
        return Counts(**{**self._counts, "processes": len(self.writers.resources), "outside": outside})

    def devices(self) -> tuple[DeviceTime, ...]:
        """Return the GPU time of the whole run."""
        return self._gpu_account.total() if self._gpu_account is not None else ()


def _add_up(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {reason: first.get(reason, 0) + second.get(reason, 0) for reason in (*first, *second)}


def _slowest(taken: Iterable[Trajectory], path: Iterable[Segment]) -> tuple[Trajectory, ...]:
    """Return the slowest trajectories that a step took, including the one that ended last and those on its path: each round has one."""
    ordered = sorted(taken, key=lambda trajectory: trajectory.start_ns - trajectory.end_ns)
    chosen = ordered[:SLOWEST_OF_STEP]
    if ordered and (last := max(ordered, key=lambda trajectory: trajectory.end_ns)) not in chosen:
        chosen[-1] = last
    awaited = {segment.trace_id for segment in path}
    chosen += [trajectory for trajectory in ordered if trajectory.trace_id in awaited and trajectory not in chosen]
    return tuple(map(timeline.with_parts, chosen))


_COUNTED: Final = {"llm": "llm_calls", "tool": "tool_calls", "reward": "rewards"}
