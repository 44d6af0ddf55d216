# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: what a step, its phases, a GPU and a token took, what of it is significant, and what explains the rest.

A step's critical path is without gaps, so its groups sum up to the step: over the same steps, the differences of the groups' means sum up to
the difference of the steps. That is the explanation; no model is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from verl_otel.analysis import significance
from verl_otel.analysis.facts import CAUSES, STATES, Explanation, Step
from verl_otel.semconv import attributes as attr

LEVEL: Final = 0.05
"""Probability with which two runs of the same thing may show a difference that is called significant, in any of the rows."""
SMALLEST_CHANGE: Final = 0.03
"""A change below this is not called significant, however sure: nobody repairs it, and a neighbour on the machine makes as much."""
START_UP_STEPS: Final = 1
"""The first step of a run contains the start of the agent loop's workers, compilation, caches that are filled."""
SMALLEST_SHARE: Final = 0.01
"""Rows that are less than this share of a step in both runs are left out: every row that is tested makes the others harder to see."""
NOTED_DIFFERENCE: Final = 0.1
"""From here on a difference of the work in a step is told: then times do not compare like with like."""
UNLIKE: Final = 0.25
"""If median and trimmed mean of the steps are apart by more, a run has long and short steps, and neither stands for all."""
_FACTS: Final = (
    attr.ALGORITHM,
    attr.TRAINER_MODE,
    attr.VERL_VERSION,
    "verl.model",
    "verl.engine",
    "verl.nodes",
    "verl.gpus",
)


class Row(NamedTuple):
    """One line of the comparison."""

    name: str
    """As in a condition: ``step``, a phase, ``gpu <state or cause>``, ``tokens_per_second``, ``path <kind> <name>``."""
    unit: str
    """``s`` (of a step), ``s on the path``, ``s per GPU`` (both of a step, too), ``tokens/s`` or ``GPU s/token``."""
    difference: significance.Difference
    p: float
    """Adjusted for the number of rows."""
    significant: bool
    detectable: float
    """The relative change that would have been noticed by itself."""


class Contribution(NamedTuple):
    """What one kind of work on the critical path adds to the difference of a step."""

    kind: str
    """A kind of segment."""
    seconds: float
    """Of a typical step: B less A."""
    share: float
    """Of A's typical step."""
    names: tuple[tuple[str, float, float], ...]
    """Name, seconds in A, seconds in B; the largest difference first."""


