# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Compares two runs: steps, phases, GPU time, cost of a token, significance, and what explains the difference.

A step's critical path is without gaps, so its groups sum up to the step: over the same steps, the differences of the
groups' means sum up to the difference of the steps. That is the explanation; no model is fitted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Final, NamedTuple

from verl_otel._internal import printable
from verl_otel._internal.printable import counted
from verl_otel.analysis import significance
from verl_otel.analysis.document import Document, about
from verl_otel.analysis.findings import Held, sum_held
from verl_otel.analysis.io.run_files import read_count
from verl_otel.analysis.model import Explanation, Series, Step, sum_causes, sum_states
from verl_otel.analysis.step_lengths import find_firsts
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.kinds import GPU_CAUSES, GPU_STATES
from verl_otel.semconv.metric_names import HW_GPU_MEMORY_USAGE, HW_GPU_UTILIZATION, ROLLOUT_TOKENS
from verl_otel.semconv.run_state import ENDED, RunState

# -- What a run used and produced: GPUs, their utilisation and memory, tokens per second. And how well a larger run uses
# its additional GPUs --

GENERATED: Final = ("generated", "response")
"""Types of the tokens that the model wrote; the second one in the recorded runs of the demo, with the answers of tools."""
_Period = tuple[int, int]
"""Start, end."""


class Resources(Document):
    """Means of one run."""

    gpus: Annotated[int | None, about("number of GPUs, or of ranks on a CPU")] = None
    trained_tokens_per_second: Annotated[
        float | None, about("tokens that the model wrote and steps trained on, per second of a step")
    ] = None
    rollout_tokens_per_second: Annotated[
        float | None, about("tokens that the model wrote, validations included, per second of time")
    ] = None
    gpu_utilization: Annotated[float | None, about("mean over time and GPUs, 0 to 1")] = None
    gpu_memory: Annotated[float | None, about("bytes of one GPU")] = None
    gpu_memory_highest: Annotated[float | None, about("bytes of one GPU")] = None


class Scaling(Document):
    """Tokens per second and GPU of B as a share of those of A, for runs of different size."""

    trained_tokens: float | None
    rollout_tokens: float | None


def measure_resources(run: Explanation, steps: Sequence[Step]) -> Resources:
    """Return the resources of a run over some of its steps."""
    if not steps:
        return Resources(_count_gpus(run, steps))
    periods = _find_periods(steps)
    memory = _read_gpus(run.series, HW_GPU_MEMORY_USAGE, periods)
    return Resources(
        _count_gpus(run, steps),
        _find_trained(steps),
        _find_generated(run.series, periods, [(begin, end) for _, begin, end in run.validations]),
        _mean_of_means(_read_gpus(run.series, HW_GPU_UTILIZATION, periods)),
        _mean_of_means(memory),
        max((value for values in memory for value in values), default=None),
    )


def find_scaling(a: Resources, b: Resources) -> Scaling | None:
    """Return the scaling efficiency of two runs; None if both have the same number of GPUs, or one is unknown."""
    if not a.gpus or not b.gpus or a.gpus == b.gpus:
        return None
    more = b.gpus / a.gpus
    return Scaling(
        _find_share(a.trained_tokens_per_second, b.trained_tokens_per_second, more),
        _find_share(a.rollout_tokens_per_second, b.rollout_tokens_per_second, more),
    )


def _find_share(a: float | None, b: float | None, more: float) -> float | None:
    return None if not a or b is None else b / a / more


def _count_gpus(run: Explanation, steps: Sequence[Step]) -> int | None:
    """Return the configured number of GPUs, or that of the devices of a step if more: an own loop configures none."""
    nodes, gpus, total = (read_count(run.manifest, key) for key in (attr.NODES, attr.GPUS, attr.GPUS_TOTAL))
    configured = max(nodes * gpus, total)
    return max(configured, *(sum(device.gpus for device in step.devices) for step in steps), 0) or None


def _find_periods(steps: Sequence[Step]) -> list[_Period]:
    """Return when the steps of each attempt were trained: what lies between two attempts is no part of a rate."""
    attempts = sorted({step.attempt for step in steps})
    members = [[step for step in steps if step.attempt == attempt] for attempt in attempts]
    return [(min(step.start_ns for step in each), max(step.end_ns for step in each)) for each in members]


def _find_trained(steps: Iterable[Step]) -> float | None:
    known = [(step.cost.trained_tokens, step.seconds) for step in steps if step.cost is not None]
    seconds = sum(each for _, each in known)
    tokens = sum(each for each, _ in known)
    return tokens / seconds if tokens and seconds else None


