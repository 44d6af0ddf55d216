# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The findings of a run, the most important first. Every command and page shows these, in this order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

from verl_otel.analysis import step_lengths
from verl_otel.analysis.model import Explanation, Part, Step, Trajectory, Verdict
from verl_otel.analysis.verdicts.baselines import PHASE_SECONDS

FEWEST_UNREWARDED: Final = 2
UNREWARDED_SHARE: Final = 0.2
"""Trajectories of a step with score 0 in which the same tool or the reward failed, and their share: fewer change what
is learned by little."""
REST_SHARE: Final = 0.1
"""Share of the excess of a step that is noticeable if no verdict explains it."""


KINDS: Final = ("crash", "stall", "failed", "slow", "learning", "any")
"""What `has_any` looks for: a process that died, a hang, a step that failed, one that took longer than usual, and
something wrong with the learning."""


# -- Steps that waited for a single trajectory; a report lists them first, whether or not that was unusual --

MAX_WAITS: Final = 2
"""Trajectories on the critical path above which a step runs them one after the other: then it waits for each, and
verdicts compare them."""
NOTABLE_SHARE: Final = 0.2
"""Minimum share of a step for the wait for one trajectory to be reported."""


class SingleWait(NamedTuple):
    """One step that waited for one trajectory."""

    step: Step
    trajectory: Trajectory
    part: Part
    """The part that the trajectory spent most of its time on."""
    lead: float
    """Seconds by which the step would have been shorter without it."""


def find_single_wait(step: Step) -> SingleWait | None:
    """Return the trajectory that a step waited noticeably for alone; None if there is none."""
    lead = next((saving.seconds for saving in step.savings if saving.what == "slowest"), 0.0)
    is_short = lead <= 0 or lead < NOTABLE_SHARE * step.seconds
    # One trajectory alone has no other to be later than.
    if is_short or step.interrupted or step.members <= 1 or not step.slowest:
        return None
    if len({segment.trace_id for segment in step.path} - {0}) > MAX_WAITS:
        return None
    last = max(step.slowest, key=lambda trajectory: trajectory.end_ns)
    if not last.parts:
        return None
    return SingleWait(step, last, max(last.parts, key=lambda part: part.seconds), lead)


class Finding(NamedTuple):
    """What delayed a step: a verdict, or one trajectory that it waited for alone, which may be usual in its run."""

    step: Step
    seconds: float
    """By how much the step would have been shorter, or the next one would have started earlier."""
    cause: Verdict | SingleWait
    longer: float | None = None
    """By how much the step took longer than usual and the next one started late; None: it did not."""


def find_findings(run: Explanation) -> list[Finding]:
    """Return what delayed the steps of a run, the step that lost most first, and of each step the largest cause first.

    Where no step took longer than usual, it is the longest wait for one trajectory alone, which is usual in this run.
    """
    found = [each._replace(longer=longer) for step, longer in sort_held(run) for each in find_of_step(step)]
    if found or step_lengths.find_unexplained(run.steps):
        return found
    waits = [finding for step in run.steps if not step.failed for finding in find_of_step(step)]
    return [max(waits, key=lambda finding: finding.seconds)] if waits else []


def find_of_step(step: Step) -> list[Finding]:
    """Return what delayed a step, the largest first. A wait that a verdict is about is not another finding."""
    found = [Finding(step, verdict.saved, verdict) for verdict in step.verdicts]
    wait = find_single_wait(step)
    if wait is not None and not any(
        verdict.trace_id == wait.trajectory.trace_id or (not verdict.trace_id and verdict.kind in ROLLOUT)
        for verdict in step.verdicts
    ):
        found.append(Finding(step, wait.lead, wait))
    return sorted(found, key=lambda finding: -finding.seconds)


# -- What the causes of a step cost together: the combined savings of its verdicts --

_BETWEEN = "between"
ROLLOUT: tuple[str, ...] = ("trajectory", "replica", "tool", "reward", "code", "loop")
"""Kinds of verdicts on rollouts."""
_INTERVALS: tuple[str, ...] = ("loop", "process")
"""Kinds of verdicts on intervals of the critical path, of which no two overlap."""


def sum_savings(step: Step) -> float:
    """Return the seconds that the causes of a step, and of what follows it, cost; 0 without verdicts.

    Phases are sequential, so that what their causes cost adds up. A verdict whose phase is unknown may be about any of
    them. What follows the step is apart from it, and its parts follow one another.
    """
    by_phase: dict[str, list[Verdict]] = {}
    for verdict in step.verdicts:
        if verdict.kind != _BETWEEN:
            by_phase.setdefault(find_phase(step, verdict), []).append(verdict)
    unknown = _sum_phase(by_phase.pop("", []))
    return max(unknown, min(step.seconds, sum(map(_sum_phase, by_phase.values())))) + sum_between(step)


def sum_between(step: Step) -> float:
    """Return by how many seconds the next step started late, 0 without verdicts on what follows a step."""
    return min(step.between, sum(verdict.saved for verdict in step.verdicts if verdict.kind == _BETWEEN))


