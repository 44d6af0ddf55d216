# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the explanation of a run from what an aggregator has taken."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_otel.analysis import spilling
from verl_otel.analysis.aggregator import Aggregator
from verl_otel.analysis.gpu import devices
from verl_otel.analysis.io import completeness, run_status
from verl_otel.analysis.model import Event, Explanation, Process, Series, Step
from verl_otel.analysis.traces import timeline
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import AVERAGE_REWARD, RUN_STATE


def describe(
    folders: Sequence[Path], aggregator: Aggregator, run_events: tuple[Event, ...], more_problems: Iterable[str]
) -> Explanation:
    """Return the explanation of what an aggregator has taken so far.

    Args:
        folders: The folders of the run.
        aggregator: It is not changed, and may take more afterwards.
        run_events: The run's stalls and crashes.
        more_problems: Messages about what could not be read beside the lines that the aggregator took.
    """
    manifest, host_clocks = aggregator.manifest, aggregator.context.clocks
    problems = [*more_problems, *aggregator.problems]
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
    steps = spilling.name_reads(steps, series)
    series = add_rewards(series, steps, is_distributed=aggregator.is_distributed)
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


def add_rewards(series: tuple[Series, ...], steps: Sequence[Step], *, is_distributed: bool) -> tuple[Series, ...]:
    """Return the scalars with the mean reward of steps of an own loop whose process did not know it, because other processes ran the trajectories.

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
    return run_status.find_state(manifest, recorded, run_events, lambda: age < run_status.RUNNING_SECONDS)
