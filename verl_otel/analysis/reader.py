# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a run piece by piece, while it is written or afterwards, in bounded memory, however long it was.

A reader can be saved at any time, and continued by another process. What has not ended yet is not final: the last steps
have no GPU time and no cost before `RunReader.finish`, because these belong to the time up to the next step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from verl_otel._internal import rotated_files
from verl_otel.analysis import saved_state, whole_run
from verl_otel.analysis.aggregator import Aggregator
from verl_otel.analysis.bounded_steps import Limits, RecentSteps, Steps
from verl_otel.analysis.gpu import devices
from verl_otel.analysis.io import completeness, run_files, run_status
from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.followed_files import FollowedFiles
from verl_otel.analysis.io.run_files import Extent, Writers, name_host, name_instance
from verl_otel.analysis.model import Event, Explanation, OpenSpan, Process, Series, Step
from verl_otel.analysis.scalars import SMALL, WHOLE, Columns, Room
from verl_otel.analysis.traces import clocks, timeline
from verl_otel.analysis.traces.clocks import Context
from verl_otel.analysis.windows import Windows, find_restarts, find_start
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import AVERAGE_REWARD, RUN_STATE

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
AHEAD_BYTES: Final = 16 << 20
"""Bytes of a run on several hosts that are searched for bounds on clock offsets before it is read, beside a chunk of each file."""

Progress = Callable[[int, int], None]
"""Called with the number of bytes read and the total."""