def _sum_phase(verdicts: Iterable[Verdict]) -> float:
    """Return what the causes of one phase cost together.

    Several causes of one awaited trajectory followed one another, and together cost no more than its lead over the
    others. Trajectories that were awaited in turn add up. Intervals on the path are apart from both. A verdict on the
    phase itself, or on a rank, may describe the same wait again.
    """
    intervals = same = 0.0
    awaited: dict[int, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.kind in _INTERVALS:
            intervals += verdict.saved
        elif verdict.kind in ROLLOUT:
            awaited.setdefault(verdict.trace_id, []).append(verdict)
        else:
            same = max(same, verdict.saved)
    if 0 in awaited:  # that of a group may be about any of them
        awaited = {0: [verdict for group in awaited.values() for verdict in group]}
    return max(intervals + sum(map(_sum_awaited, awaited.values())), same)


def _sum_awaited(verdicts: Sequence[Verdict]) -> float:
    work, lead = sum(verdict.seconds for verdict in verdicts), max(verdict.lead for verdict in verdicts)
    return max(min(work, lead), *(verdict.saved for verdict in verdicts))


def sum_shared(step: Step) -> float:
    """Return the seconds that the verdicts of a step have in common: each describes them as its own saving."""
    return max(0.0, sum(verdict.saved for verdict in step.verdicts) - sum_savings(step))


def find_phase(step: Step, verdict: Verdict) -> str:
    """Return the phase that a verdict is about, empty where it is unknown."""
    if verdict.kind == "phase":
        return verdict.subject
    lengths: dict[str, int] = {}
    for segment in step.path:
        is_rank = verdict.kind == "rank" and segment.kind in ("worker", "call") and verdict.cause_name in segment.name
        is_rollout = verdict.kind in ROLLOUT and (segment.trace_id or segment.kind in ("start", "poll"))
        is_pause = verdict.kind == "process" and segment.kind == "paused" and segment.name == verdict.cause_name
        if is_rank or is_rollout or is_pause:
            lengths[segment.phase] = lengths.get(segment.phase, 0) + segment.end_ns - segment.start_ns
    if lengths:
        return max(lengths, key=lambda phase: lengths[phase])
    return "gen" if verdict.kind in ROLLOUT and any(phase.key == "gen" for phase in step.phases) else ""


LONGER_SHARE = 0.25
"""Share of the median by which a step has to be longer than it, so that something delayed it, whether that is found or not."""


class Excess(NamedTuple):
    """By how many seconds a step took longer than usual, and the next one started late; zeros without a verdict."""

    longer: float
    """Beyond the median of the others; where that is no measure, what its verdicts explain."""
    explained: float
    """What its verdicts explain, without what followed it."""
    rest: float
    """What they do not explain of `longer`; 0: not noticeable."""
    late: float
    """By how much the next one started late."""
    is_measured: bool
    """Whether `longer` is the difference from the median of the others. It is none for a failed step, for one with
    start-up, and where the rest of the step was shorter than usual."""
    usual: float | None
    """Median of the other steps that its length can be compared with; None: there are none."""
    other: Step | None
    """The only one of these; None: they are several, or none."""
    is_starting: bool
    """Whether it is long because it contains start-up."""
    is_unexplained: bool
    """Whether it is long without a verdict."""
    is_longer: bool
    """Whether it took longer than the others by `LONGER_SHARE`."""
    has_baseline: bool
    """Whether the run has enough steps to say what is usual."""


def find_excesses(steps: Sequence[Step], chosen: Sequence[Step]) -> list[Excess]:
    """Return by how much some steps took longer than usual.

    Args:
        steps: All steps of a run.
        chosen: Some of them.
    """
    comparable = step_lengths.find_comparable(steps)
    members, lengths = set(map(id, comparable)), sorted(step.seconds for step in comparable)
    starting = set(map(id, step_lengths.find_start_up(steps)))
    unexplained = set(map(id, step_lengths.find_unexplained(steps)))
    has_baseline = len(step_lengths.find_baseline(steps)) >= step_lengths.FEWEST
    found = []
    for step in chosen:
        is_member = id(step) in members
        others: Sequence[Step] = comparable
        if len(comparable) - is_member <= 1:
            others = step_lengths.find_comparable(steps, step)
            usual = median(other.seconds for other in others) if others else None
        else:
            usual = _find_median(lengths, bisect_left(lengths, step.seconds) if is_member else len(lengths))
        excess = _measure_excess(step, usual if is_member and len(comparable) > 1 else None)
        only = others[0] if len(others) == 1 else None
        is_longer = bool(usual) and step.seconds >= (1 + LONGER_SHARE) * (usual or 0.0)
        is_unexplained = id(step) in unexplained
        found.append(Excess(*excess, usual, only, id(step) in starting, is_unexplained, is_longer, has_baseline))
    return found


def _find_median(lengths: Sequence[float], left_out: int) -> float:
    """Return the median of sorted lengths without the one at a place; the number of them: of all."""
    count = len(lengths) - (left_out < len(lengths))
    low, high = (place + (place >= left_out) for place in ((count - 1) // 2, count // 2))
    return (lengths[low] + lengths[high]) / 2


def _measure_excess(step: Step, usual: float | None) -> tuple[float, float, float, float, bool]:
    """Return the first fields of the excess of a step over a usual length; None: it cannot be compared."""
    if not step.verdicts:
        return 0.0, 0.0, 0.0, 0.0, False
    late = sum_between(step)
    explained = sum_savings(step) - late
    longer = 0.0 if usual is None else step.seconds - usual
    smallest = (1 - REST_SHARE) * explained or max(PHASE_SECONDS, REST_SHARE * step.seconds)
    if longer < smallest:
        return explained, explained, 0.0, late, False
    rest = longer - explained
    return longer, explained, rest if rest >= REST_SHARE * longer else 0.0, late, True


class Held(NamedTuple):
    """The steps of a run that took longer than usual, or after which the next one started late, of all its steps."""

    long: int
    """Steps that took longer than usual themselves."""
    late: int
    """Steps after which the next one started late."""
    of: int
    slow: int
    """Steps that were slow without a known cause."""
    usual: int
    """Steps that say what is usual."""
    seconds: float
    """What both cost."""
    share: float
    """The share of it in the time of all steps and between them."""
    rest: float
    """Seconds of it that no verdict explains."""
    worst: Verdict | None
    """The cause with the largest saving."""


def sum_held(steps: Sequence[Step]) -> Held:
    """Return how many steps of a run took longer than usual, by how much, and the largest cause.

    Args:
        steps: All steps of a run.
    """
    found = find_excesses(steps, [step for step in steps if step.verdicts])
    lost = sum(excess.longer + excess.late for excess in found)
    return Held(
        sum(excess.longer > 0 for excess in found),
        sum(excess.late > 0 for excess in found),
        len(steps),
        len(step_lengths.find_unexplained(steps)),
        len(step_lengths.find_baseline(steps)),
        lost,
        lost / (sum(step.seconds + step.between for step in steps) or 1.0),
        sum(excess.rest for excess in found),
        max((verdict for step in steps for verdict in step.verdicts), key=lambda verdict: verdict.saved, default=None),
    )


def find_unrewarded(steps: Iterable[Step]) -> Step | None:
    """Return the step with most trajectories of score 0 in which a tool or the reward failed; None: they are few."""
    worst = max((step for step in steps if step.failures), key=lambda step: step.failures[0].unrewarded, default=None)
    if worst is None or worst.failures[0].unrewarded < max(FEWEST_UNREWARDED, UNREWARDED_SHARE * worst.members):
        return None
    return worst


def sort_held(run: Explanation) -> list[tuple[Step, float]]:
    """Return the steps with verdicts and by how many seconds each took longer than usual, the one that lost most first.

    The seconds are those that `sum_held` adds up, with what followed the step.
    """
    held = [step for step in run.steps if step.verdicts]
    lost = [excess.longer + excess.late for excess in find_excesses(run.steps, held)]
    return sorted(zip(held, lost, strict=True), key=lambda pair: -pair[1])


def choose_unexplained(run: Explanation, steps: Iterable[Step]) -> list[Step]:
    """Return those of some steps that were slow without a verdict."""
    slow = step_lengths.find_unexplained(run.steps)
    return [step for step in steps if any(step is other for other in slow)]


def choose_steps(run: Explanation, count: int) -> list[Step]:
    """Return the steps to explain: those that lost most, then slow ones without a verdict.

    Without either, the step that waited longest for one trajectory alone, or the slowest one.
    """
    slow = [*(step for step, _ in sort_held(run)), *step_lengths.find_unexplained(run.steps)]
    if slow or not run.steps or count < 1:
        return slow[:count]
    found = find_findings(run)
    if found:
        return [found[0].step]
    first = step_lengths.find_firsts(run.steps)
    starting = {step.trace_id for step in step_lengths.find_start_up(run.steps)}
    usual = [
        step
        for place, step in enumerate(run.steps)
        if place not in first and not step.failed and step.trace_id not in starting
    ] or run.steps
    return [max(usual, key=lambda step: step.seconds)]


def has_any(kinds: Sequence[str], run: Explanation, *, is_learned: bool) -> bool:
    """Return whether a run has something of `KINDS`.

    Args:
        kinds: What is looked for.
        run: The run.
        is_learned: Whether nothing was wrong with how it learned.
    """
    events = {event.kind for event in run.events}
    dead_ones = any(unfinished.dead for unfinished in run.completeness.unfinished)
    found = {
        "crash": "crash" in events or dead_ones,
        "stall": "stall" in events,
        "failed": any(step.failed for step in run.steps),
        "slow": any(step.verdicts for step in run.steps) or bool(step_lengths.find_unexplained(run.steps)),
        "learning": not is_learned,
    }
    return any(found[kind] for kind in (found if "any" in kinds else kinds))
