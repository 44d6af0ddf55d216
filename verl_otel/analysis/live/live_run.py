# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run that is read while it is written. Its explanation is that of `summary.explain`, as far as the files have been read.

The aggregator takes the new lines of all files as one slice at a time. Only what is unfinished differs: the last steps have no GPU time and no
cost yet, because these belong to the time up to the next step.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from verl_otel.analysis import slice_summary, summary
from verl_otel.analysis.aggregator import Aggregator
from verl_otel.analysis.io import events, run_files
from verl_otel.analysis.io.run_files import Extent, Writers
from verl_otel.analysis.io.slices import Slice
from verl_otel.analysis.live.followed_files import FollowedFiles
from verl_otel.analysis.model import Event, Explanation, OpenSpan, Series
from verl_otel.analysis.retention import Limits
from verl_otel.analysis.scalars import Column, Columns, Key, sort
from verl_otel.analysis.slice_summary import Context
from verl_otel.analysis.traces import clocks
from verl_otel.analysis.traces.clocks import Bound
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import TRAINING_STEP

# -- Columns of scalars in bounded memory that are equally dense over the whole run, and end with the newest value --

MAX_SERIES: Final = 1_000
MAX_POINTS: Final = 1_000
"""Points of one series; of twice as many, every second one is dropped, and from then on every second one is taken."""
MAX_STEPS: Final = 100_000
"""Points of the series with the number of the step, on which the others depend."""


class LiveColumns(Columns):
    """Columns to which pieces of a growing run are added, in the order of time."""

    def __init__(self) -> None:
        super().__init__(MAX_SERIES, MAX_STEPS)
        self._strides: dict[Key, int] = {}
        self._passed: dict[Key, int] = {}
        """Number of values of each series so far."""
        self._newest: dict[Key, tuple[int, float]] = {}

    def merge(self, other: Columns) -> None:
        """Add the values of another instance."""
        self.left_out += other.left_out
        for key, (times, values) in other.columns():
            column = self._column(key)
            if column is None:
                self.left_out += len(times)
                continue
            stride, passed = self._strides.get(key, 1), self._passed.get(key, 0)
            begin = -passed % stride
            column[0].extend(times[begin::stride])
            column[1].extend(values[begin::stride])
            self._passed[key] = passed + len(times)
            if times:
                self._newest[key] = (times[-1], values[-1])
            if len(column[0]) > 2 * (MAX_STEPS if key[0] == TRAINING_STEP else MAX_POINTS):
                self._columns[key] = (column[0][::2], column[1][::2])
                self._strides[key] = 2 * stride

    def series(self) -> tuple[Series, ...]:
        """Return all series by name, each in the order of time, with its newest value, as arrays: a quarter of the size of tuples."""
        shared: dict[bytes, array[int]] = {}
        series = []
        for key, column in sorted(self._columns.items(), key=lambda item: item[0]):
            times, values = self._complete(key, *sort(*column))
            series.append(Series(*key, shared.setdefault(times.tobytes(), times), values))
        return tuple(series)

    def _complete(self, key: Key, times: array[int], values: array[float]) -> Column:
        """Return copies of a column's arrays, which grow, with the newest value."""
        time_ns, value = self._newest.get(key, (0, 0.0))
        if not times or time_ns <= times[-1]:
            return times[:], values[:]
        return times + array("q", (time_ns,)), values + array("d", (value,))


# -- A run that is read while it is written. Its explanation is that of `summary.explain`, as far as the files have been read --

PIECE_BYTES: Final = 256 << 10
"""Bytes that are read at a time: about 1,500 spans, 3 MB as objects."""
LIMITS: Final = Limits(waiting=4_000, spent=200, replayed=0, detailed=50, slowest=20, packed=True)
MAX_BOUNDS: Final = 20_000
"""Bounds on clock offsets that are kept."""
FULL_PIECES: Final = 32
SAMPLED: Final = 8
"""After so many pieces only every eighth is searched for bounds on clock offsets."""


