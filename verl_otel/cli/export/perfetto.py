# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write a run as a trace for Perfetto: a timeline of nodes, processes, steps and trajectories.

Open the file in https://ui.perfetto.dev (nothing is uploaded) or query it with Perfetto's trace processor. It holds the steps with their verdicts,
the critical path, the GPU time of each step, every span, stalls, and metrics as counters.

A run with more spans than --spans is cut: steps are complete, and of the trajectories the slowest are. The command reports what is left out.

Examples:
  verl-otel export perfetto
  verl-otel export perfetto RUN --steps 10-20 --output steps.pftrace
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal.printable import counted, show
from verl_otel.analysis.model import Process, Step
from verl_otel.analysis.run import FOREVER
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.cli import options, run_selection
from verl_otel.errors import VerlOtelError
from verl_otel.model import SpanRecord

DEFAULT_SPANS: Final = 250_000
"""Spans of an export: 400 bytes each in the file, and the viewer stays quick."""
_BATCH: Final = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the format."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=options.count, metavar="N", help="export this step only")
    which.add_argument("--steps", type=options.step_range, metavar="N-M", help="export these steps only")
    parser.add_argument(
        "--spans",
        type=options.positive,
        default=DEFAULT_SPANS,
        metavar="N",
        help=f"maximum number of spans ({DEFAULT_SPANS:,})",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write (<run id>.pftrace in the current folder)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the trace. Returns 1 when the run has no spans."""
    from verl_otel.cli.export.perfetto_timeline import Timeline, TraceFile

    asked = None if arguments.steps is None else frozenset(arguments.steps)
    if arguments.step is not None:
        asked = frozenset({arguments.step})
    recorded = run_selection.open_run(arguments.folders, "export", steps=asked)
    explanation = recorded.explanation
    steps = [step for step in explanation.steps if asked is None or step.number in asked]
    if asked is not None and not steps:
        raise VerlOtelError(f"none of these steps is in the run: {_describe_steps(explanation.steps)}")
    begin_ns, end_ns = (0, FOREVER) if asked is None else _find_window(steps)
    selection = Selection(arguments.spans)
    selection.add_all(recorded.spans(begin_ns, end_ns))
    path: Path = arguments.output or Path(f"{explanation.run_id}.pftrace")
    with path.open("wb", buffering=_BATCH) as stream:
        file = TraceFile(stream, explanation.start_ns)
        timeline = Timeline(file)
        timeline.draw_steps(explanation, steps)
        timeline.draw_events(explanation, begin_ns, end_ns)
        timeline.draw_spans(selection.traces)
        left_out = timeline.draw_metrics(explanation, begin_ns, end_ns)
    spans = sum(map(len, selection.traces.values()))
    size = path.stat().st_size / 1e6
    print(f"{show(path, 2_000)}: {counted(len(steps), 'step')}, {counted(spans, 'span')}, {size:.1f} MB")
    print("open it in https://ui.perfetto.dev; the page reads it locally")
    _say_left_out(selection, left_out)
    return 0 if spans else 1


def _find_window(steps: Iterable[Step]) -> tuple[int, int]:
    """Return the start of the first and the end of the last step, in nanoseconds."""
    chosen = list(steps)
    return min(step.start_ns for step in chosen), max(step.end_ns for step in chosen)


def _describe_steps(steps: Iterable[Step]) -> str:
    """Return the numbers of the steps of a run in words."""
    numbers = sorted(step.number for step in steps if step.number is not None)
    return f"it has steps {numbers[0]} to {numbers[-1]}" if numbers else "it has no step that ended"


def _say_left_out(selection: Selection, counters: int) -> None:
    parts = []
    if selection.thinned:
        parts.append(f"of {counted(selection.thinned, 'fast trajectory', 'fast trajectories')} all but the root span")
    if selection.removed:
        parts.append(counted(selection.removed, "fast trajectory", "fast trajectories"))
    if counters:
        parts.append(f"{counted(counters, 'metric series', 'metric series')}")
    if parts:
        print(f"left out: {', '.join(parts)}; use --steps or --spans for more of them", file=sys.stderr)


# -- The spans that an export holds, in bounded memory: steps always, of trajectories the slowest --


class Written(NamedTuple):
    """A span and the process that wrote it."""

    process: Process
    span: SpanRecord


class Selection:
    """Collects spans by trace. Beyond the limit the fastest trajectories keep their root only; then they are removed.

    Args:
        limit: Maximum number of spans. Traces other than trajectories are kept in any case.
    """

    def __init__(self, limit: int) -> None:
        self.traces: dict[int, list[Written]] = {}
        self.thinned = 0
        """Number of trajectories of which only the root was kept."""
        self.removed = 0
        """Number of trajectories that were left out."""
        self._limit = limit
        self._count = 0
        self._whole: list[tuple[int, int]] = []
        """Heap of trajectories with all spans: duration, trace id."""
        self._roots: list[tuple[int, int]] = []
        """Heap of trajectories of which only the root is left."""
        self._dropped: set[int] = set()
        self._fastest = [-1, -1]
        """Durations up to which trajectories are thinned, and left out: those of earlier ones that were."""

    def add_all(self, spans: Iterable[tuple[Process, SpanRecord]]) -> None:
        """Add spans in the order in which they were written."""
        for process, span in spans:
            self._add(Written(process, span))

    def _add(self, written: Written) -> None:
        span = written.span
        is_root = span.name == TRAJECTORY and not span.parent_id
        if span.trace_id in self._dropped and not is_root:
            return
        self.traces.setdefault(span.trace_id, []).append(written)
        self._count += 1
        if is_root:
            heapq.heappush(self._whole, (span.end_ns - span.start_ns, span.trace_id))
        self._shrink()

    def _shrink(self) -> None:
        """Leave out spans of the fastest trajectories until the rest fits; one as fast as these is never kept instead."""
        while self._whole and (self._count > self._limit or self._whole[0][0] <= self._fastest[0]):
            self._thin(*heapq.heappop(self._whole))
        while self._roots and (self._count > self._limit or self._roots[0][0] <= self._fastest[1]):
            self._remove(*heapq.heappop(self._roots))

    def _thin(self, duration: int, trace_id: int) -> None:
        members = self.traces[trace_id]
        roots = self.traces[trace_id] = [one for one in members if not one.span.parent_id]
        self._count -= len(members) - len(roots)
        self._fastest[0] = max(self._fastest[0], duration)
        self._dropped.add(trace_id)
        self.thinned += 1
        heapq.heappush(self._roots, (duration, trace_id))

    def _remove(self, duration: int, trace_id: int) -> None:
        self._count -= len(self.traces.pop(trace_id))
        self._fastest[1] = max(self._fastest[1], duration)
        self.thinned -= 1
        self.removed += 1
