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

from verl_otel.analysis import clocks, digest, events, gaps, reader, slices, workers
from verl_otel.analysis.clocks import Clock
from verl_otel.analysis.digest import Context, Digest
from verl_otel.analysis.facts import Event, Explanation, Series
from verl_otel.analysis.fold import Fold
from verl_otel.analysis.packing import unpack
from verl_otel.analysis.reader import Extent, Process, Writers
from verl_otel.analysis.slices import Slice
from verl_otel.model import Resource, SpanRecord
from verl_otel.semconv import attributes as attr

PARALLEL_BYTES: Final = 64 << 20
"""Runs below this are read by one process: it takes a second, and others would first have to be started."""
RUNNING_SECONDS: Final = 15.0
"""Files that were written so recently belong to a run that is still going."""
NO_END: Final = "no end seen"
"""State of a run of which nobody says that it ended, and that is too old to be going on."""
_STATES: Final = {1.0: NO_END, 2.0: "finished", 3.0: "failed"}
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 8 << 20
"""How much of a long run on several hosts is looked at to find how far their clocks are apart: 16 times 8 MiB."""

Progress = Callable[[int, int], None]
"""Is told how many bytes were read, and of how many."""


def explain(
    folders: Iterable[Path],
    *,
    steps: frozenset[int] | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
) -> Explanation:
    """Explain a run.

    Args:
        folders: The run's folder, or one folder for each node.
        steps: Numbers of steps of which all detail is to be kept; of a short run it is kept of all.
        progress: Is called after each part that was read.
        processes: How many processes help; None: as many as there are cores, if the run is long.

    Raises:
        FileNotFoundError: A folder does not exist or holds no file of ours.
    """
    places = reader.check_folders(folders)
    manifest = reader.read_manifest(places)
    paths = reader.find_files(places, "traces")
    writers, problems = Writers(), list[str]()
    _meet(paths, writers)
    opened = reader.read_open(places, writers, problems)
    pieces = slices.cut(paths)
    known = _set_clocks(pieces, writers)
    hosts = {digest.name_instance(values): str(values.get(attr.HOST_NAME)) for values in writers.resources}
    open_traces = frozenset(each.span.trace_id for each in opened)
    context = Context(str(manifest.get("verl.engine", "")), known, open_traces, hosts)
    fold = Fold(writers, manifest, context, opened, steps)
    fold.problems += problems
    metrics = slices.split(reader.find_files(places, "metrics"))
    sizes = [sum(each.end - each.begin for each in extents) for extents in metrics] + [each.size for each in pieces]
    if processes is None:
        processes = workers.count() if sum(sizes) > PARALLEL_BYTES else 0
    marks = [0] * len(metrics) + [piece.end_ns for piece in pieces]
    with _without_collection():
        digests = workers.each(partial(_digest, context), [*metrics, *pieces], processes)
        read = 0
        for found, size, mark in zip(digests, sizes, marks, strict=True):
            fold.add(found, mark)
            read += size
            if progress is not None:
                progress(read, sum(sizes))
        fold.finish()
        return _describe(places, manifest, fold, known)


def _digest(context: Context, task: Slice | Sequence[Extent]) -> Digest:
    return digest.digest_spans(task, context) if isinstance(task, Slice) else digest.digest_metrics(task)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Hold the garbage collector: nothing here makes circles, and looking for them takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.unfreeze()  # all that was made is old now, unseen: the next look for circles is not at a million objects
            gc.enable()


def _meet(paths: Iterable[Path], writers: Writers) -> None:
    """Meet the processes of a run: each file begins with what its process knew of itself then, and ends with the rest."""
    for path in paths:
        edges = slices.find_ends(path)
        for process, spans in reader.read_spans(edges, writers, []):
            writers.saw(process, max((span.end_ns for span in spans), default=0))


# -- clocks --


def _set_clocks(pieces: Sequence[Slice], writers: Writers) -> dict[str, Clock]:
    """Return the clock of each host; nothing where there is only one."""
    hosts = {str(resource.get(attr.HOST_NAME, "")): resource for resource in writers.resources}
    if len(hosts) < 2:  # noqa: PLR2004 - nobody to differ from
        return {}
    trainers = [resource for resource in writers.resources if resource.get(attr.ROLE) == "trainer"]
    reference = str((trainers or writers.resources)[0].get(attr.HOST_NAME, ""))
    bounds = (bound for sample in _sample(pieces) for bound in clocks.find_bounds(_read_sample(sample)))
    return clocks.estimate(bounds, reference, hosts)


