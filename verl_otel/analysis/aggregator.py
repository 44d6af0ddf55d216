# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Aggregates a run slice by slice in the order of time; data of finished steps is discarded."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, Final

from verl_otel.analysis.gpu import token_cost
from verl_otel.analysis.gpu.accounting import GpuAccount
from verl_otel.analysis.gpu.devices import find as find_devices
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.run_files import Writers
from verl_otel.analysis.io.slices import END
from verl_otel.analysis.levers.recent_steps import RecentSteps
from verl_otel.analysis.model import Counts, DeviceTime, OpenSpan, Segment, Step, Trajectory, Verdict
from verl_otel.analysis.retention import SLOWEST_OF_STEP, Limits, Slowest, Steps
from verl_otel.analysis.scalars import Columns
from verl_otel.analysis.slice_summary import Context, SliceSummary, ahead_of, find_trajectory, name_instance
from verl_otel.analysis.step_summary import StepSummary, summarise_step
from verl_otel.analysis.step_windows import Draft, Window, Windows, find_restarts
from verl_otel.analysis.traces import critical_path, timeline
from verl_otel.analysis.traces.blocked_loops import BlockedLoops
from verl_otel.analysis.traces.span_names import BLOCKED, PAUSED, STEP, TRAJECTORY, VALIDATION
from verl_otel.analysis.traces.submissions import add_consumption, consumes_submitted, is_submitted, mark_unlinked
from verl_otel.analysis.traces.tree import LATE_NS, IncompleteTraces, Node, Trace, Written, assemble
from verl_otel.analysis.verdicts import blocked_loops, engine
from verl_otel.analysis.verdicts.between_steps import BetweenSteps
from verl_otel.analysis.verdicts.thresholds import REMEMBERED_STEPS
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import TRACESTATE_TRAJECTORY


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
        self._algorithm = str(manifest.get(attr.ALGORITHM, ""))
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
        self._windows = Windows(self._restarts)
        self._waiting: OrderedDict[int, Trajectory] = OrderedDict()
        self._spent: OrderedDict[int, Trajectory] = OrderedDict()
        self._unused: dict[int | None, dict[str, int]] = {}
        """Response tokens that no step trained on, by the step for which they were generated (None: unknown) and by reason."""
        self._step_summaries: dict[int, StepSummary] = {}
        self._verdict_engine = engine.VerdictEngine()
        self._between_steps = BetweenSteps()
        self.blocked_loops = BlockedLoops()
        self._loop_verdicts: dict[int, tuple[Verdict, ...]] = {}
        self.recent_steps = RecentSteps(limits.replayed)
        self._lengths: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        """Seconds of the last steps."""
        self._gpu_account: GpuAccount | None = None
        self._counts = dict.fromkeys(Counts._fields, 0)

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
        self._step_summaries.update((summary.step.trace_id, summary) for summary in slice_summary.step_summaries)
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

    def resume(self, context: Context, opened: Iterable[OpenSpan]) -> None:
        """Go on with an aggregator that was kept: other spans are open now."""
        self._context = context
        self._open_spans = {}
        self._note_open(opened)

    @property
    def context(self) -> Context:
        """What is known of the whole run."""
        return self._context

    def set_context(self, context: Context) -> None:
        """Use other clocks for what is added from now on."""
        self._context = context

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
        is_over = any(open_span.written_ns < restart.started_ns for restart in self._restarts)
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
                self._add_step(root, trace.spans)
            elif root.span.name == VALIDATION:
                number = root.span.attributes.get(attr.STEP_NUMBER)
                step_number = number if isinstance(number, int) else None
                self.validations.append((step_number, root.span.start_ns, root.span.end_ns))

    def _add_trajectory(self, trajectory: Trajectory) -> None:
        self._windows.add_trajectory(trajectory)
        counts = self._counts
        counts["trajectories"] += 1
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
        if trajectory.response_tokens:
            tokens_by_reason = self._unused.setdefault(trajectory.step, {})
            reason = token_cost.find_unused_reason(trajectory)
            tokens_by_reason[reason] = tokens_by_reason.get(reason, 0) + trajectory.response_tokens

    # -- steps --

    def _add_step(self, root: Node, spans: int) -> None:
        summary = self._step_summaries.pop(root.span.trace_id, None)
        if consumes_submitted(root):
            add_consumption(root, [waiting for waiting in self._waiting.values() if is_submitted(root, waiting)])
            if summary is not None and set(summary.step.trajectories) != set(timeline.find_consumed(root)):
                summary = None  # it was summarised without trajectories of other slices
        consumed = timeline.find_consumed(root) if summary is None else summary.step.trajectories
        members_by_id = {trace_id: member for trace_id in consumed if (member := self._consume(trace_id)) is not None}
        filtered = {one: self._waiting[one] for one in timeline.find_filtered(root) if one in self._waiting}
        if summary is None or summary.spans != spans or len(members_by_id) < len(consumed):
            summary = summarise_step(root, members_by_id, self._context.clock_uncertainty, filtered)
        number = summary.step.number
        members = tuple(
            member if member.step is not None else member._replace(step=number) for member in members_by_id.values()
        )
        self.slowest.replace(members)
        attempt = 1 + sum(restart.started_ns < summary.step.end_ns for restart in self._restarts)
        is_first, self._attempt = attempt != self._attempt, attempt
        slowest = _slowest((*members, *filtered.values()), summary.step.path)
        step = summary.step._replace(slowest=slowest, attempt=attempt)
        step = self._mark_blocked(step, members, is_first=is_first)
        if not members and consumes_submitted(root):
            path = mark_unlinked(step.path, self._waiting.values())
            step = step._replace(path=path, groups=critical_path.group(path))
        step = step._replace(verdicts=self._verdict_engine.judge(step, summary.findings))
        self._windows.add_step(Draft(step, members))

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
            self._loop_verdicts[step.trace_id] = blocked_loops.judge(step, waits, members, usual)
        return step

    def _consume(self, trace_id: int) -> Trajectory | None:
        trajectory = self._waiting.pop(trace_id, None)
        if trajectory is None:
            self._counts["trained"] += trace_id not in self._spent
            return self._spent.get(trace_id)
        self._counts["trained"] += 1
        self._spent[trace_id] = trajectory
        if len(self._spent) > self._limits.spent:
            self._spent.popitem(last=False)
        return trajectory

    # -- windows --

    def _close(self, windows: Iterable[Window]) -> None:
        for window in windows:
            if self._gpu_account is None:
                self.start_ns = window.begin_ns
                run_devices = find_devices(map(Resource, self.writers.resources), self._manifest)
                self.problems += run_devices.problems
                self._gpu_account = GpuAccount(run_devices)
            if window.restarted:
                self._gpu_account.restart()
            instances = {trajectory.instance for trajectory in window.trajectories} if self.blocked_loops else ()
            blocked = self.blocked_loops.find_all(instances, window.begin_ns, window.end_ns)
            devices = self._gpu_account.add_window(
                window.begin_ns, window.end_ns, window.roots, window.trajectories, blocked
            )
            self.end_ns = max(self.end_ns, window.end_ns)
            if window.draft is not None:
                step, members = window.draft
                step = self._between_steps.measure(
                    step._replace(devices=devices), window.roots, window.end_ns, judge=not window.is_last
                )
                self.recent_steps.add(step, members, window.roots, is_last=window.is_last)
                self.steps.add(
                    step._replace(cost=token_cost.of_step(step, members, devices, algorithm=self._algorithm))
                )

    def settled_steps(self) -> tuple[tuple[Step, ...], dict[str, int]]:
        """Return the steps with their final verdicts, in the order of time, and the unused tokens that belong to no step.

        Tokens generated for a step number are attributed to the last step of that number: a resumed run repeats earlier ones.
        """
        drafts = [draft.step for draft in self._windows.drafts()]
        between = self._between_steps.settle()
        steps = []
        for step in self._verdict_engine.settle([*self.steps.all(), *drafts]):
            loops = self._loop_verdicts.get(step.trace_id, ())
            judged = blocked_loops.drop_explained(step, loops)
            judged = engine.add_verdicts(judged, (*loops, *between.get(step.trace_id, ())))
            pauses = self.blocked_loops.find_pauses(step.start_ns, step.end_ns) if judged.verdicts else {}
            steps.append(blocked_loops.name_pauses(judged, pauses))
        last_attempts = {step.number: step.attempt for step in steps}
        steps = [
            step._replace(repeated=True)
            if step.number is not None and step.attempt < last_attempts[step.number]
            else step
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
        return Counts(**{**self._counts, "processes": len(self.writers.resources)})

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