class Comparison(NamedTuple):
    """Everything that is said of two runs."""

    a: str
    b: str
    """Ids of the runs."""
    counts: tuple[int, int]
    """Usable steps of each; of the run with more of them, the first are compared with those of the other."""
    skipped: int
    """First steps of each run that were left out."""
    enough: bool
    """False: too few steps to tell anything; no row is significant."""
    rows: tuple[Row, ...]
    contributions: tuple[Contribution, ...]
    """The largest first. They sum up to the difference of the typical step; empty where a run's critical paths are not known."""
    notes: tuple[str, ...]
    """What makes the runs differ in kind, and what was left out."""
    noise: float = significance.NOISE
    """What was assumed: relative standard deviation of a run's level among runs of the same thing."""
    untested: tuple[str, ...] = ()
    """Rows that were asked for and that one of the runs has, but in too few steps to tell."""


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
        asked: Names of rows to test although they are small, or parts of the critical path.
        noise: Relative standard deviation of a run's level among runs of the same thing.
        skip: How many of a run's first steps do not count.
    """
    usable = [_usable(each.steps, skip) for each in (a, b)]
    counts = (len(usable[0]), len(usable[1]))
    first, second = (steps[: min(counts)] for steps in usable)
    notes = tuple(_note(a, b, first, second, skip))
    if min(counts) < significance.FEWEST:
        return Comparison(a.run_id, b.run_id, counts, skip, False, (), (), notes, noise)
    values = [_measure(steps, each.steps) for steps, each in ((first, a), (second, b))]
    wanted = set(asked)
    rows = _test(values[0], values[1], wanted, noise)
    untested = wanted - {row.name for row in rows}
    untested = {name for name in untested if any(max(each[name][1], default=0) > 0 for each in values if name in each)}
    parts = _explain(first, second)
    return Comparison(a.run_id, b.run_id, counts, skip, True, rows, parts, notes, noise, tuple(sorted(untested)))


def names(explanation: Explanation) -> list[str]:
    """Return the names of the rows that a run can be compared in."""
    return list(_measure(_usable(explanation.steps, 0), ()))


def _usable(steps: Sequence[Step], skip: int) -> list[Step]:
    """Return the steps to compare: whole ones in the order of time, without those that start the run up."""
    ordered = sorted(steps, key=lambda step: step.start_ns)
    return [step for step in ordered[skip:] if not step.failed and step.end_ns > step.start_ns]


def _measure(steps: Sequence[Step], run: Sequence[Step]) -> Values:
    """Return the values of some steps of a run, by the name of their row."""
    found: Values = {"step": ("s", [step.seconds for step in steps])}
    costs = [step.cost for step in steps if step.cost is not None and step.cost.trained_tokens]
    if costs and len(costs) == len(steps):
        rates = [cost.trained_tokens / step.seconds for cost, step in zip(costs, steps, strict=True)]
        found["tokens_per_second"] = ("tokens/s", rates)
        if all(cost.gpu_seconds for cost in costs):
            prices = [cost.gpu_seconds / cost.trained_tokens for cost in costs]
            found["gpu_seconds_per_token"] = ("GPU s/token", prices)
    found |= _by_name("", "s", steps, lambda step: {phase.key: phase.seconds for phase in step.phases})
    last = max((step.start_ns for step in run), default=0)  # its GPU time runs on to the end of the run
    with_devices = [step for step in steps if step.devices and step.start_ns != last]
    found |= _by_name("gpu ", "s per GPU", with_devices, _device_seconds)
    if all(step.groups for step in steps):
        found |= _by_name("path ", "s on the path", steps, _path_seconds)
    return found


def _by_name(prefix: str, unit: str, steps: Sequence[Step], read: Callable[[Step], Mapping[str, float]]) -> Values:
    """Return the values of all names that occur in any step; a step without one has spent no time on it."""
    each = [read(step) for step in steps]
    keys = dict.fromkeys(key for values in each for key in values)
    return {f"{prefix}{key}": (unit, [values.get(key, 0.0) for values in each]) for key in keys}


def _device_seconds(step: Step) -> dict[str, float]:
    """Return what a GPU spent on average, by state and by cause."""
    found = dict.fromkeys((*STATES, *CAUSES), 0.0)
    for device in step.devices:
        for cause, nanoseconds in device.nanoseconds.items():
            found[cause] += nanoseconds / 1e9 / len(step.devices)
            found[CAUSES[cause]] += nanoseconds / 1e9 / len(step.devices)
    return found


def _path_seconds(step: Step) -> dict[str, float]:
    return {f"{kind} {name}".rstrip(): nanoseconds / 1e9 for kind, name, nanoseconds in step.groups}


def _test(a: Values, b: Values, asked: set[str], noise: float) -> tuple[Row, ...]:
    """Test every row. The step has half of the error to itself; Holm's procedure divides the other half among the rest."""
    differences: dict[str, significance.Difference] = {}
    units: dict[str, str] = {}
    for name in dict.fromkeys([*a, *b]):
        unit, values = (a.get(name) or b[name])[0], [each[name][1] if name in each else [] for each in (a, b)]
        first, second = (found or [0.0] * _length(each, unit) for found, each in zip(values, (a, b), strict=True))
        if min(len(first), len(second)) >= significance.FEWEST and (max(first) > 0 or max(second) > 0):
            differences[name], units[name] = significance.differ(first, second, noise=noise), unit
    step = differences["step"]
    tested = [name for name in differences if name != "step" and (name in asked or _matters(name, differences, step))]
    adjusted = dict(zip(tested, significance.holm([differences[name].p for name in tested]), strict=True))
    adjusted["step"] = step.p
    return tuple(_row(name, units[name], differences[name], min(1.0, 2 * adjusted[name])) for name in ("step", *tested))


