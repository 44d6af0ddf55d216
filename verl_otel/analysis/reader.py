# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a run piece by piece, while it is written or afterwards, in bounded memory, however long it was.

Traces come when they are whole, in the order of time; data of finished steps is discarded. A reader can be saved at any time, and continued by
another process. What has not ended yet is not final: the last steps have no GPU time and no cost before `RunReader.finish`, because these belong to
the time up to the next step.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from verl_otel._internal.printable import counted
from verl_otel.analysis import saved_state, step_lengths, steps, whole_run
from verl_otel.analysis.bounded_steps import Limits, RecentSteps, Slowest, Steps
from verl_otel.analysis.gpu import devices
from verl_otel.analysis.gpu.accounting import GpuAccount, find_cost, find_unused_reason, lose, needs_spread
from verl_otel.analysis.io import completeness, run_files, run_status
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.followed_files import FollowedFiles
from verl_otel.analysis.io.run_files import Extent, name_instance
from verl_otel.analysis.model import (
    Counts,
    Event,
    Explanation,
    OpenSpan,
    Process,
    Saving,
    Segment,
    Series,
    Step,
    Straggler,
    Trajectory,
    Verdict,
)
from verl_otel.analysis.scalars import SMALL, WHOLE, Columns, Room
from verl_otel.analysis.start_up import StartUp, divide
from verl_otel.analysis.steps import BuiltStep, Draft
from verl_otel.analysis.traces import clocks, critical_path, timeline
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
from verl_otel.analysis.traces.tree import Node, Trace
from verl_otel.analysis.traces.whole_traces import WholeTraces
from verl_otel.analysis.typed import Keyed
from verl_otel.analysis.verdicts import blocked_loops, judge, standing
from verl_otel.analysis.verdicts.baselines import REMEMBERED_STEPS
from verl_otel.analysis.verdicts.between_steps import BetweenSteps
from verl_otel.analysis.verdicts.blocked_loops import Blocked, BlockedLoops
from verl_otel.analysis.windows import Window, Windows, find_restarts, find_start
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import AVERAGE_REWARD, RUN_STATE
from verl_otel.semconv.spans import TRACESTATE_TRAJECTORY

COMMAND, PAGE = "command", "page"
"""Names under which readers are saved: by a command, and by a page, which keeps less."""
PAGE_BYTES: Final = 256 << 10
"""Bytes that a page reads at a time: about 1,500 spans, 3 MB as objects."""
PIECE_BYTES: Final = 8 << 20
"""Bytes that a command reads at a time: 12,000 spans, about 30 MB as objects."""
KEPT_SECONDS: Final = 3.0
"""What took longer to read is kept: the next command reads what was added."""
COMMAND_LIMITS: Final = Limits()
PAGE_LIMITS: Final = Limits(waiting=4_000, spent=200, replayed=0, detailed=50, slowest=20, bare=True, packed=0)
MAX_WORKERS: Final = 1000
"""Methods of workers outside of every step that are kept: those of one step, of each worker."""
MAX_OUTSIDE: Final = 20
"""Names of calls outside of trajectories that are counted."""
MAX_RANKED: Final = 1000
"""Steps of a distributed loop by which one rank may be ahead of another."""
KEPT_START_UPS: Final = 20
_COUNTED: Final = {"llm": "llm_calls", "tool": "tool_calls", "reward": "rewards"}

Progress = Callable[[int, int], None]
"""Called with the number of bytes read and the total."""