def _find_generated(
    series: Iterable[Series], periods: Sequence[_Period], validations: Sequence[_Period]
) -> float | None:
    """Return the rate of the counters of all agent loops; a process that was started again begins at 0."""
    counters = [
        one for one in series if one.name == ROLLOUT_TOKENS and dict(one.labels).get(attr.TOKEN_TYPE) in GENERATED
    ]
    length = sum(end - begin for begin, end in periods)
    if not counters or length <= 0:
        return None
    tokens = sum(
        _count_until(one, end, validations) - _count_until(one, begin, validations)
        for one in counters
        for begin, end in periods
    )
    return tokens * 1e9 / length


def _count_until(counter: Series, time_ns: int, validations: Sequence[_Period]) -> float:
    """Return what a counter had counted at a time, between two of its points in proportion to the time.

    A counter of validations grows during these only, another one beside them: many tokens may come right before the first step.
    """
    is_validation = dict(counter.labels).get(attr.VALIDATE) == "true"
    place = bisect_right(counter.times_ns, time_ns)
    counted, before = 0.0, 0.0
    for value in counter.values[:place]:
        counted += value - before if value >= before else value
        before = value
    if place == len(counter.values):
        return counted
    last, more = counter.times_ns[place], counter.values[place] - before
    if place and more >= 0:
        first = counter.times_ns[place - 1]
    else:  # the first point of a process
        more, begun = counter.values[place], (begin for begin, _ in validations if is_validation and begin < last)
        first = max(begun, default=last)
    whole, part = (_measure_overlap(validations, first, end) for end in (last, max(first, time_ns)))
    if not is_validation:
        whole, part = last - first - whole, time_ns - first - part
    return counted + more * part / whole if more > 0 and whole > 0 else counted


def _measure_overlap(periods: Iterable[_Period], begin: int, end: int) -> int:
    return sum(max(0, min(end, last) - max(begin, first)) for first, last in periods)


def _read_gpus(series: Iterable[Series], name: str, periods: Sequence[_Period]) -> list[list[float]]:
    """Return the values of each GPU in some periods; several processes may have read one GPU after another."""
    found: dict[str, list[float]] = {}
    for one in series:
        if one.name == name:
            values = found.setdefault(dict(one.labels).get(attr.HW_ID, ""), [])
            values.extend(_within(one, periods))
    return [values for values in found.values() if values]


def _within(one: Series, periods: Sequence[_Period]) -> Iterator[float]:
    for begin, end in periods:
        first, last = bisect_left(one.times_ns, begin), bisect_right(one.times_ns, end)
        yield from (value for value in one.values[first:last] if value >= 0)


def _mean_of_means(values: Sequence[Sequence[float]]) -> float | None:
    return fmean(map(fmean, values)) if values else None


LEVEL: Final = 0.05
"""Probability that two equivalent runs show a difference in any row that is called significant."""
SMALLEST_CHANGE: Final = 0.03
"""Smaller changes are not called significant, however certain: they are not worth fixing, and other load on the machine
causes as much."""
START_UP_STEPS: Final = 1
"""Number of first steps of an attempt that are skipped: they contain the start of the agent loop's workers, compilation
and cold caches."""
SMALLEST_SHARE: Final = 0.01
"""Rows below this share of a step in both runs are not tested: every tested row makes the others harder to detect."""
NOTED_DIFFERENCE: Final = 0.1
"""Differences in the amount of work per step above this are noted: durations are then not comparable."""
UNLIKE: Final = 0.25
"""If median and trimmed mean of the steps differ by more, a run has long and short steps, and neither represents
all."""
_FACTS: Final = (attr.ALGORITHM, attr.TRAINER_MODE, attr.VERL_VERSION, attr.MODEL, attr.ENGINE, attr.NODES, attr.GPUS)


class Row(NamedTuple):
    """One line of the comparison."""

    name: str
    """Name in a condition: ``step``, a phase, ``gpu <state or cause>``, ``tokens_per_second``, ``path <kind>
    <name>``."""
    unit: str
    """``s`` (of a step), ``s on the path``, ``s per GPU`` (both of a step, too), ``tokens/s`` or ``GPU s/token``."""
    difference: significance.Difference
    p: float
    """Adjusted for the number of rows."""
    significant: bool
    detectable: float
    """The smallest relative change that would have been significant, with the differences of the other rows as they
    are."""


class Name(Document):
    """Seconds of a step by name."""

    name: str
    a: float
    b: float


