# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Aggregates a run piece by piece in the order of time; data of finished steps is discarded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any, Final

import msgspec

from verl_otel._internal.printable import counted
from verl_otel.analysis.bounded_steps import Limits, RecentSteps, Slowest, Steps
from verl_otel.analysis.gpu.accounting import GpuAccount, find_unused_reason, needs_spread
from verl_otel.analysis.gpu.devices import find_devices, find_owners
from verl_otel.analysis.io import otlp_json, run_files
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.followed_files import ORDER_NS, Piece
from verl_otel.analysis.io.run_files import Extent, Writers, name_host, name_instance
from verl_otel.analysis.model import Counts, DeviceTime, Event, OpenSpan, Saving, Segment, Step, Trajectory, Verdict
from verl_otel.analysis.scalars import Columns
from verl_otel.analysis.start_up import StartUp, divide
from verl_otel.analysis.steps import BuiltStep, JudgedStep, build, complete, settle
from verl_otel.analysis.traces import critical_path, timeline, tree
from verl_otel.analysis.traces.clocks import Bounds, Context, ahead_of
from verl_otel.analysis.traces.span_names import (
    BLOCKED,
    PAUSED,
    STEP,
    STOOD,
    TESTING,
    TRAJECTORY,
    VALIDATION,
    WORKER_PREFIX,
)
from verl_otel.analysis.traces.tree import Ahead, IncompleteTraces, Node, Trace, Written
from verl_otel.analysis.typed import Keyed
from verl_otel.analysis.verdicts import blocked_loops, judge, standing
from verl_otel.analysis.verdicts.baselines import REMEMBERED_STEPS
from verl_otel.analysis.verdicts.between_steps import BetweenSteps
from verl_otel.analysis.verdicts.blocked_loops import Blocked, BlockedLoops
from verl_otel.analysis.windows import Window, Windows, find_restarts
from verl_otel.model import Resource, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.run_state import DRAIN_INTERVAL
from verl_otel.semconv.spans import TRACESTATE_TRAJECTORY

MAX_WORKERS: Final = 1000
"""Methods of workers outside of every step that are kept: those of one step, of each worker."""
MAX_OUTSIDE: Final = 20
"""Names of calls outside of trajectories that are counted."""
MAX_RANKED: Final = 1000
"""Steps of a distributed loop by which one rank may be ahead of another."""
KEPT_START_UPS: Final = 20
_START: Final = itemgetter(SpanRecord._fields.index("start_ns"))
_ID: Final = itemgetter(SpanRecord._fields.index("span_id"))
_END: Final = itemgetter(SpanRecord._fields.index("end_ns"))


def find_trajectory(trace: Trace) -> Trajectory | None:
    """Return the trajectory of a trace, with spans whose parent is missing; None if it has none."""
    orphans = [root for root in trace.roots if root.span.parent_id]
    for root in trace.roots:
        if root.span.name == TRAJECTORY and not root.span.parent_id:
            return timeline.build_trajectory(root, orphans, critical_path.of_trajectory(root))
    return None