class LiveRun:
    """One run; it may grow, end, be killed, or be deleted meanwhile.

    Args:
        folders: Its folder, or one for each node.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders: Final = tuple(folders)
        self._traces = FollowedFiles(self.folders, "traces")
        self._metrics = FollowedFiles(self.folders, "metrics")
        self._manifest = run_files.read_manifest(self.folders)
        self._context = Context(str(self._manifest.get(attr.ENGINE, "")))
        self._writers = Writers()
        self._aggregator = Aggregator(self._writers, self._manifest, self._context, limits=LIMITS)
        self._aggregator.columns = LiveColumns()
        self._bounds: deque[Bound] = deque(maxlen=MAX_BOUNDS)
        self._pieces = 0
        self._events: tuple[Event, ...] = ()
        self.is_finished = False
        """Whether `finish` was called. What the run writes later is not read: it needs another instance."""
        self.version = 0
        """Changes whenever something new was read."""

    @property
    def is_behind(self) -> bool:
        """Whether there were unread lines at the last look."""
        return self._traces.is_behind or self._metrics.is_behind

    def progress(self) -> tuple[int, int]:
        """Return the number of bytes read, and of all."""
        (read, size), (more_read, more_size) = self._traces.progress(), self._metrics.progress()
        return read + more_read, size + more_size

    def look(self) -> None:
        """Look for new files, new lines and new events.

        The events come last: a stall that is over must be known before the spans that follow it are read.
        """
        self._traces.look()
        self._metrics.look()
        run_events = events.read(self.folders, [])
        if run_events != self._events:
            self._events = run_events
            self._aggregator.blocked_loops.set_events(run_events)
            self.version += 1

    def read(self, budget: int = PIECE_BYTES) -> None:
        """Read new lines of about this many bytes, the scalars before the spans."""
        if self.is_finished:
            return
        scalars = self._metrics.take(budget).extents
        if scalars:
            self._aggregator.add(slice_summary.summarise_metrics(scalars), 0)
            self.version += 1
        piece = self._traces.take(budget)
        if piece.extents:
            self._measure_clocks(piece.extents)
            self.version += 1
        part = Slice(piece.begin_ns, piece.watermark_ns, piece.extents)
        steps = self._aggregator.step_count
        self._aggregator.add(slice_summary.summarise_spans(part, self._context), piece.watermark_ns)
        self.version += self._aggregator.step_count != steps

    def finish(self) -> None:
        """Complete the last steps of a run that has ended and was read to its end."""
        if not self.is_finished:
            self._aggregator.opened = []
            self._aggregator.finish(self.open_spans())
            self.is_finished = True
            self.version += 1

    def open_spans(self) -> list[OpenSpan]:
        """Return the spans that had not ended when they were last written."""
        return run_files.read_open(self.folders, self._writers, [])

    def explain(self) -> Explanation:
        """Return everything that is known so far."""
        self._manifest |= run_files.read_manifest(self.folders)
        if not self.is_finished:
            self._aggregator.opened = self.open_spans()
        return summary.describe(self.folders, self._manifest, self._aggregator, self._context.clocks, self._events)

    def _measure_clocks(self, extents: tuple[Extent, ...]) -> None:
        """Estimate the clocks of a run on several hosts, from all pieces in the beginning and from some later."""
        self._pieces += 1
        if self._pieces > FULL_PIECES and self._pieces % SAMPLED:
            return
        if len({resource.get(attr.HOST_NAME) for resource in self._writers.resources}) > 1:
            self._bounds.extend(clocks.find_bounds(summary.read_sample(extents)))
            host_clocks = summary.estimate_clocks(self._bounds, self._writers)
            self._context = self._context._replace(clocks=host_clocks, hosts=summary.map_hosts(self._writers))
            self._aggregator.set_context(self._context)