class Contribution(Document):
    """What changed on the critical path."""

    kind: str
    seconds: Annotated[float, about("change")]
    share: Annotated[float | None, about("change as a share of a step of A")]
    significant: Annotated[bool, about("this kind alone differs significantly")]
    names: tuple[Name, ...]


class Comparison(NamedTuple):
    """The result of comparing two runs."""

    a: str
    b: str
    """Ids of the runs."""
    counts: tuple[int, int]
    """Number of usable steps of each; of the longer run the first ones are compared."""
    skipped: int
    """Number of first steps of each attempt that were skipped."""
    enough: bool
    """False: too few steps; no row is significant."""
    rows: tuple[Row, ...]
    contributions: tuple[Contribution, ...]
    """Contributions, the largest first. They sum up to the difference of the typical step; empty where a run has no
    critical paths."""
    notes: tuple[str, ...]
    """Differences in kind between the runs, and what was left out."""
    held: tuple[Held, Held]
    """The steps of A and B that something delayed: single slow steps hardly change a typical one."""
    noise: float = significance.NOISE
    """Assumed relative standard deviation of a run's level among equivalent runs."""
    untested: tuple[str, ...] = ()
    """Requested rows that one of the runs has, but in too few steps to test."""
    has_gpu: bool = True
    """False: neither run has a GPU; their devices are the ranks, on CPUs."""
    resources: tuple[Resources, Resources] = (Resources(), Resources())
    """GPUs and throughput of A and B."""

    @property
    def scaling(self) -> Scaling | None:
        """How well the GPUs of B are used in comparison to those of A; None for runs of the same size."""
        return find_scaling(*self.resources)


Values = dict[str, tuple[str, list[float]]]
"""By name: the unit and one value of each step."""


def compare(
    a: Explanation,
    b: Explanation,
    *,
    asked: Iterable[str] = (),
    noise: float = significance.NOISE,
    skip: int = START_UP_STEPS,
) -> Comparison:
    """Return how run B differs from run A.

    Args:
        a: The run to compare with.
        b: The run to judge.
        asked: Names of rows to test even if they are small, or parts of the critical path.
        noise: Assumed relative standard deviation of a run's level among equivalent runs.
        skip: Number of first steps of each attempt to skip.
    """
    usable = [_usable(explanation.steps, skip) for explanation in (a, b)]
    counts = (len(usable[0]), len(usable[1]))
    first, second = (steps[: min(counts)] for steps in usable)
    notes = tuple(_note(a, b, first, second, skip))
    has_gpu = a.has_gpu or b.has_gpu
    used = (measure_resources(a, first), measure_resources(b, second))
    held = sum_held(a.steps), sum_held(b.steps)
    compared = Comparison(
        a.run_id, b.run_id, counts, skip, False, (), (), notes, held, noise, has_gpu=has_gpu, resources=used
    )
    if min(counts) < significance.FEWEST:
        return compared
    values = [_measure(steps, run.steps) for steps, run in ((first, a), (second, b))]
    wanted = set(asked)
    rows = _test(values[0], values[1], wanted, noise)
    untested = wanted - {row.name for row in rows}
    untested = {
        name
        for name in untested
        if any(max(run_values[name][1], default=0) > 0 for run_values in values if name in run_values)
    }
    parts = _explain(first, second, noise)
    return compared._replace(enough=True, rows=rows, contributions=parts, untested=tuple(sorted(untested)))


def names(explanation: Explanation) -> list[str]:
    """Return the names of the rows that a run can be compared in."""
    return list(_measure(_usable(explanation.steps, 0), ()))


def _usable(steps: Sequence[Step], skip: int) -> list[Step]:
    """Return the steps to compare: whole ones in the order of time, each number once, without start-up."""
    return [
        step
        for step in _after_start_up(steps, skip)
        if not step.failed and not step.repeated and step.end_ns > step.start_ns
    ]


def _after_start_up(steps: Sequence[Step], skip: int) -> list[Step]:
    """Return the steps in the order of time, without the first ones of each attempt."""
    ordered = sorted(steps, key=lambda step: step.start_ns)
    skipped = find_firsts(ordered, skip)
    return [step for place, step in enumerate(ordered) if place not in skipped]