class RunReader(msgspec.Struct, dict=True):
    """One run; it may grow, end, be killed, or be deleted meanwhile. Its fields are what is saved."""

    traces: WholeTraces
    _metrics: FollowedFiles
    _limits: Limits
    _columns: Columns
    _tally: Tally
    _steps: Steps
    _recent_steps: RecentSteps
    _windows: Windows
    _validations: list[tuple[int | None, int, int]] = []
    _slowest: Slowest = msgspec.field(default_factory=Slowest)
    _start_ns: int = 0
    """Start of the first window; 0: it is not closed."""
    _attempt: int = 0
    """That of the step that was added last."""
    _waiting: dict[int, Trajectory] = {}
    """Trajectories that no step has trained on."""
    _spent: dict[int, Trajectory] = {}
    """Those that a step has trained on, as far as they are kept."""
    _unused: Keyed[int | None, dict[str, int]] = msgspec.field(default_factory=Keyed)
    """Response tokens that no step trained on, by the step for which they were generated (None: unknown) and by
    reason."""
    _judge: judge.Judge = msgspec.field(default_factory=judge.Judge)
    _between_steps: BetweenSteps = msgspec.field(default_factory=BetweenSteps)
    _blocked_loops: BlockedLoops = msgspec.field(default_factory=BlockedLoops)
    _blocked: dict[int, Blocked] = {}
    _lengths: list[float] = []
    """Seconds of the last steps."""
    _starved: list[float] = []
    """Seconds of the last steps in which a process had no CPU."""
    _gpu_account: GpuAccount | None = None
    _start_ups: list[StartUp] = []
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

    def __post_init__(self) -> None:
        """Begin before the first look."""
        self._needs_spread = needs_spread(self.traces.manifest)
        self._events: tuple[Event, ...] = ()
        self._problems: tuple[str, ...] = ()
        """Messages about what could not be read of events and open spans."""
        self.is_finished = False
        """Whether `finish` was called. What the run writes later is not read: it needs another instance."""
        self.version = 0
        """Changes whenever something new was read."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder of the run, or one for each node."""
        return self.traces.files.folders

    @property
    def is_behind(self) -> bool:
        """Whether there were unread lines at the last look."""
        return self.traces.files.is_behind or self._metrics.is_behind

    @property
    def step_count(self) -> int:
        """Number of steps that have ended, as far as they are known."""
        return len(self._steps) + len(self._windows.drafts())

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes read, and of all."""
        (read, size), (more_read, more_size) = self.traces.files.progress(), self._metrics.progress()
        return read + more_read, size + more_size

    def ask(self, numbers: frozenset[int]) -> None:
        """Name the steps that `explain` returns with their detail, however many there are."""
        self._steps.asked = numbers

    # -- files --

    def look(self) -> None:
        """Look for new files, new lines and new events.

        The events come last: a stall that is over must be known before the spans that follow it are read. So do the
        open spans: one that has ended by now has its end in a line that has not been read.
        """
        self.traces.look()
        self._metrics.look()
        problems = [*self.traces.files.problems, *self._metrics.problems]
        self.traces.look_for_open(problems)
        run_events = run_files.read_events(self.folders, problems)
        self._problems = tuple(problems)
        if run_events != self._events:
            self._events = run_events
            self._blocked_loops.set_events(run_events)
            self.version += 1

    def continue_in(self, folders: tuple[Path, ...]) -> bool:
        """Go on after it was saved; return whether all that was read is still there, and no attempt was added."""
        self.traces.files.folders = self._metrics.folders = folders
        read, _ = self.progress()
        self.look()
        return self.progress()[0] == read and not self.has_other_attempts()

    def has_other_attempts(self) -> bool:
        """Return whether the run was continued since: the steps of an attempt are known before they are read."""
        return find_restarts(run_files.read_manifest(self.folders)) != find_restarts(self.traces.manifest)

    def read(self, budget: int = PAGE_BYTES) -> None:
        """Read new lines of about this many bytes, the scalars before the spans."""
        if self.is_finished:
            return
        before = self.progress()[0], self.step_count
        self._add_scalars(self._metrics.take(budget).extents)
        self._add_traces(self.traces.read(budget))
        self.version += before != (self.progress()[0], self.step_count)

    def finish(self) -> None:
        """Complete the last steps of a run that was read to its end. Lines without an end are read, too."""
        if not self.is_finished:
            self._add_scalars(self._metrics.take_rest().extents)
            self._add_traces(self.traces.read(None))
            self._add_traces(self.traces.take_rest())
            for trajectory in self._waiting.values():
                self._discard(trajectory)
            self._close(self._windows.close_all(self.traces.end_ns))
            self.is_finished = True
            self.version += 1

    def _add_scalars(self, extents: Iterable[Extent]) -> None:
        writers = self.traces.writers
        for process, points in run_files.read_points(extents, writers, self.traces.problems):
            self._columns.add(points, name_instance(writers.resources[process]))
            writers.note_alive(process, max((point.time_ns for point in points), default=0))

    def _add_traces(self, traces: Iterable[Trace]) -> None:
        for trace in traces:
            self._add_trace(trace)
        if self.traces.first_ns:
            self._windows.note_time(self.traces.first_ns)
        self._close(self._windows.close(self.traces.known_ns))

    # -- traces --

    def _add_trace(self, trace: Trace) -> None:
        self._tally.add(trace)
        is_open = any(attr.OPEN_AGE in root.span.attributes for root in trace.roots)
        orphans = [root for root in trace.roots if root.span.parent_id]
        for root in trace.roots:
            span = root.span
            if span.name == TRAJECTORY:
                if not span.parent_id:
                    trajectory = timeline.build_trajectory(root, orphans, critical_path.of_trajectory(root))
                    self._windows.add_trajectory(trajectory)
                    if not is_open:
                        self._add_trajectory(trajectory)
            elif span.name in (BLOCKED, PAUSED, STOOD):
                self._blocked_loops.add_span(root)
            else:
                if TRACESTATE_TRAJECTORY not in span.trace_state:
                    self._windows.add_root(root)
                if not span.parent_id and attr.OPEN_AGE not in span.attributes:
                    self._add_ended(root)

    def _add_ended(self, root: Node) -> None:
        """Add a root that has ended: a step, a validation, or what began outside of every step and trajectory."""
        name = root.span.name
        if name == STEP:
            self._add_step(root)
        elif name in (VALIDATION, TESTING):
            number = root.span.attributes.get(attr.STEP_NUMBER)
            step_number = number if isinstance(number, int) else None
            self._validations.append((step_number, root.span.start_ns, root.span.end_ns))
        elif name.startswith(WORKER_PREFIX):
            self._workers.append(root)
            del self._workers[:-MAX_WORKERS]
        elif timeline.name_call(name) and (name in self._outside or len(self._outside) < MAX_OUTSIDE):
            self._outside[name] += 1

    def _add_trajectory(self, trajectory: Trajectory) -> None:
        counts = self._counts
        counts["trajectories"] += 1
        counts["cancelled"] += trajectory.cancelled
        counts["failed"] += trajectory.stopped and not trajectory.cancelled
        for activity in trajectory.activities:
            if activity.kind in _COUNTED:
                counts[_COUNTED[activity.kind]] += 1
        self._slowest.add(trajectory)
        if trajectory.validate:
            return
        self._waiting[trajectory.trace_id] = trajectory
        if len(self._waiting) > self._limits.waiting:
            self._discard(self._waiting.pop(next(iter(self._waiting))))

    def _discard(self, trajectory: Trajectory) -> None:
        """Count a trajectory that no step trained on, and its tokens."""
        self._tally.without_step += trajectory.step is None and not trajectory.submitter
        if trajectory.generated_tokens:
            tokens_by_reason = self._unused.setdefault(trajectory.step, {})
            reason = find_unused_reason(trajectory)
            tokens_by_reason[reason] = tokens_by_reason.get(reason, 0) + trajectory.generated_tokens

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
        consumed, evicted = timeline.find_consumed(root)
        is_derived = root.span.attributes.get(attr.STEP_LINEAGE) == timeline.SUBMITTED and not consumed
        if is_derived:
            timeline.add_consumption(root, submitted)
            consumed, evicted = timeline.find_consumed(root)
        trained = attr.ERROR_TYPE not in root.span.attributes
        found = {trace_id: self._consume(trace_id, counts=trained) for trace_id in consumed}
        filtered = {one: self._waiting[one] for one in evicted if one in self._waiting}
        attempt = 1 + sum(restart < root.span.end_ns for restart in self.traces.restarts)
        built = steps.build(root, found, filtered, submitted, attempt, self.traces.context)
        self._slowest.replace((*built.members, *built.others))
        path, savings = self._find_blocked(built)
        if is_derived and not consumed:
            path = timeline.mark_unlinked(path, self._waiting.values())
        verdicts = self._judge.judge(built.step, built.findings)
        step = built.step._replace(
            path=path,
            groups=critical_path.group(path),
            verdicts=verdicts,
            savings=(*built.step.savings, *savings),
            starved=self._blocked_loops.count_starved(built.step.path),
        )
        draft = Draft(step, built.members)
        if self._has_other_rank(step, root):
            self._windows.merge_step(draft)
            return
        self._windows.add_step(draft)
        if is_own:
            phases = [child.span for child in root.children if child.span.name == TESTING]
            self._validations += [(step.number, phase.start_ns, phase.end_ns) for phase in phases]

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
        starved = self._blocked_loops.find_starved(step.path)
        usual, usually_starved = (median(known) if known else 0.0 for known in (self._lengths, self._starved))
        self._lengths.append(step.seconds)
        self._starved.append(blocked_loops.count_seconds(starved))
        del self._lengths[:-REMEMBERED_STEPS], self._starved[:-REMEMBERED_STEPS]
        path, waits = self._blocked_loops.mark(step.path) if self._blocked_loops else (step.path, ())
        is_starved = False
        if (waits or starved) and not is_first:  # the first step of an attempt includes the start-up
            found = blocked_loops.judge(step, waits, built.members, usual, usually_starved)
            rest = blocked_loops.judge_starved(step, starved, usual, usually_starved)
            starved_share = usually_starved / usual if usual else 0.0
            if found.verdicts or rest is not None or starved_share:
                self._blocked[step.trace_id] = found._replace(starved=rest, starved_share=starved_share)
            is_starved = rest is not None or any(
                verdict.cause_name == blocked_loops.NO_CPU for verdict in found.verdicts
            )
        if waits and not is_starved:
            path, _ = self._blocked_loops.mark(step.path, shared=False)
        return path, blocked_loops.find_saving(waits, built.members)

    def _consume(self, trace_id: int, *, counts: bool) -> Trajectory | None:
        """Return a trajectory that a step took, and count it as trained on unless the step failed."""
        trajectory = self._waiting.pop(trace_id, None)
        if trajectory is None:
            self._counts["trained"] += counts and trace_id not in self._spent
            return self._spent.get(trace_id)
        self._counts["trained"] += counts
        self._spent[trace_id] = trajectory
        if len(self._spent) > self._limits.spent:
            del self._spent[next(iter(self._spent))]
        return trajectory

    # -- windows --

    def _close(self, windows: Iterable[Window]) -> None:
        for window in windows:
            if not self._start_ns:
                self._start_ns = window.begin_ns
            if self._gpu_account is None or window.restarted:
                self._gpu_account = self._begin_attempt(window)
            if window.draft is None:
                attempt = 1 + sum(restart <= window.begin_ns for restart in self.traces.restarts)
                opened = [root.span.start_ns for root in window.roots if timeline.is_open_step(root)]
                end_ns = max(window.begin_ns, min([window.end_ns, *opened]))
                self._start_ups.append(divide(attempt, window.begin_ns, end_ns, window.roots))
                del self._start_ups[:-KEPT_START_UPS]
            instances = {trajectory.instance for trajectory in window.trajectories} if self._blocked_loops else ()
            blocked = self._blocked_loops.find_all(instances, window.begin_ns, window.end_ns)
            late: tuple[Straggler, ...] = ()
            between: tuple[Segment, ...] = ()
            open_ns = 0
            if window.draft is not None:
                late = window.draft.step.stragglers
                between, open_ns = self._between_steps.measure(
                    window.draft.step, window.roots, window.end_ns, judge=not window.is_last
                )
            until_ns = open_ns or window.end_ns
            activity = (window.roots, window.trajectories, blocked)
            spent = self._gpu_account.add_window(
                window.begin_ns, until_ns, *activity, late, is_lossy=self._is_lossy(window.begin_ns, until_ns)
            )
            if open_ns:  # a step that has not ended: the time since it began is that of the run, not of the step before
                is_lossy = self._is_lossy(open_ns, window.end_ns)
                self._gpu_account.add_window(open_ns, window.end_ns, *activity, is_lossy=is_lossy)
            self.traces.end_ns = max(self.traces.end_ns, window.end_ns)
            if window.draft is not None:
                draft, members = window.draft
                step = draft._replace(
                    devices=spent,
                    cost=find_cost(draft, members, spent, needs_spread=self._needs_spread),
                    next_ns=window.end_ns,
                    open_ns=open_ns,
                    between_path=between,
                    between_groups=critical_path.group(between),
                )
                self._recent_steps.add(step, members, window.roots, is_last=window.is_last)
                self._steps.add(step)

    def _is_lossy(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether a process of the attempt was killed by the end of an interval: its youngest trajectories are in no file."""
        attempt_ns = max((restart for restart in self.traces.restarts if restart <= begin_ns), default=0)
        return any(event.kind == "crash" and attempt_ns <= event.time_ns <= end_ns for event in self._events)

    def _begin_attempt(self, window: Window) -> GpuAccount:
        """Return the account of GPU time, for an attempt that begins with its own devices.

        Args:
            window: Its first window, which is its start-up.
        """
        begin_ns = window.begin_ns if window.restarted else 0
        # Workers of a killed attempt may write for some seconds after the next one has started.
        present = [
            Resource(values)
            for values, oldest_ns, newest_ns in self.traces.list_processes()
            if (oldest_ns >= begin_ns or newest_ns > window.end_ns) and oldest_ns < window.next_attempt_ns
        ]
        found = devices.find_devices(present, self.traces.manifest, devices.find_owners(self._columns.keys()))
        problems = self.traces.problems
        problems += [problem for problem in found.problems if problem not in problems]
        if self._gpu_account is None:
            return GpuAccount(found)
        self._gpu_account.restart(found)
        return self._gpu_account

    # -- what is known --

    def open_spans(self) -> list[OpenSpan]:
        """Return the spans that had not ended when they were last written; of a run that is finished, those that never did."""
        return self.traces.opened if self.is_finished else self.traces.read_open([])

    def processes(self, opened: Iterable[OpenSpan]) -> tuple[Process, ...]:
        """Return the processes that wrote the files.

        Args:
            opened: Spans that have not ended.
        """
        with_open = {open_span.process for open_span in opened}
        return tuple(
            Process(Resource(values), newest_ns, index not in with_open)
            for index, (values, _, newest_ns) in enumerate(self.traces.list_processes())
        )

    def explain(self) -> Explanation:
        """Return everything that is known so far."""
        traces = self.traces
        manifest = traces.manifest = {**traces.manifest, **run_files.read_manifest(self.folders)}
        opened = self.open_spans()
        host_clocks = traces.context.clocks
        problems = [*self._problems, *traces.problems]
        processes = self.processes(opened)
        series = self._columns.series()
        problems += self._describe_outside()
        if self._columns.left_out:
            problems.append(f"{self._columns.left_out} values of more series than are kept were left out")
        problems += filter(None, [whole_run.describe_lost(series, find_restarts(manifest))])
        problems += clocks.describe_unknown(host_clocks)
        run_id = manifest.get("run_id") or (
            processes[0].resource.text(attr.RUN_ID) if processes else self.folders[0].name
        )
        settled, unused = self._settle_steps()
        settled = whole_run.name_reads(settled, series, find_restarts(manifest))
        is_distributed = any(len(ranks) > 1 for ranks in self._ranks.values())
        series = add_rewards(series, settled, is_distributed=is_distributed)
        start_ns, end_ns = self._start_ns or self._windows.begin_ns or 0, traces.end_ns
        if not start_ns:  # without spans, those of its events and scalars
            times = [event.time_ns for event in self._events if event.time_ns]
            times += [time_ns for one in series if one.times_ns for time_ns in (one.times_ns[0], one.times_ns[-1])]
            start_ns, end_ns = min(times, default=0), max(times, default=0)
        resources = [process.resource for process in processes]
        has_gpu = devices.has_gpu(resources, (scalar.name for scalar in series), manifest)
        spent = self._gpu_account.total() if self._gpu_account is not None else ()
        if has_gpu and not spent and devices.UNKNOWN_GPUS not in problems:
            problems.append(devices.UNKNOWN_GPUS)
        recorded = [(one.times_ns[-1], one.values[-1]) for one in series if one.name == RUN_STATE]
        # Whether it is alive is judged by what it wrote lately: its processes may be on another host.
        age = time.time() - max((process.newest_ns for process in processes), default=0) / 1e9
        gaps = completeness.find(self._tally, processes, opened, manifest)
        return Explanation(
            run_id=str(run_id),
            folders=tuple(map(str, self.folders)),
            manifest=dict(manifest),
            state=run_status.find_state(
                manifest, max(recorded, default=(0, None))[1], self._events, lambda: age < run_status.RUNNING_SECONDS
            ),
            start_ns=start_ns,
            end_ns=end_ns,
            counts=self._count(),
            steps=settled,
            validations=tuple(self._validations),
            slowest=tuple(map(timeline.with_parts, self._slowest.all())),
            devices=spent,
            events=self._events,
            series=series,
            completeness=gaps,
            problems=tuple(problems),
            offsets=tuple((host, clock.largest, clock.uncertainty) for host, clock in sorted(host_clocks.items())),
            unused=unused,
            has_gpu=has_gpu,
            recent_steps=self._recent_steps.all(),
            start_ups=tuple(self._start_ups),
        )

    def _settle_steps(self) -> tuple[tuple[Step, ...], dict[str, int]]:
        """Return the steps as they are at the end of the run, in the order of time, and the unused tokens that belong to none.

        Tokens generated for a step number are attributed to the last step of that number: a resumed run repeats earlier ones.
        """
        known = [*self._steps.all(), *(draft.step for draft in self._windows.drafts())]
        repeated = step_lengths.find_repeated([(step.attempt, step.number) for step in known])
        last: dict[int | None, int] = {
            step.number: place for place, step in enumerate(known) if step.number is not None and step.cost
        }
        final, between = self._judge.settle(), self._between_steps.settle()
        settled = []
        for place, step in enumerate(known):
            is_lost, cost = step.failed or place in repeated, step.cost
            if cost is not None:
                cost = lose(cost) if is_lost else cost
                if last.get(step.number) == place and step.number in self._unused:
                    wasted = Counter(cost.wasted_tokens) + Counter(self._unused[step.number])
                    cost = cost._replace(wasted_tokens=dict(wasted))
            verdicts = self._find_verdicts(step, final.get(step.trace_id, ()), between.get(step.trace_id, ()))
            settled.append(step._replace(verdicts=verdicts, repeated=place in repeated, cost=cost))
        rest = sum((Counter(tokens) for number, tokens in self._unused.items() if number not in last), Counter[str]())
        return tuple(settled), dict(rest)

    def _find_verdicts(
        self, step: Step, final: tuple[Verdict, ...], between: tuple[Verdict, ...]
    ) -> tuple[Verdict, ...]:
        """Return the verdicts on a step at the end of the run: on what it waited for, on what blocked that, and on what followed it."""
        blocked = self._blocked.get(step.trace_id, Blocked())
        verdicts = blocked_loops.drop_explained(step, final, blocked)
        if not step.interrupted:
            own = (*verdicts, *blocked.verdicts) or tuple(filter(None, (blocked.starved,)))
            verdicts = judge.sort((*own, *between))
        until_ns = max(step.end_ns, step.open_ns or step.next_ns)
        pauses = self._blocked_loops.find_pauses(step.start_ns, until_ns) if verdicts else {}
        stood = self._blocked_loops.find_stood(step.start_ns, until_ns) if verdicts else []
        verdicts = blocked_loops.name_pauses(step, verdicts, pauses, blocked.starved_share)
        named = standing.name_lines(step, verdicts, stood)
        return tuple(one._replace(instance="") if _may_be_another(step, one) else one for one in named)

    def _count(self) -> Counts:
        outside = self._outside.total() if self._has_own_steps else 0
        processes = len(self.traces.writers.resources)
        return Counts(**{**self._counts, "spans": self.traces.count, "processes": processes, "outside": outside})

    def _describe_outside(self) -> Iterator[str]:
        """Yield a sentence on each kind of call of an own loop that began in no trajectory and no step."""
        for name, count in self._outside.most_common() if self._has_own_steps else ():
            yield (
                f"{counted(count, 'call')} of {timeline.name_call(name)} began outside of every trajectory and step: "
                "a thread or an executor does not take the context over, verl_otel.bind_context does"
            )