def _length(values: Values, unit: str) -> int:
    """Return how many values a run has of rows of one unit, 0 if it has no such rows."""
    return next((len(found) for each, found in values.values() if each == unit), 0)


def _matters(name: str, differences: Mapping[str, significance.Difference], step: significance.Difference) -> bool:
    """Return whether a row is tested without being asked for."""
    if name.endswith(("tokens_per_second", "gpu_seconds_per_token")):
        return True
    each = differences[name]
    large = any(part.typical >= SMALLEST_SHARE * whole.typical for part, whole in ((each.a, step.a), (each.b, step.b)))
    return large and not name.startswith("path ")


def _row(name: str, unit: str, difference: significance.Difference, p: float) -> Row:
    significant = p < LEVEL and abs(difference.change) >= SMALLEST_CHANGE
    detectable = max(SMALLEST_CHANGE, difference.detectable(LEVEL / 2))
    return Row(name, unit, difference, p, significant, detectable)


def _explain(a: Sequence[Step], b: Sequence[Step]) -> tuple[Contribution, ...]:
    """Return what the difference of the typical steps is made of."""
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
    by_kind: dict[str, list[tuple[str, float, float]]] = {}
    for kind, name in dict.fromkeys([*means[0], *means[1]]):
        seconds = [each.get((kind, name), 0.0) for each in means]
        by_kind.setdefault(kind, []).append((name, seconds[0], seconds[1]))
    found = []
    for kind, parts in by_kind.items():
        parts.sort(key=lambda part: (-abs(part[2] - part[1]), part[0]))
        seconds_more = sum(after - before for _, before, after in parts)
        found.append(Contribution(kind, seconds_more, seconds_more / whole, tuple(parts)))
    return tuple(sorted(found, key=lambda each: (-abs(each.seconds), each.kind)))


def _trim(steps: Sequence[Step]) -> list[Step]:
    """Return the steps whose mean length is the typical one: those that `significance.describe` keeps."""
    ordered = sorted(steps, key=lambda step: step.end_ns - step.start_ns)
    cut = int(significance.TRIMMED * len(ordered))
    return ordered[cut : len(ordered) - cut]


def _note(a: Explanation, b: Explanation, first: Sequence[Step], second: Sequence[Step], skip: int) -> Iterator[str]:
    if a.run_id == b.run_id and a.folders == b.folders:
        yield "A and B are the same run"
    for key in _FACTS:
        before, after = a.manifest.get(key), b.manifest.get(key)
        if before != after and None not in (before, after):
            yield f"{key} differs: {before} in A, {after} in B"
    for word, count in _WORK.items():
        means = [fmean(map(count, steps)) if steps else 0.0 for steps in (first, second)]
        if all(means) and abs(means[1] / means[0] - 1) >= NOTED_DIFFERENCE:
            yield f"a step has {means[0]:.0f} {word} in A, {means[1]:.0f} in B: times do not compare like with like"
    for name, run, steps in (("A", a, first), ("B", b, second)):
        failed = sum(step.failed for step in sorted(run.steps, key=lambda step: step.start_ns)[skip:])
        if failed:
            yield f"{failed} failed steps of {name} are left out"
        if len(steps) >= significance.FEWEST:
            lengths = significance.describe([step.seconds for step in steps])
            if abs(lengths.typical / lengths.median - 1) > UNLIKE:
                yield (
                    f"steps of {name} are of more than one kind: the median is {lengths.median:.3g} s, the mean without the "
                    f"extremes {lengths.typical:.3g} s"
                )


_WORK: Final[dict[str, Callable[[Step], int]]] = {
    "trajectories": lambda step: step.members or len(step.trajectories),
    "trained tokens": lambda step: step.cost.trained_tokens if step.cost else 0,
}