def _measure(steps: Sequence[Step], run: Sequence[Step]) -> Values:
    """Return the values of some steps of a run, by the name of their row."""
    measures: Values = {"step": ("s", [step.seconds for step in steps])}
    costs = [step.cost for step in steps if step.cost is not None and step.cost.trained_tokens]
    if costs and len(costs) == len(steps):
        rates = [cost.trained_tokens / step.seconds for cost, step in zip(costs, steps, strict=True)]
        measures["tokens_per_second"] = ("tokens/s", rates)
        if all(cost.gpu_seconds for cost in costs):
            prices = [cost.gpu_seconds / cost.trained_tokens for cost in costs]
            measures["gpu_seconds_per_token"] = ("GPU s/token", prices)
    measures |= _by_name("", "s", steps, lambda step: {phase.key: phase.seconds for phase in step.phases})
    last = {step.attempt: step.start_ns for step in sorted(run, key=lambda step: step.start_ns)}
    # The GPU time of the last step of an attempt runs on to its end.
    with_devices = [step for step in steps if step.devices and step.start_ns != last.get(step.attempt)]
    measures |= _by_name("gpu ", "s per GPU", with_devices, _device_seconds)
    if all(step.groups for step in steps):
        of_path = lambda step: {f"{kind} {name}".rstrip(): ns / 1e9 for kind, name, ns in step.groups}  # noqa: E731
        measures |= _by_name("path ", "s on the path", steps, of_path)
    return measures


def _by_name(prefix: str, unit: str, steps: Sequence[Step], read: Callable[[Step], Mapping[str, float]]) -> Values:
    """Return the values of all names that occur in any step; missing values are zero."""
    rows = [read(step) for step in steps]
    keys = dict.fromkeys(key for values in rows for key in values)
    return {f"{prefix}{key}": (unit, [values.get(key, 0.0) for values in rows]) for key in keys}


def _device_seconds(step: Step) -> dict[str, float]:
    """Return the mean seconds per GPU, by state and by cause."""
    spent, count = sum_causes(step.devices), sum(device.gpus for device in step.devices)
    spent += sum_states(spent)
    return {name: spent[name] / 1e9 / count for name in (*GPU_STATES, *GPU_CAUSES)}


def _test(a: Values, b: Values, asked: set[str], noise: float) -> tuple[Row, ...]:
    """Test every row. The step has half of the error; Holm's procedure divides the other half among the rest."""
    differences: dict[str, significance.Difference] = {}
    units: dict[str, str] = {}
    for name in dict.fromkeys([*a, *b]):
        unit, values = (
            (a.get(name) or b[name])[0],
            [run_values[name][1] if name in run_values else [] for run_values in (a, b)],
        )
        first, second = (
            run_series or [0.0] * _length(run_values, unit)
            for run_series, run_values in zip(values, (a, b), strict=True)
        )
        if min(len(first), len(second)) >= significance.FEWEST and (max(first) > 0 or max(second) > 0):
            differences[name], units[name] = significance.differ(first, second, noise=noise), unit
    step = differences["step"]
    tested = [name for name in differences if name != "step" and (name in asked or _matters(name, differences, step))]
    adjusted = significance.holm([differences[name].p for name in tested])
    rows = [_row("step", units["step"], step, step.p, LEVEL / 2)]
    for place, name in enumerate(tested):
        level = significance.find_level(adjusted, place, LEVEL / 2)
        rows.append(_row(name, units[name], differences[name], adjusted[place], level))
    return tuple(rows)


def _length(values: Values, unit: str) -> int:
    """Return the number of values of rows with one unit, 0 if there are no such rows."""
    return next((len(series) for row_unit, series in values.values() if row_unit == unit), 0)


def _matters(name: str, differences: Mapping[str, significance.Difference], step: significance.Difference) -> bool:
    """Return whether a row is tested by default."""
    if name.endswith(("tokens_per_second", "gpu_seconds_per_token")):
        return True
    row_difference = differences[name]
    large = any(
        part.typical >= SMALLEST_SHARE * whole.typical
        for part, whole in ((row_difference.a, step.a), (row_difference.b, step.b))
    )
    return large and not name.startswith("path ")


def _row(name: str, unit: str, difference: significance.Difference, p: float, level: float) -> Row:
    """Return a row.

    Args:
        name: Its name.
        unit: Its unit.
        difference: The result of the test.
        p: Its p, adjusted for the other rows of its half of the error.
        level: The level at which it is tested.
    """
    detectable = max(SMALLEST_CHANGE, difference.detectable(level))
    return Row(name, unit, difference, min(1.0, 2 * p), _is_significant(difference, p), detectable)


def _is_significant(difference: significance.Difference, p: float) -> bool:
    return p < LEVEL / 2 and abs(difference.change) >= SMALLEST_CHANGE


