# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explain a run from its files, in one pass and in bounded memory, however long it was."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import rotated_files
from verl_otel.analysis import kept_results, slice_summary
from verl_otel.analysis.aggregator import Aggregator
from verl_otel.analysis.gpu import devices
from verl_otel.analysis.io import completeness, run_files, run_status
from verl_otel.analysis.io.run_files import Extent, Slice, Writers
from verl_otel.analysis.model import Event, Explanation, Process, Series
from verl_otel.analysis.slice_summary import Context, SliceSummary
from verl_otel.analysis.traces import clocks, timeline
from verl_otel.analysis.traces.clocks import Bound, Clock
from verl_otel.model import Resource, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import RUN_STATE

PARALLEL_BYTES: Final = 64 << 20
"""Size below which one process reads a run: it takes a second, less than starting others."""
KEPT_SECONDS: Final = 5.0
"""What took longer to find is kept."""
RUNNING_SECONDS: Final = 15.0
"""A run whose files were written less than this long ago is still running."""
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 8 << 20
"""Samples from which the clock offsets of a long run on several hosts are estimated: 16 times 8 MiB."""

Progress = Callable[[int, int], None]
"""Called with the number of bytes read and the total."""


def explain(
    folders: Iterable[Path],
    *,
    steps: frozenset[int] | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
    keep_after: float = KEPT_SECONDS,
) -> Explanation:
    """Explain a run.

    Args:
        folders: The folder of the run, or one folder per node.
        steps: Numbers of steps whose detail is kept; a short run keeps the detail of all steps.
        progress: Called after each part that was read.
        processes: Number of worker processes; None: the number of cores if the run is large, else 0.
        keep_after: The result is kept for the next call if it took at least this many seconds and all steps were asked for.

    Raises:
        FileNotFoundError: A folder does not exist or contains no file of a run.
    """
    places = run_files.check_folders(folders)
    kept = kept_results.load(places, steps)
    if kept is not None:
        return kept
    begin, files = time.monotonic(), kept_results.sign(places)
    run = _explain(places, steps, progress, processes)
    if steps is None and time.monotonic() - begin >= keep_after:
        kept_results.save(places, files, run)
    return run


def _explain(
    places: Sequence[Path], steps: frozenset[int] | None, progress: Progress | None, processes: int | None
) -> Explanation:
    manifest = run_files.read_manifest(places)
    paths = run_files.find_files(places, "traces")
    writers, problems = Writers(), list[str]()
    _register_processes(paths, writers)
    opened = run_files.read_open(places, writers, problems)
    pieces = run_files.cut(paths)
    bounds = (bound for sample in _sample(pieces) for bound in clocks.find_bounds(read_sample(sample)))
    host_clocks = estimate_clocks(bounds, writers)
    open_traces = frozenset(open_span.span.trace_id for open_span in opened)
    context = Context(str(manifest.get(attr.ENGINE, "")), host_clocks, open_traces, map_hosts(writers))
    aggregator = Aggregator(writers, manifest, context, opened, steps)
    run_events = run_files.read_events(places, problems)
    aggregator.set_events(run_events)
    aggregator.problems += [problem for problem in problems if problem not in aggregator.problems]
    metrics = run_files.split(run_files.find_files(places, "metrics"))
    with _without_collection():
        _read(aggregator, metrics, pieces, processes, progress)
        aggregator.finish()
        return describe(places, manifest, aggregator, host_clocks, run_events)


def _read(
    aggregator: Aggregator,
    metrics: Sequence[Sequence[Extent]],
    pieces: Sequence[Slice],
    processes: int | None,
    progress: Progress | None,
) -> None:
    """Add metrics and slices to an aggregator."""
    sizes = [sum(extent.end - extent.begin for extent in extents) for extents in metrics]
    sizes += [piece.size for piece in pieces]
    if processes is None:
        processes = run_files.count_workers() if sum(sizes) > PARALLEL_BYTES else 0
    watermarks = [0] * len(metrics) + [piece.end_ns for piece in pieces]
    summaries = run_files.map_ordered(partial(_summarise, aggregator.context), [*metrics, *pieces], processes)
    bytes_read = 0
    for summary, size, watermark_ns in zip(summaries, sizes, watermarks, strict=True):
        aggregator.add(summary, watermark_ns)
        bytes_read += size
        if progress is not None:
            progress(bytes_read, sum(sizes))