def _may_be_another(step: Step, verdict: Verdict) -> bool:
    """Return whether several ranks took as long in a phase that was slow: the process of the verdict may have waited for another one."""
    return verdict.kind == "phase" and (verdict.alike or step.is_shared)


def add_rewards(series: tuple[Series, ...], steps: Sequence[Step], *, is_distributed: bool) -> tuple[Series, ...]:
    """Return the scalars with the mean reward of steps of an own loop whose trajectories other processes ran.

    Each rank of a distributed loop records the mean of its own ones only.
    """
    recorded = next((one for one in series if one.name == AVERAGE_REWARD), Series(AVERAGE_REWARD, (), (), ()))
    is_partial = is_distributed and any(step.reward is not None for step in steps)
    known = {} if is_partial else dict(zip(recorded.times_ns, recorded.values, strict=True))
    found = {step.end_ns: step.reward for step in steps if step.reward is not None and step.end_ns not in known}
    if not found:
        return series
    times, values = zip(*sorted({**known, **found}.items()), strict=True)
    others = (one for one in series if one is not recorded and not (is_partial and one.name == AVERAGE_REWARD))
    return (*others, recorded._replace(times_ns=times, values=values))


# -- readers --


def read(
    folders: Iterable[Path],
    *,
    steps: frozenset[int] | None = None,
    progress: Progress | None = None,
    keep_after: float = KEPT_SECONDS,
) -> tuple[Explanation, RunReader]:
    """Explain a run; return its reader, too.

    Args:
        folders: The folder of the run, or one folder per node.
        steps: Numbers of steps whose detail is kept; a short run keeps the detail of all steps.
        progress: Called after each part that was read.
        keep_after: How far it was read is kept for the next call if that took at least this many seconds.

    Raises:
        FileNotFoundError: A folder does not exist or contains no file of a run.
    """
    places, asked = run_files.check_folders(folders), steps or frozenset()
    was_on = gc.isenabled()
    gc.disable()  # nothing here creates cycles, and searching for them takes a third of the time
    try:
        run = resume(places)
        while True:
            is_whole = run is None
            run = run or begin(places)
            started = time.monotonic()
            run.ask(asked)
            run.look()
            while run.is_behind:
                run.read(PIECE_BYTES)
                if progress is not None:
                    progress(*run.progress())
            if time.monotonic() - started >= keep_after:
                saved_state.save(run.folders, COMMAND, run)
            run.finish()
            explanation = run.explain()
            if is_whole or not asked & {step.number for step in explanation.steps if not step.path}:
                return explanation, run
            run = None  # the detail of these steps was given up before it was asked for
    finally:
        if was_on:
            gc.freeze()
            # Moves all new objects to the oldest generation: the next collection does not scan a million of them.
            gc.unfreeze()
            gc.enable()