def _explain(a: Sequence[Step], b: Sequence[Step], noise: float) -> tuple[Contribution, ...]:
    """Return the contributions to the difference of the typical steps. All are tested with one half of the error."""
    if not all(step.groups for step in (*a, *b)):
        return ()
    kept = [_trim(a), _trim(b)]
    means: list[dict[tuple[str, str], float]] = []
    for steps in kept:
        sums: dict[tuple[str, str], float] = {}
        for step in steps:
            for kind, name, nanoseconds in step.groups:
                sums[(kind, name)] = sums.get((kind, name), 0.0) + nanoseconds / 1e9 / len(steps)
        means.append(sums)
    whole = fmean(step.seconds for step in kept[0])
    by_kind: dict[str, list[Name]] = {}
    for kind, name in dict.fromkeys([*means[0], *means[1]]):
        by_kind.setdefault(kind, []).append(Name(name, *(mean.get((kind, name), 0.0) for mean in means)))
    differences = [
        significance.differ(
            *([sum(ns for each, _, ns in step.groups if each == kind) / 1e9 for step in steps] for steps in (a, b)),
            noise=noise,
        )
        for kind in by_kind
    ]
    adjusted = significance.holm([difference.p for difference in differences])
    contributions = []
    for (kind, parts), difference, p in zip(by_kind.items(), differences, adjusted, strict=True):
        parts.sort(key=lambda part: (-abs(part.b - part.a), part.name))
        more = sum(part.b - part.a for part in parts)
        contributions.append(Contribution(kind, more, more / whole, _is_significant(difference, p), tuple(parts)))
    return tuple(sorted(contributions, key=lambda contribution: (-abs(contribution.seconds), contribution.kind)))


def _trim(steps: Sequence[Step]) -> list[Step]:
    """Return the steps whose mean length is the typical one: those that `significance.describe` keeps."""
    ordered = sorted(steps, key=lambda step: step.end_ns - step.start_ns)
    cut = int(significance.TRIMMED * len(ordered))
    return ordered[cut : len(ordered) - cut]


def _note(a: Explanation, b: Explanation, first: Sequence[Step], second: Sequence[Step], skip: int) -> Iterator[str]:
    if a.run_id == b.run_id and a.folders == b.folders:
        yield "A and B are the same run"
    for name, run in (("A", a), ("B", b)):
        yield from _note_end(name, run)
    for key in _FACTS:
        before, after = a.manifest.get(key), b.manifest.get(key)
        if before != after and None not in (before, after):
            yield f"{key} differs: {before} in A, {after} in B"
    for word, count in _WORK.items():
        means = [fmean(map(count, steps)) if steps else 0.0 for steps in (first, second)]
        if all(means) and abs(means[1] / means[0] - 1) >= NOTED_DIFFERENCE:
            yield f"a step has {means[0]:.0f} {word} in A, {means[1]:.0f} in B: times do not compare like with like"
    for name, run, steps in (("A", a, first), ("B", b, second)):
        yield from _note_left_out(name, _after_start_up(run.steps, skip))
        if len(steps) >= significance.FEWEST:
            lengths = significance.describe([step.seconds for step in steps])
            if abs(lengths.typical / lengths.median - 1) > UNLIKE:
                yield (
                    f"steps of {name} are of more than one kind: the median is {printable.seconds(lengths.median)}, the mean without the "
                    f"extremes {printable.seconds(lengths.typical)}"
                )


def _note_end(name: str, run: Explanation) -> Iterator[str]:
    """Yield how a run ended, unless it finished, and the stalls and crashes that were reported in it."""
    reported = Counter(event.kind for event in run.events)
    if run.state not in _WHOLE:
        yield f"{name} is not whole: {run.state}"
    for kind, plural in (("crash", "crashes"), ("stall", "stalls")):
        if reported[kind]:
            yield f"{counted(reported[kind], kind, plural)} in {name}"


_WHOLE: Final = (RunState.FINISHED.word, ENDED)
"""States of runs that came to their end."""


def _note_left_out(name: str, steps: Sequence[Step]) -> Iterator[str]:
    failed, repeated = sum(step.failed for step in steps), sum(step.repeated and not step.failed for step in steps)
    for number, kind in ((failed, "failed"), (repeated, "repeated")):
        if number:
            yield f"{counted(number, f'{kind} step')} of {name} {'is' if number == 1 else 'are'} left out"


_WORK: Final[dict[str, Callable[[Step], int]]] = {
    "trajectories": lambda step: step.members or len(step.trajectories),
    "trained tokens": lambda step: step.cost.trained_tokens if step.cost else 0,
}