class Aggregator(msgspec.Struct, dict=True):
    """Accumulates the pieces of a run and provides the parts of an `Explanation`."""

    manifest: dict[str, Any]
    """The run's manifest (``run.json``)."""
    context: Context
    """Data about the whole run."""
    limits: Limits
    columns: Columns
    tally: Tally
    steps: Steps
    recent_steps: RecentSteps
    _windows: Windows
    writers: Writers = msgspec.field(default_factory=Writers)
    bounds: Bounds = msgspec.field(default_factory=Bounds)
    """What whole traces tell of the clocks of several hosts."""
    problems: list[str] = []
    validations: list[tuple[int | None, int, int]] = []
    slowest: Slowest = msgspec.field(default_factory=Slowest)
    end_ns: int = 0
    start_ns: int = 0
    _unfinished: IncompleteTraces = msgspec.field(default_factory=IncompleteTraces)
    _attempt: int = 0
    """That of the step that was added last."""
    _waiting: dict[int, Trajectory] = {}
    _spent: dict[int, Trajectory] = {}
    _unused: Keyed[int | None, dict[str, int]] = msgspec.field(default_factory=Keyed)
    """Response tokens that no step trained on, by the step for which they were generated (None: unknown) and by
    reason."""
    _judge: judge.Judge = msgspec.field(default_factory=judge.Judge)
    _between_steps: BetweenSteps = msgspec.field(default_factory=BetweenSteps)
    blocked_loops: BlockedLoops = msgspec.field(default_factory=BlockedLoops)
    _blocked: dict[int, Blocked] = {}
    _lengths: list[float] = []
    """Seconds of the last steps."""
    _starved: list[float] = []
    """Seconds of the last steps in which a process had no CPU."""
    _gpu_account: GpuAccount | None = None
    start_ups: list[StartUp] = []
    """Of the newest attempts."""
    _counts: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Counts._fields, 0))
    _has_own_steps: bool = False
    """Whether steps of an own loop were added."""
    _workers: list[Node] = []
    """The newest methods of workers that began outside of every step: a pipe or a queue passes no context on."""
    _ranks: Keyed[tuple[int, int | None], set[int]] = msgspec.field(default_factory=Keyed)
    """The ranks of a distributed loop that have recorded a step, by attempt and number."""
    _outside: Counter[str] = msgspec.field(default_factory=Counter)
    """Calls of tools, models and rewards that began in no trajectory and no step, by name."""
    opened: list[OpenSpan] = []
    """Spans that never ended."""
    _open_spans: dict[int, list[OpenSpan]] = {}
    """Spans that will never end and whose traces are not complete, by trace."""
    _awaited: dict[int, int] = {}
    """The trace of each span that the processes last wrote as open, by its id."""
    _ended: frozenset[int] = frozenset()
    """Those of them that have ended since."""
    _given_up: set[int] = msgspec.field(default_factory=set)
    """Those of attempts that are over."""

    def __post_init__(self) -> None:
        """Read the manifest."""
        self._needs_spread = needs_spread(self.manifest)
        self._restarts = find_restarts(self.manifest)
        self._crashes_ns: list[int] = []

    def add(self, piece: Piece) -> dict[Extent, tuple[int, int]]:
        """Read a piece, in the order of time.

        Returns:
            First start and last end of the spans of each part of a file that has some, on the clock of its host.
        """
        times = self._read(piece)
        ahead = ahead_of(self.writers.resources, self.context.clocks)
        known_ns = piece.watermark_ns - self.context.slack_ns
        late = {trace_id for span_id, trace_id in self._awaited.items() if span_id not in self._ended}
        self._add_traces(self._unfinished.take_whole(known_ns, self._find_written(piece, ahead), late))
        self._close(self._windows.close(known_ns))
        return times

    def _read(self, piece: Piece) -> dict[Extent, tuple[int, int]]:
        """Take the spans of a piece, and return their times; note who wrote it, which open spans ended in it."""
        times: dict[Extent, tuple[int, int]] = {}
        groups = list(
            run_files.read_placed(otlp_json.read_spans, piece.extents, self.writers, self.problems)
        )  # a writer that is not known has no clock
        ahead = ahead_of(self.writers.resources, self.context.clocks)
        firsts: dict[int, int] = {}
        lasts: dict[int, int] = {}
        ended: set[int] = set()
        awaited = frozenset(self._awaited)
        for extent, process, spans in groups:
            if spans:
                self._unfinished.add(spans, process, ahead)
                first, last = min(map(_START, spans)), max(map(_END, spans))
                firsts[process] = min(firsts.get(process, first), first)
                lasts[process] = max(lasts.get(process, last), last)
                known = times.get(extent, (first, last))
                times[extent] = min(known[0], first), max(known[1], last)
                self.writers.note_alive(process, last)
                if awaited:
                    ended.update(awaited.intersection(map(_ID, spans)))
        self._ended = (self._ended & awaited) | ended
        if firsts:
            first_ns, *_ = _set_clocks(firsts, ahead)
            *_, last_ns = _set_clocks(lasts, ahead)
            self._windows.note_time(first_ns)
            self.end_ns = max(self.end_ns, last_ns)
        return times

    def _find_written(self, piece: Piece, ahead: Ahead | None) -> int:
        """Return until when every process has written what had ended; 0 while that is unknown.

        It is found from what each host has written since: a process in which nothing ends writes nothing, so the newest
        record of any process of its host counts.
        """
        if not piece.is_last or self.manifest.get(DRAIN_INTERVAL):
            return 0
        latest: dict[str, int] = {}
        begin_ns = max(self._restarts, default=0)
        for index, (values, _, newest) in enumerate(self.writers.processes()):
            if newest >= begin_ns:
                host = name_host(values)
                latest[host] = max(latest.get(host, 0), newest - (ahead(index, newest) if ahead else 0))
        written_ns = min(latest.values(), default=0) - ORDER_NS
        return max(written_ns, piece.watermark_ns) if len(latest) == 1 else written_ns

    def note_open(self, opened: Sequence[OpenSpan]) -> None:
        """Note the spans that had not ended when they were last written. Those of an attempt that is over end with it.

        Args:
            opened: The spans. What is read next may contain that they have ended.
        """
        self._awaited = {open_span.span.span_id: open_span.span.trace_id for open_span in opened}
        for open_span in opened:
            span = open_span.span
            if self._is_over(open_span) and span.span_id not in self._given_up:
                self._given_up.add(span.span_id)
                self._open_spans.setdefault(span.trace_id, []).append(open_span)
                self._unfinished.end(span.trace_id, self._find_end(open_span))

    def _is_over(self, open_span: OpenSpan) -> bool:
        return any(open_span.written_ns < restart for restart in self._restarts)

    def finish(self, opened: Iterable[OpenSpan]) -> None:
        """Finish: no more pieces follow.

        Args:
            opened: Spans that had not ended when they were last written.
        """
        for open_span in opened:
            if open_span.span.span_id not in self._ended | self._given_up:
                self._open_spans.setdefault(open_span.span.trace_id, []).append(open_span)
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

    def set_clock(self, process: int, time_ns: int) -> int:
        """Convert a process's timestamp to the trainer's clock."""
        ahead = ahead_of(self.writers.resources, self.context.clocks)
        return time_ns if ahead is None else time_ns - ahead(process, time_ns)

    def _all_open(self) -> Iterable[OpenSpan]:
        return (open_span for open_spans in self._open_spans.values() for open_span in open_spans)

    # -- traces --

    def _add_traces(self, traces: Iterable[tuple[int, list[Written]]]) -> None:
        instances = [name_instance(values) for values in self.writers.resources]
        hosts = list(map(name_host, self.writers.resources))
        is_spread = len(set(hosts)) > 1
        ahead = ahead_of(self.writers.resources, self.context.clocks)
        for trace_id, written in traces:
            if is_spread:
                self.bounds.add_trace(written, hosts)
            known = self._with_open(trace_id, written) if trace_id in self._open_spans else written
            trace = tree.assemble(trace_id, known, instances, ahead)
            self._counts["spans"] += trace.spans - (len(known) - len(written))
            self._add_trace(trace)

    def _with_open(self, trace_id: int, written: list[Written]) -> list[Written]:
        """Return the spans of a trace with its open spans, which end now, or when a killed attempt wrote them."""
        opened = self._open_spans.pop(trace_id)
        ended = {span.span_id for span, _ in written}
        unended = [open_span for open_span in opened if open_span.span.span_id not in ended]
        self.opened += unended
        return [
            *written,
            *((open_span.span._replace(end_ns=self._find_end(open_span)), open_span.process) for open_span in unended),
        ]

    def _find_end(self, open_span: OpenSpan) -> int:
        return self.set_clock(open_span.process, open_span.written_ns) if self._is_over(open_span) else self.end_ns

    def _add_trace(self, trace: Trace) -> None:
        self.tally.add(trace)
        is_open = any(attr.OPEN_AGE in root.span.attributes for root in trace.roots)
        trajectory = find_trajectory(trace)
        if trajectory is not None:
            (self._windows.add_trajectory if is_open else self._add_trajectory)(trajectory)
        for root in trace.roots:
            if root.span.name == TRAJECTORY:
                continue
            if root.span.name in (BLOCKED, PAUSED, STOOD):
                self.blocked_loops.add_span(root)
                continue
            if TRACESTATE_TRAJECTORY not in root.span.trace_state:
                self._windows.add_root(root)
            if root.span.parent_id or attr.OPEN_AGE in root.span.attributes:
                continue
            if root.span.name == STEP:
                self._add_step(root)
            elif root.span.name in (VALIDATION, TESTING):
                number = root.span.attributes.get(attr.STEP_NUMBER)
                step_number = number if isinstance(number, int) else None
                self.validations.append((step_number, root.span.start_ns, root.span.end_ns))
            else:
                self._note_outside(root)

    def _note_outside(self, root: Node) -> None:
        """Keep a method of a worker, and count a call, that began outside of every step and trajectory."""
        name = root.span.name
        if name.startswith(WORKER_PREFIX):
            self._workers.append(root)
            del self._workers[:-MAX_WORKERS]
        elif timeline.name_call(name) and (name in self._outside or len(self._outside) < MAX_OUTSIDE):
            self._outside[name] += 1

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
        if len(self._waiting) > self.limits.waiting:
            self._discard(self._waiting.pop(next(iter(self._waiting))))

    def _discard(self, trajectory: Trajectory) -> None:
        """Count a trajectory that no step trained on, and its tokens."""
        self.tally.without_step += trajectory.step is None and not trajectory.submitter
        if trajectory.generated_tokens:
            tokens_by_reason = self._unused.setdefault(trajectory.step, {})
            reason = find_unused_reason(trajectory)
            tokens_by_reason[reason] = tokens_by_reason.get(reason, 0) + trajectory.generated_tokens

    def describe_outside(self) -> Iterator[str]:
        """Yield a sentence on each kind of call of an own loop that began in no trajectory and no step."""
        for name, count in self._outside.most_common() if self._has_own_steps else ():
            yield (
                f"{counted(count, 'call')} of {timeline.name_call(name)} began outside of every trajectory and step: "
                "a thread or an executor does not take the context over, verl_otel.bind_context does"
            )

    # -- steps --

    def _add_step(self, root: Node) -> None:
        is_own = attr.STEP_LINEAGE in root.span.attributes
        self._has_own_steps = self._has_own_steps or is_own
        submitted = (
            [waiting for waiting in self._waiting.values() if timeline.is_submitted(root, waiting)] if is_own else []
        )
        if is_own:
            self._workers = timeline.add_workers(root, self._workers)
        submitted.sort(key=lambda trajectory: (trajectory.start_ns, trajectory.trace_id))  # whatever piece they lay in
        if timeline.consumes_submitted(root):
            timeline.add_consumption(root, submitted)
        consumed, evicted = timeline.find_consumed(root)
        trained = attr.ERROR_TYPE not in root.span.attributes
        found = {trace_id: self._consume(trace_id, counts=trained) for trace_id in consumed}
        filtered = {one: self._waiting[one] for one in evicted if one in self._waiting}
        attempt = 1 + sum(restart < root.span.end_ns for restart in self._restarts)
        built = build(root, found, filtered, submitted, attempt, self.context)
        self.slowest.replace((*built.members, *built.others))
        path, savings = self._find_blocked(built)
        if not built.members and timeline.consumes_submitted(root):
            path = timeline.mark_unlinked(path, self._waiting.values())
        verdicts = self._judge.judge(built.step, built.findings)
        step = built.step._replace(
            path=path,
            groups=critical_path.group(path),
            verdicts=verdicts,
            savings=(*built.step.savings, *savings),
        )
        judged = JudgedStep(step, built.members)
        if self._has_other_rank(step, root):
            self._windows.merge_step(judged)
            return
        self._windows.add_step(judged)
        if is_own:
            phases = [child.span for child in root.children if child.span.name == TESTING]
            self.validations += [(step.number, phase.start_ns, phase.end_ns) for phase in phases]

    @property
    def is_distributed(self) -> bool:
        """Whether several ranks of a distributed loop have recorded one step."""
        return any(len(ranks) > 1 for ranks in self._ranks.values())

    def _has_other_rank(self, step: Step, root: Node) -> bool:
        """Return whether another rank of a distributed loop has recorded this step before, and note this rank."""
        rank, key = root.span.attributes.get(attr.RANK), (step.attempt, step.number)
        if not isinstance(rank, int) or step.number is None:
            return False
        ranks = self._ranks.setdefault(key, set())
        known = bool(ranks) and rank not in ranks
        if not known:
            ranks.clear()  # the same rank begins this number again
        ranks.add(rank)
        if len(self._ranks) > MAX_RANKED:
            del self._ranks[next(iter(self._ranks))]
        return known

    def _find_blocked(self, built: BuiltStep) -> tuple[tuple[Segment, ...], tuple[Saving, ...]]:
        """Return the critical path of a step with the blocked loops and paused processes on it, and what the loops cost; judge these."""
        step = built.step
        is_first, self._attempt = step.attempt != self._attempt, step.attempt
        starved = self.blocked_loops.find_starved(step.path)
        usual, usually_starved = (median(known) if known else 0.0 for known in (self._lengths, self._starved))
        self._lengths.append(step.seconds)
        self._starved.append(blocked_loops.count_seconds(starved))
        del self._lengths[:-REMEMBERED_STEPS], self._starved[:-REMEMBERED_STEPS]
        path, waits = self.blocked_loops.mark(step.path) if self.blocked_loops else (step.path, ())
        if (waits or starved) and not is_first:  # the first step of an attempt includes the start-up
            found = blocked_loops.judge(step, waits, built.members, usual, usually_starved)
            rest = blocked_loops.judge_starved(step, starved, usual, usually_starved)
            starved_share = usually_starved / usual if usual else 0.0
            if found.verdicts or rest is not None or starved_share:
                self._blocked[step.trace_id] = found._replace(starved=rest, starved_share=starved_share)
        return path, blocked_loops.find_saving(waits, built.members)

    def _consume(self, trace_id: int, *, counts: bool) -> Trajectory | None:
        """Return a trajectory that a step took, and count it as trained on unless the step failed."""
        trajectory = self._waiting.pop(trace_id, None)
        if trajectory is None:
            self._counts["trained"] += counts and trace_id not in self._spent
            return self._spent.get(trace_id)
        self._counts["trained"] += counts
        self._spent[trace_id] = trajectory
        if len(self._spent) > self.limits.spent:
            del self._spent[next(iter(self._spent))]
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
                opened = [root.span.start_ns for root in window.roots if timeline.is_open_step(root)]
                end_ns = max(window.begin_ns, min([window.end_ns, *opened]))
                self.start_ups.append(divide(attempt, window.begin_ns, end_ns, window.roots))
                del self.start_ups[:-KEPT_START_UPS]
            instances = {trajectory.instance for trajectory in window.trajectories} if self.blocked_loops else ()
            blocked = self.blocked_loops.find_all(instances, window.begin_ns, window.end_ns)
            late = window.draft.step.stragglers if window.draft is not None else ()
            between: tuple[Segment, ...] = ()
            open_ns = 0
            if window.draft is not None:
                between, open_ns = self._between_steps.measure(
                    window.draft.step, window.roots, window.end_ns, judge=not window.is_last
                )
            until_ns = open_ns or window.end_ns
            activity = (window.roots, window.trajectories, blocked)
            devices = self._gpu_account.add_window(
                window.begin_ns, until_ns, *activity, late, is_lossy=self._is_lossy(window.begin_ns, until_ns)
            )
            if open_ns:  # a step that has not ended: the time since it began is that of the run, not of the step before
                is_lossy = self._is_lossy(open_ns, window.end_ns)
                self._gpu_account.add_window(open_ns, window.end_ns, *activity, is_lossy=is_lossy)
            self.end_ns = max(self.end_ns, window.end_ns)
            if window.draft is not None:
                step = complete(window.draft, window.end_ns, between, open_ns, devices, needs_spread=self._needs_spread)
                self.recent_steps.add(step, window.draft.members, window.roots, is_last=window.is_last)
                self.steps.add(step)

    def _is_lossy(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether a process of the attempt was killed by the end of an interval: its youngest trajectories are in no file."""
        attempt_ns = max((restart for restart in self._restarts if restart <= begin_ns), default=0)
        return any(attempt_ns <= crash <= end_ns for crash in self._crashes_ns)

    def _begin_attempt(self, window: Window) -> GpuAccount:
        """Return the account of GPU time, for an attempt that begins with its own devices.

        Args:
            window: Its first window, which is its start-up.
        """
        begin_ns = window.begin_ns if window.restarted else 0
        ahead = ahead_of(self.writers.resources, self.context.clocks)
        present = []
        for index, (values, oldest, newest) in enumerate(self.writers.processes()):
            shift = 0 if ahead is None else ahead(index, oldest)
            # Workers of a killed attempt may write for some seconds after the next one has started.
            belongs = oldest - shift >= begin_ns or newest - shift > window.end_ns
            if belongs and oldest - shift < window.next_attempt_ns:
                present.append(Resource(values))
        owners = find_owners(self.columns.keys())
        devices = find_devices(present, self.manifest, owners)
        self.problems += [problem for problem in devices.problems if problem not in self.problems]
        if self._gpu_account is None:
            return GpuAccount(devices)
        self._gpu_account.restart(devices)
        return self._gpu_account

    def settled_steps(self) -> tuple[tuple[Step, ...], dict[str, int]]:
        """Return the steps with their final verdicts, in the order of time, and the unused tokens of no step."""
        final, between = self._judge.settle(), self._between_steps.settle()

        def find_verdicts(step: Step) -> tuple[Verdict, ...]:
            blocked = self._blocked.get(step.trace_id, Blocked())
            verdicts = blocked_loops.drop_explained(step, final.get(step.trace_id, ()), blocked)
            if not step.interrupted:
                own = (*verdicts, *blocked.verdicts) or tuple(filter(None, (blocked.starved,)))
                verdicts = judge.sort((*own, *between.get(step.trace_id, ())))
            until_ns = max(step.end_ns, step.open_ns or step.next_ns)
            pauses = self.blocked_loops.find_pauses(step.start_ns, until_ns) if verdicts else {}
            stood = self.blocked_loops.find_stood(step.start_ns, until_ns) if verdicts else []
            verdicts = blocked_loops.name_pauses(step, verdicts, pauses, blocked.starved_share)
            named = standing.name_lines(step, verdicts, stood)
            return tuple(one._replace(instance="") if _may_be_another(step, one) else one for one in named)

        drafts = [draft.step for draft in self._windows.drafts()]
        return settle([*self.steps.all(), *drafts], find_verdicts, self._unused)

    def counts(self) -> Counts:
        """Return the counts of the run."""
        outside = self._outside.total() if self._has_own_steps else 0
        return Counts(**{**self._counts, "processes": len(self.writers.resources), "outside": outside})

    def devices(self) -> tuple[DeviceTime, ...]:
        """Return the GPU time of the whole run."""
        return self._gpu_account.total() if self._gpu_account is not None else ()


def _set_clocks(times_ns: Mapping[int, int], ahead: Ahead | None) -> list[int]:
    """Return a time of each process on the trainer's clock, sorted."""
    return sorted(time_ns - ahead(process, time_ns) if ahead else time_ns for process, time_ns in times_ns.items())


def _may_be_another(step: Step, verdict: Verdict) -> bool:
    """Return whether several ranks took as long in a phase that was slow: the process of the verdict may have waited for another one."""
    return verdict.kind == "phase" and (verdict.alike or step.is_shared)


_COUNTED: Final = {"llm": "llm_calls", "tool": "tool_calls", "reward": "rewards"}