def _summarise(context: Context, task: Slice | Sequence[Extent]) -> SliceSummary:
    return (
        slice_summary.summarise_spans(task, context)
        if isinstance(task, Slice)
        else slice_summary.summarise_metrics(task)
    )


@contextmanager
def _without_collection() -> Iterator[None]:
    """Suspend the garbage collector: nothing here creates cycles, and searching for them takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.unfreeze()  # moves all new objects to the oldest generation, so that the next collection does not scan a million of them
            gc.enable()


def _register_processes(paths: Iterable[Path], writers: Writers) -> None:
    """Register the processes of a run from the first and the last line of each file with its parts: resources are complete in the last one."""
    by_file: dict[Path, list[Path]] = {}
    for path in paths:
        by_file.setdefault(path.parent / rotated_files.whole_name(path), []).append(path)
    for parts in by_file.values():
        ends = [*run_files.find_ends(parts[0])[:1], *run_files.find_ends(parts[-1])[-1:]]
        for process, spans in run_files.read_spans(ends, writers, []):
            writers.note_alive(process, max((span.end_ns for span in spans), default=0))


# -- clocks --


def map_hosts(writers: Writers) -> dict[str, str]:
    """Return the host of each process, by its instance."""
    return {slice_summary.name_instance(values): str(values.get(attr.HOST_NAME)) for values in writers.resources}


def estimate_clocks(bounds: Iterable[Bound], writers: Writers) -> dict[str, Clock]:
    """Return the clock of each host; empty where there is only one host, which has no offset to estimate.

    Args:
        bounds: Bounds on the offsets; not read where there is only one host.
        writers: The processes of the run.
    """
    hosts = {str(resource.get(attr.HOST_NAME, "")) for resource in writers.resources}
    if len(hosts) < 2:  # noqa: PLR2004 - no offset
        return {}
    trainers = [resource for resource in writers.resources if resource.get(attr.ROLE) == "trainer"]
    reference = str((trainers or writers.resources)[0].get(attr.HOST_NAME, ""))
    return clocks.estimate(bounds, reference, hosts)


def _sample(pieces: Sequence[Slice]) -> Iterator[tuple[Extent, ...]]:
    if len(pieces) <= _SAMPLES // 2:
        yield from (piece.extents for piece in pieces)
        return
    for number in range(_SAMPLES):
        extents = pieces[number * len(pieces) // _SAMPLES].extents
        room = max(1 << 16, _SAMPLE_BYTES // max(1, len(extents)))
        yield tuple(extent._replace(end=min(extent.end, extent.begin + room)) for extent in extents)


def read_sample(extents: Iterable[Extent]) -> Iterator[tuple[SpanRecord, str]]:
    """Yield the spans of parts of files with the hosts that wrote them."""
    writers = Writers()
    for process, spans in run_files.read_spans(extents, writers, []):
        host = str(writers.resources[process].get(attr.HOST_NAME, ""))
        yield from ((span, host) for span in spans)


# -- the result --


def describe(
    folders: Sequence[Path],
    manifest: Mapping[str, Any],
    aggregator: Aggregator,
    host_clocks: Mapping[str, Clock],
    run_events: tuple[Event, ...],
) -> Explanation:
    """Return the explanation of what an aggregator has taken so far.

    Args:
        folders: The folders of the run.
        manifest: The run's manifest.
        aggregator: It is not changed, and may take more afterwards.
        host_clocks: The clock of each host; empty where there is only one.
        run_events: The run's stalls and crashes.
    """
    problems = list(aggregator.problems)
    processes = _processes(aggregator)
    series = aggregator.columns.series()
    problems += aggregator.describe_outside()
    if aggregator.columns.left_out:
        problems.append(f"{aggregator.columns.left_out} values of more series than are kept were left out")
    problems += [
        f"clocks: nothing tells how far that of {host} is from the trainer's"
        for host, clock in host_clocks.items()
        if not math.isfinite(clock.uncertainty)
    ]
    run_id = manifest.get("run_id") or (processes[0].resource.text(attr.RUN_ID) if processes else folders[0].name)
    steps, unused = aggregator.settled_steps()
    start_ns, end_ns = _bounds(aggregator, series, run_events)
    has_gpu = _check_gpus(aggregator, processes, series, manifest, problems)
    gaps = completeness.find(aggregator.tally, processes, aggregator.opened, manifest)
    return Explanation(
        run_id=str(run_id),
        folders=tuple(map(str, folders)),
        manifest=dict(manifest),
        state=_state(series, manifest, processes, run_events),
        start_ns=start_ns,
        end_ns=end_ns,
        counts=aggregator.counts(),
        steps=steps,
        validations=tuple(aggregator.validations),
        slowest=tuple(map(timeline.with_parts, aggregator.slowest.all())),
        devices=aggregator.devices(),
        events=run_events,
        series=series,
        completeness=gaps,
        problems=tuple(problems),
        offsets=tuple((host, clock.largest, clock.uncertainty) for host, clock in sorted(host_clocks.items())),
        unused=unused,
        has_gpu=has_gpu,
        recent_steps=aggregator.recent_steps.all(),
        start_ups=tuple(aggregator.start_ups),
    )


def _check_gpus(
    aggregator: Aggregator,
    processes: Iterable[Process],
    series: Iterable[Series],
    manifest: Mapping[str, Any],
    problems: list[str],
) -> bool:
    """Return whether the run has GPUs; adds a problem if it has some and nothing is known of their use."""
    resources = [process.resource for process in processes]
    has_gpu = devices.has_gpu(resources, (scalar.name for scalar in series), manifest)
    if has_gpu and not aggregator.devices() and devices.UNKNOWN_GPUS not in problems:
        problems.append(devices.UNKNOWN_GPUS)
    return has_gpu


def _bounds(aggregator: Aggregator, series: Iterable[Series], run_events: Iterable[Event]) -> tuple[int, int]:
    """Return the start and end of a run; without spans, those of its events and scalars. Zeros: it has none of them."""
    if aggregator.begin_ns:
        return aggregator.begin_ns, aggregator.end_ns
    times = [event.time_ns for event in run_events if event.time_ns]
    times += [time_ns for scalar in series if scalar.times_ns for time_ns in (scalar.times_ns[0], scalar.times_ns[-1])]
    return min(times, default=0), max(times, default=0)


def _processes(aggregator: Aggregator) -> tuple[Process, ...]:
    with_open = {open_span.process for open_span in aggregator.opened}
    return tuple(
        Process(Resource(values), aggregator.set_clock(index, newest), index not in with_open)
        for index, (values, newest) in enumerate(
            zip(aggregator.writers.resources, aggregator.writers.newest, strict=True)
        )
    )


def _state(
    series: Iterable[Series], manifest: Mapping[str, Any], processes: Iterable[Process], run_events: Iterable[Event]
) -> str:
    """Return the state of the run. Its files that were written lately are the sign of life: they may have been copied from another machine."""
    last = max(
        ((scalar.times_ns[-1], scalar.values[-1]) for scalar in series if scalar.name == RUN_STATE), default=None
    )
    recorded = None if last is None else last[1]
    age = time.time() - max((process.newest_ns for process in processes), default=0) / 1e9
    return run_status.find_state(manifest, recorded, run_events, lambda: age < RUNNING_SECONDS)