def begin(
    folders: Iterable[Path],
    limits: Limits = COMMAND_LIMITS,
    room: Room = WHOLE,
) -> RunReader:
    """Return a reader of a run of which nothing has been read.

    Args:
        folders: The folder of the run, or one for each node.
        limits: How much of the run is kept.
        room: How many scalars are kept.
    """
    places = tuple(folders)
    manifest = run_files.read_manifest(places)
    engine = str(manifest.get(attr.ENGINE, ""))
    return RunReader(
        traces=WholeTraces(FollowedFiles(places, "traces"), manifest),
        _metrics=FollowedFiles(places, "metrics"),
        _limits=limits,
        _columns=Columns(room),
        _tally=Tally(engine),
        _steps=Steps(limits),
        _recent_steps=RecentSteps(limits.replayed),
        _windows=Windows(list(find_restarts(manifest)), find_start(manifest)),
    )


def begin_page(folders: Iterable[Path]) -> RunReader:
    """Return a reader for a page, which keeps less; one that was saved, by a command or another page, is continued."""
    places = tuple(folders)
    return resume(places) or resume(places, PAGE) or begin(places, PAGE_LIMITS, SMALL)


def resume(folders: Sequence[Path], name: str = COMMAND) -> RunReader | None:
    """Return the saved reader of a run, which has looked for new lines; None: there is none, or the files changed."""
    reader = saved_state.load(folders, name, RunReader)
    return reader if reader is not None and reader.continue_in(tuple(folders)) else None