class RunReader(msgspec.Struct, dict=True):
    """One run; it may grow, end, be killed, or be deleted meanwhile. Its fields are what is saved."""

    traces: FollowedFiles
    _metrics: FollowedFiles
    _aggregator: Aggregator
    _sampled: bool = False
    """Whether the beginning was searched for bounds."""

    def __post_init__(self) -> None:
        """Begin before the first look."""
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
        return self.traces.folders

    @property
    def is_behind(self) -> bool:
        """Whether there were unread lines at the last look."""
        return self.traces.is_behind or self._metrics.is_behind

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes read, and of all."""
        (read, size), (more_read, more_size) = self.traces.progress(), self._metrics.progress()
        return read + more_read, size + more_size

    def look(self) -> None:
        """Look for new files, new lines and new events.

        The events come last: a stall that is over must be known before the spans that follow it are read. So do the
        open spans: one that has ended by now has its end in a line that has not been read.
        """
        self._register(self.traces.look())
        self._metrics.look()
        problems = [*self.traces.problems, *self._metrics.problems]
        self._aggregator.note_open(run_files.read_open(self.folders, self._aggregator.writers, problems))
        run_events = run_files.read_events(self.folders, problems)
        self._problems = tuple(problems)
        if run_events != self._events:
            self._events = run_events
            self._aggregator.set_events(run_events)
            self.version += 1

    def continue_in(self, folders: tuple[Path, ...]) -> bool:
        """Go on after it was saved; return whether all that was read is still there, and no attempt was added."""
        self.traces.folders = self._metrics.folders = folders
        read, _ = self.progress()
        self.look()
        return self.progress()[0] == read and not self.has_other_attempts()

    def _register(self, added: Iterable[Path]) -> None:
        """Register processes from the first and the last line of each file: resources are complete in the last one."""
        writers, by_file = self._aggregator.writers, dict[Path, list[Path]]()
        for path in added:
            by_file.setdefault(path.parent / rotated_files.whole_name(path), []).append(path)
        for parts in by_file.values():
            ends = [*run_files.find_ends(parts[0])[:1], *run_files.find_ends(parts[-1])[-1:]]
            for process, spans in run_files.read_spans(ends, writers, []):
                writers.note_alive(process, max((span.end_ns for span in spans), default=0))

    def has_other_attempts(self) -> bool:
        """Return whether the run was continued since: the steps of an attempt are known before they are read."""
        return find_restarts(run_files.read_manifest(self.folders)) != find_restarts(self._aggregator.manifest)

    def read(self, budget: int = PAGE_BYTES) -> None:
        """Read new lines of about this many bytes, the scalars before the spans."""
        if self.is_finished:
            return
        run, steps = self._aggregator, self._aggregator.step_count
        scalars = self._metrics.take(budget).extents
        self._add_scalars(scalars)
        self._look_ahead()
        piece = self.traces.take(budget)
        self.traces.note(run.add(piece))
        self._estimate_clocks()
        self.version += bool(scalars or piece.extents or run.step_count != steps)

    def _add_scalars(self, extents: Iterable[Extent]) -> None:
        run = self._aggregator
        for process, points in run_files.read_points(extents, run.writers, run.problems):
            run.columns.add(points, name_instance(run.writers.resources[process]))
            run.writers.note_alive(process, max((point.time_ns for point in points), default=0))

    def finish(self) -> None:
        """Complete the last steps of a run that was read to its end. Lines without an end are read, too."""
        if not self.is_finished:
            self._add_scalars(self._metrics.take_rest().extents)
            self.traces.note(self._aggregator.add(self.traces.take_rest()))
            self._aggregator.finish(self.open_spans())
            self.is_finished = True
            self.version += 1

    def ask(self, numbers: frozenset[int]) -> None:
        """Name the steps that `explain` returns with their detail, however many there are."""
        self._aggregator.steps.asked = numbers

    def open_spans(self) -> list[OpenSpan]:
        """Return the spans that had not ended when they were last written; of a run that is finished, those that never did."""
        if self.is_finished:
            return self._aggregator.opened
        return run_files.read_open(self.folders, self._aggregator.writers, [])

    def processes(self, opened: Iterable[OpenSpan]) -> tuple[Process, ...]:
        """Return the processes that wrote the files.

        Args:
            opened: Spans that have not ended.
        """
        run = self._aggregator
        with_open = {open_span.process for open_span in opened}
        return tuple(
            Process(Resource(values), run.set_clock(index, newest), index not in with_open)
            for index, (values, _, newest) in enumerate(run.writers.processes())
        )

    def explain(self) -> Explanation:
        """Return everything that is known so far."""
        run = self._aggregator
        run.manifest = {**run.manifest, **run_files.read_manifest(self.folders)}
        opened = self.open_spans()
        manifest, host_clocks = run.manifest, run.context.clocks
        problems = [*self._problems, *run.problems]
        processes = self.processes(opened)
        series = run.columns.series()
        problems += run.describe_outside()
        if run.columns.left_out:
            problems.append(f"{run.columns.left_out} values of more series than are kept were left out")
        problems += filter(None, [whole_run.describe_lost(series, find_restarts(manifest))])
        problems += clocks.describe_unknown(host_clocks)
        run_id = manifest.get("run_id") or (
            processes[0].resource.text(attr.RUN_ID) if processes else self.folders[0].name
        )
        steps, unused = run.settled_steps()
        steps = whole_run.name_reads(steps, series, find_restarts(manifest))
        series = add_rewards(series, steps, is_distributed=run.is_distributed)
        start_ns, end_ns = run.begin_ns, run.end_ns
        if not start_ns:  # without spans, those of its events and scalars
            times = [event.time_ns for event in self._events if event.time_ns]
            times += [time_ns for one in series if one.times_ns for time_ns in (one.times_ns[0], one.times_ns[-1])]
            start_ns, end_ns = min(times, default=0), max(times, default=0)
        resources = [process.resource for process in processes]
        has_gpu = devices.has_gpu(resources, (scalar.name for scalar in series), manifest)
        if has_gpu and not run.devices() and devices.UNKNOWN_GPUS not in problems:
            problems.append(devices.UNKNOWN_GPUS)
        recorded = [(one.times_ns[-1], one.values[-1]) for one in series if one.name == RUN_STATE]
        # Whether it is alive is judged by what it wrote lately: its processes may be on another host.
        age = time.time() - max((process.newest_ns for process in processes), default=0) / 1e9
        gaps = completeness.find(run.tally, processes, opened, manifest)
        return Explanation(
            run_id=str(run_id),
            folders=tuple(map(str, self.folders)),
            manifest=dict(manifest),
            state=run_status.find_state(
                manifest, max(recorded, default=(0, None))[1], self._events, lambda: age < run_status.RUNNING_SECONDS
            ),
            start_ns=start_ns,
            end_ns=end_ns,
            counts=run.counts(),
            steps=steps,
            validations=tuple(run.validations),
            slowest=tuple(map(timeline.with_parts, run.slowest.all())),
            devices=run.devices(),
            events=self._events,
            series=series,
            completeness=gaps,
            problems=tuple(problems),
            offsets=tuple((host, clock.largest, clock.uncertainty) for host, clock in sorted(host_clocks.items())),
            unused=unused,
            has_gpu=has_gpu,
            recent_steps=run.recent_steps.all(),
            start_ups=tuple(run.start_ups),
        )

    # -- clocks --

    def _look_ahead(self) -> None:
        """Search the beginning of a run on several hosts for bounds on the offsets of clocks."""
        if self._sampled or not self.traces.is_behind:
            return
        self._sampled = True
        if len(self._list_hosts()) > 1:
            ahead = FollowedFiles(self.folders, "traces")
            ahead.look()
            writers = Writers()
            extents = ahead.take(AHEAD_BYTES + ahead.round_bytes).extents
            self._aggregator.bounds.add(
                (span, name_host(writers.resources[process]))
                for process, spans in run_files.read_spans(extents, writers, [])
                for span in spans
            )
            self._estimate_clocks()

    def _list_hosts(self) -> set[str]:
        return set(map(name_host, self._aggregator.writers.resources))

    def _estimate_clocks(self) -> None:
        """Estimate the clock of each host again, if there are new bounds or hosts."""
        run, hosts = self._aggregator, self._list_hosts()
        is_spread = len(hosts) > 1
        if not is_spread or (not run.bounds.are_new and hosts <= run.context.clocks.keys()):
            return
        resources = run.writers.resources
        trainers = [values for values in resources if values.get(attr.ROLE) == "trainer"]
        reference = name_host((trainers or resources)[0])
        run.context = run.context._replace(
            clocks=run.bounds.estimate(reference, hosts),
            hosts={name_instance(values): str(values.get(attr.HOST_NAME)) for values in resources},
        )


# -- What an aggregator has taken, as an explanation --


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
        run = resume(places) or begin(places)
        explanation = _read_rest(run, asked, progress, keep_after)
        if {step.number for step in explanation.steps if not step.path} & asked:
            run = begin(places)
            explanation = _read_rest(run, asked, progress, keep_after)
        return explanation, run
    finally:
        if was_on:
            gc.freeze()
            # Moves all new objects to the oldest generation: the next collection does not scan a million of them.
            gc.unfreeze()
            gc.enable()


def _read_rest(run: RunReader, asked: frozenset[int], progress: Progress | None, keep_after: float) -> Explanation:
    begin = time.monotonic()
    run.ask(asked)
    run.look()
    while run.is_behind:
        run.read(PIECE_BYTES)
        if progress is not None:
            progress(*run.progress())
    if time.monotonic() - begin >= keep_after:
        saved_state.save(run.folders, COMMAND, run)
    run.finish()
    return run.explain()


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
    run = Aggregator(
        manifest=manifest,
        context=Context(engine),
        limits=limits,
        columns=Columns(room),
        tally=Tally(engine),
        steps=Steps(limits),
        recent_steps=RecentSteps(limits.replayed),
        _windows=Windows(list(find_restarts(manifest)), find_start(manifest)),
    )
    return RunReader(FollowedFiles(places, "traces"), FollowedFiles(places, "metrics"), run)


def begin_page(folders: Iterable[Path]) -> RunReader:
    """Return a reader for a page, which keeps less; one that was saved, by a command or another page, is continued."""
    places = tuple(folders)
    return resume(places) or resume(places, PAGE) or begin(places, PAGE_LIMITS, SMALL)


def resume(folders: Sequence[Path], name: str = COMMAND) -> RunReader | None:
    """Return the saved reader of a run, which has looked for new lines; None: there is none, or the files changed."""
    reader = saved_state.load(folders, name, RunReader)
    return reader if reader is not None and reader.continue_in(tuple(folders)) else None