def _sample(pieces: Sequence[Slice]) -> Iterator[tuple[Extent, ...]]:
    if len(pieces) <= _SAMPLES // 2:
        yield from (piece.extents for piece in pieces)
        return
    for number in range(_SAMPLES):
        extents = pieces[number * len(pieces) // _SAMPLES].extents
        room = max(1 << 16, _SAMPLE_BYTES // max(1, len(extents)))
        yield tuple(each._replace(end=min(each.end, each.begin + room)) for each in extents)


def _read_sample(extents: Iterable[Extent]) -> Iterator[tuple[SpanRecord, str]]:
    writers = Writers()
    for process, spans in reader.read_spans(extents, writers, []):
        host = str(writers.resources[process].get(attr.HOST_NAME, ""))
        yield from ((span, host) for span in spans)


# -- the result --


def _describe(
    folders: Sequence[Path], manifest: Mapping[str, Any], fold: Fold, known: Mapping[str, Clock]
) -> Explanation:
    processes = _processes(fold)
    series = fold.columns.series()
    if fold.columns.left_out:
        fold.problems.append(f"{fold.columns.left_out} values of more series than are kept were left out")
    fold.problems += [
        f"clocks: nothing tells how far that of {host} is from the trainer's"
        for host, clock in known.items()
        if not math.isfinite(clock.uncertainty)
    ]
    run_id = manifest.get("run_id") or (processes[0].resource.text(attr.RUN_ID) if processes else folders[0].name)
    steps, unused = fold.settled_steps()
    told = events.read(folders, fold.problems)
    start_ns, end_ns = _bounds(fold, series, told)
    found = gaps.find(fold.tally, processes, fold.opened, manifest)
    return Explanation(
        run_id=str(run_id),
        folders=tuple(map(str, folders)),
        manifest=dict(manifest),
        state=_state(series, manifest, processes),
        start_ns=start_ns,
        end_ns=end_ns,
        counts=fold.counts(),
        steps=steps,
        validations=tuple(fold.validations),
        slowest=tuple(map(unpack, fold.slowest.all())),
        devices=fold.devices(),
        events=told,
        series=series,
        gaps=found,
        problems=tuple(fold.problems),
        offsets=tuple((host, clock.largest, clock.uncertainty) for host, clock in sorted(known.items())),
        unused=unused,
    )


def _bounds(fold: Fold, series: Iterable[Series], told: Iterable[Event]) -> tuple[int, int]:
    """Return when a run began and ended; one that has no span yet began with its first sign of life. Zeros: there is none."""
    if fold.start_ns:
        return fold.start_ns, fold.end_ns
    times = [each.time_ns for each in told if each.time_ns]
    times += [time_ns for each in series if each.times_ns for time_ns in (each.times_ns[0], each.times_ns[-1])]
    return min(times, default=0), max(times, default=0)


def _processes(fold: Fold) -> tuple[Process, ...]:
    with_open = {each.process for each in fold.opened}
    return tuple(
        Process(Resource(values), fold.set_clock(index, newest), index not in with_open)
        for index, (values, newest) in enumerate(zip(fold.writers.resources, fold.writers.newest, strict=True))
    )


def _state(series: Iterable[Series], manifest: Mapping[str, Any], processes: Iterable[Process]) -> str:
    """Return how the run ended, as far as it is known: what its trainer said last, what its starter wrote, how old all is."""
    last = max(((each.times_ns[-1], each.values[-1]) for each in series if each.name == "verl.run.state"), default=None)
    state = _STATES.get(last[1], NO_END) if last is not None else NO_END
    if state != NO_END:
        return state
    attempts = manifest.get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict) and "ended" in attempts[-1]:
        return "ended"
    age = time.time() - max((process.newest_ns for process in processes), default=0) / 1e9
    return "running" if age < RUNNING_SECONDS else state
