# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the log of verl's own ``file`` or ``console`` logger, of a run that verl-otel did not record: steps, phases, slow steps, and phases that changed.

Such a log has one line of numbers a step (``{"step": 1, "data": {...}}``, or ``step:1 - key:value``), without time stamps. NaN and infinity are null in
the first.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Final, NamedTuple

from verl_otel.analysis.document import Document, about
from verl_otel.analysis.io import run_log
from verl_otel.analysis.model import Completeness, Counts, Explanation, Phase, Step, Verdict
from verl_otel.analysis.scalars import ABOUT_STEP, LoggedStep, StepJoiner
from verl_otel.analysis.step_lengths import find_start_up
from verl_otel.analysis.verdicts.baselines import (
    DETAIL_SHARE,
    LOOK_AHEAD,
    PHASE_SECONDS,
    STEP_SHARE,
    Baseline,
    Baselines,
    measure,
)
from verl_otel.analysis.verdicts.slow_phases import PhaseTime, judge_phases
from verl_otel.health.recent_past import BEFORE, MIN_BEFORE, RECENT
from verl_otel.semconv import logs
from verl_otel.semconv.scalar_keys import CORE_VALIDATION, TRAINING

TIMER: Final = "timing_s/"
NO_PHASE: Final = "no phase"
"""Name of the time of a step outside of all its timers."""
WHOLE_STEP: Final = "step"
MAX_CHANGES: Final = 8
"""Changes that are kept, the largest."""
_SHORT_LEVEL: Final = 12
"""Steps on each side of a change that are compared where another change is nearer than `BEFORE`."""
_LARGEST: Final = 1e300
"""Numbers beyond this count as infinite."""
_LONGEST: Final = 1e9
"""Seconds of a step or a phase that are believed: 30 years."""
_NEAR: Final = 5
"""Values on each side of a change by which it counts as sudden or not."""
_STEP_SECONDS: Final = TRAINING["step_seconds"]
_OUTSIDE: Final = ("testing", "save_checkpoint", "start_profile", "stop_profile")
"""Phases that some trainers time inside of the step, and others after it."""
_CAUSES: Final = {
    "testing": "validation",
    "save_checkpoint": "checkpoint",
    "update_weights": "weight_sync",
    "sync_rollout_weights": "weight_sync",
    "param_sync": "weight_sync",
    "reward": "reward",
}
"""Kinds of work of phases, where there is one."""
_SLOWEST: Final = {
    "timing_s/agent_loop/slowest/generate_sequences": "llm",
    "timing_s/agent_loop/slowest/tool_calls": "tool",
    "timing_s/agent_loop/slowest/compute_score": "reward",
}
"""Seconds of the slowest trajectory of a step, which some trainers log, by kind of work."""
_GENERATION: Final = "gen"
_TOKENS: Final = {_GENERATION: "response_length/mean"}
(_ALL_TOKENS,) = TRAINING["tokens"]


_ALWAYS: Final = frozenset((*ABOUT_STEP, *_SLOWEST, *_TOKENS.values(), _ALL_TOKENS))


class PhaseSum(Document):
    """The longest first, without steps that contain start-up."""

    name: str
    seconds: float
    share: Annotated[float, about("of the time of these steps")]
    median: Annotated[float, about("of the steps that have it")]
    longest: float
    longest_step: int
    steps: Annotated[int, about("steps that have it")]
    outside: Annotated[bool, about("it is timed after the step, not in it")]


class Tokens(Document):
    """Tokens of a step or a response."""

    key: str
    before: float
    after: float


class Change(Document):
    """Phases whose usual time became another one."""

    name: Annotated[str, about("a phase, or step")]
    step: Annotated[int, about("the first step of the new length; of a gradual change the first that is compared")]
    last_step: Annotated[int, about("the last step that is compared")]
    before: Annotated[float, about("median in seconds")]
    after: Annotated[float, about("median in seconds")]
    sudden: Annotated[bool, about("not a gradual change")]
    tokens: Tokens | None


class TrackedLog(NamedTuple):
    """What a log has."""

    steps: tuple[LoggedStep, ...]
    """All steps, in the order of the log, without those that a later attempt has trained again."""
    run: Explanation
    """The steps that have a length, with their phases and verdicts; nothing else of a run is known."""
    phases: tuple[PhaseSum, ...]
    """The longest first; without the steps that contain start-up, if there are others."""
    changes: tuple[Change, ...]
    """That of the step first, then those of phases, the largest first."""
    outside: frozenset[str]
    """Phases that are no part of a step, as a validation after it."""
    damaged: int
    """Number of lines that could not be read."""


def read(paths: Sequence[Path], is_asked: Callable[[str], bool]) -> TrackedLog:
    """Return what the log of a run has.

    Args:
        paths: Its files in the order of time: several where each attempt of the run has its own.
        is_asked: Whether the value of a key of verl is kept, besides timers and validation scores.
    """
    damaged, joiner = 0, StepJoiner()
    is_kept = functools.cache(
        lambda key: key in _ALWAYS or is_asked(key) or key.startswith(CORE_VALIDATION) or bool(find_phase(key))
    )
    for record in run_log.read_tracked(paths):
        if record is None:
            damaged += 1
        elif (number := _to_step(record.get(logs.STEP), record.get("training/global_step"))) is not None:
            # Each line has texts of its own for its keys.
            joiner.add(number, {sys.intern(key): _to_value(value) for key, value in record.items() if is_kept(key)})
    logged, again = joiner.steps, joiner.find_repeated()
    lengths = [_find_lengths(step.values) for step in logged]
    outside = _find_outside(lengths)
    timed = [
        _Timed(place, logged[place], _make_step(logged[place], *lengths[place], outside, repeated=place in again))
        for place in range(len(logged))
        if lengths[place][0] > 0
    ]
    shifts = _find_shifts(timed)
    judged = _judge(timed, logged, outside, shifts)
    nothing = Counts(0, 0, 0, 0, 0, 0, 0)
    run = Explanation(
        paths[0].stem, tuple(map(str, paths)), {}, "no end seen", 0, 0, nothing, judged, (), (), (), (), (), Completeness((), (), 0), ()
    )  # fmt: skip
    kept = tuple(step for place, step in enumerate(logged) if place not in again)
    return TrackedLog(
        kept,
        run,
        _sum_phases([one.step for one in _leave_out_start_up(timed) or timed], outside),
        _list_changes(shifts),
        outside,
        damaged,
    )


def _to_step(*candidates: object) -> int | None:
    for value in candidates:
        if isinstance(value, (int, float)) and abs(value) < _LARGEST:
            return int(value)
    return None


def _to_value(value: object) -> float:
    """Return a value; NaN for null and for what is no number, or too large to compute with."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _LARGEST else math.nan


@functools.lru_cache(maxsize=10_000)
def find_phase(key: str) -> str:
    """Return the phase of the key of a timer; empty for another key, for the step, and for statistics of agent loops.

    Example:
        find_phase("timing_s/timing_s/param_sync") == "param_sync"
    """
    if not key.startswith(TIMER):
        return ""
    name = key.removeprefix(TIMER).removeprefix(TIMER)  # verl logs one of them with two prefixes
    return "" if "/" in name or name == WHOLE_STEP else name


# -- Steps with their phases, and what made some of them slow --


def _find_lengths(values: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """Return the length of a step and that of its phases; without a timer of the step, the sum of its phases."""
    phases = {phase: value for key, value in values.items() if (phase := find_phase(key)) and 0 <= value < _LONGEST}
    known = (values[key] for key in _STEP_SECONDS if 0 < values.get(key, math.nan) < _LONGEST)
    return next(known, sum(seconds for name, seconds in phases.items() if name not in _OUTSIDE)), phases


def _find_outside(lengths: Iterable[tuple[float, Mapping[str, float]]]) -> frozenset[str]:
    """Return the phases that do not fit into the steps that have them."""
    found = set()
    for length, phases in lengths:
        late = [name for name in _OUTSIDE if name in phases]
        if late:
            inside = sum(seconds for name, seconds in phases.items() if name not in _OUTSIDE)
            found |= {name for name in late if inside + phases[name] > length}
    return frozenset(found)


class _Timed(NamedTuple):
    """A step that has a length, and what was logged of it."""

    place: int
    """In the log."""
    logged: LoggedStep
    step: Step


def _make_step(
    step: LoggedStep, length: float, phases: Mapping[str, float], outside: frozenset[str], *, repeated: bool
) -> Step:
    """Return a step without its verdicts."""
    nanoseconds = round(length * 1e9)
    after = sum(seconds for name, seconds in phases.items() if name in outside)
    no_phase = max(0.0, length - sum(phases.values()) + after)
    parts = tuple(Phase(name, seconds, seconds / length) for name, seconds in phases.items())
    return Step(
        step.number, 0, 0, nanoseconds, False, parts, no_phase, (), 0, 0, 0,
        next_ns=nanoseconds + round(after * 1e9), attempt=step.attempt, repeated=repeated,
    )  # fmt: skip


def _judge(
    steps: Sequence[_Timed], logged: Sequence[LoggedStep], outside: frozenset[str], shifts: Iterable[_Shift]
) -> tuple[Step, ...]:
    """Return the steps with their verdicts; each is compared with those before and after it that are on the same level."""
    baselines, waiting, judged = Baselines(), deque[tuple[_Timed, list[PhaseTime]]](), []
    begins = {(shift.name, shift.after[0].place) for shift in shifts if shift.sudden}
    levels: Counter[str] = Counter()
    usual = {one.place for one in _leave_out_start_up(steps)}
    for one in (*steps, *[None] * LOOK_AHEAD):
        if one is not None:
            lengths = list_lengths(one.step) if one.place in usual else {}
            levels.update(name for name in lengths if (name, one.place) in begins)
            times = [
                PhaseTime("" if name == NO_PHASE else name, "", str(levels[name]), seconds)
                for name, seconds in lengths.items()
            ]
            for time in times:
                baselines.take(time.key, one.place, Baseline(time.seconds, 0.0, 1))
            waiting.append((one, times))
        if waiting and (one is None or len(waiting) > LOOK_AHEAD):
            own, times = waiting.popleft()
            floor = max(PHASE_SECONDS, STEP_SHARE * own.step.seconds)
            verdicts: list[Verdict] = []
            if any(time.seconds >= floor for time in times):
                found = judge_phases(times, own.step, own.place, baselines, floor, {})
                verdicts = [_name_cause(verdict, own.place, logged, outside) for verdict in found]
            judged.append(own.step._replace(verdicts=tuple(sorted(verdicts, key=lambda verdict: -verdict.saved))))
    return tuple(judged)


def list_lengths(step: Step) -> dict[str, float]:
    """Return seconds by phase, and outside of all phases."""
    return {**{phase.key: phase.seconds for phase in step.phases}, NO_PHASE: step.no_phase}


def _name_cause(verdict: Verdict, place: int, logged: Sequence[LoggedStep], outside: frozenset[str]) -> Verdict:
    """Return a verdict on a phase with the kind of its work, as far as a log shows it."""
    if verdict.subject == WHOLE_STEP:  # the time outside of all phases
        return verdict
    cause = _CAUSES.get(verdict.subject, "phase")
    if verdict.subject == _GENERATION:
        cause = _find_slowest(verdict, place, logged) or cause
    kind = "between" if verdict.subject in outside else verdict.kind
    return verdict._replace(kind=kind, cause=cause, cause_name="" if cause in _SLOWEST.values() else verdict.subject)


def _find_slowest(verdict: Verdict, place: int, logged: Sequence[LoggedStep]) -> str:
    """Return what the slowest trajectory of a step spent most of the excess on; empty if the log does not say."""
    near = [*logged[max(0, place - LOOK_AHEAD) : place], *logged[place + 1 : place + 1 + LOOK_AHEAD]]
    beyond = {}
    for key, kind in _SLOWEST.items():
        others = [value for other in near if (value := other.values.get(key, math.nan)) >= 0]
        if others and key in logged[place].values:
            beyond[kind] = logged[place].values[key] - median(others)
    kind = max(beyond, key=lambda each: beyond[each], default="")
    return kind if kind and beyond[kind] >= DETAIL_SHARE * verdict.seconds else ""


def _leave_out_start_up(steps: Sequence[_Timed]) -> list[_Timed]:
    starting = set(map(id, find_start_up([one.step for one in steps])))
    return [one for one in steps if id(one.step) not in starting]


def _sum_phases(steps: Sequence[Step], outside: frozenset[str]) -> tuple[PhaseSum, ...]:
    spent: dict[str, list[tuple[float, int]]] = {}
    for step in steps:
        for name, seconds in list_lengths(step).items():
            spent.setdefault(name, []).append((seconds, step.number or 0))
    whole = sum(step.seconds + step.between for step in steps)
    sums = []
    for name, times in spent.items():
        total, (longest, number) = sum(seconds for seconds, _ in times), max(times, key=lambda pair: pair[0])
        middle = median([seconds for seconds, _ in times])
        sums.append(PhaseSum(name, total, total / whole, middle, longest, number, len(times), name in outside))
    return tuple(sorted(sums, key=lambda one: -one.seconds))


# -- Phases that changed --


class _Shift(NamedTuple):
    """A phase that became longer or shorter: the steps that are compared, and whether it was sudden."""

    name: str
    before: Sequence[_Timed]
    after: Sequence[_Timed]
    lengths: tuple[float, float]
    """Medians in seconds."""
    sudden: bool


def _find_shifts(steps: Sequence[_Timed]) -> list[_Shift]:
    """Return where phases, and the step itself, became longer or shorter; start-up does not count."""
    usual = _leave_out_start_up(steps)
    if not usual:
        return []
    floor = max(PHASE_SECONDS, STEP_SHARE * median([one.step.seconds for one in usual]))
    lengths: dict[str, list[tuple[_Timed, float]]] = {}
    for one in usual:
        for name, seconds in {WHOLE_STEP: one.step.seconds, **list_lengths(one.step)}.items():
            lengths.setdefault(name, []).append((one, seconds))
    shifts = []
    for name, pairs in lengths.items():
        for first, last, sudden in _compare([seconds for _, seconds in pairs], floor):
            before, after = pairs[first], pairs[last]
            medians = median(seconds for _, seconds in before), median(seconds for _, seconds in after)
            shifts.append(_Shift(name, [one for one, _ in before], [one for one, _ in after], medians, sudden))
    return shifts


def _list_changes(shifts: Iterable[_Shift]) -> tuple[Change, ...]:
    changes = [
        Change(
            shift.name,
            (shift.after if shift.sudden else shift.before)[0].logged.number,
            shift.after[-1].logged.number,
            *shift.lengths,
            shift.sudden,
            _compare_tokens(shift),
        )
        for shift in shifts
    ]
    changes.sort(key=lambda change: (change.name != WHOLE_STEP, -abs(change.after - change.before)))
    return tuple(changes[:MAX_CHANGES])


def _compare(values: Sequence[float], floor: float) -> list[tuple[slice, slice, bool]]:
    """Return where values became larger or smaller: the two parts that are compared, and whether it was sudden.

    Args:
        values: Seconds by step.
        floor: Minimum difference in seconds.
    """
    if len(values) < MIN_BEFORE + RECENT:
        return []
    # Single slow steps are no change.
    smooth = [median(values[max(0, place - 1) : place + 2]) for place in range(len(values))]
    sums = [0.0, *itertools.accumulate(smooth)]
    pairs: list[tuple[slice, slice, bool]] = []
    waiting = [(0, len(values))]
    while waiting and len(pairs) < MAX_CHANGES:
        low, high = waiting.pop()
        split = _find_split(sums, low, high)
        if split is None:
            continue
        for size in (BEFORE, _SHORT_LEVEL):  # the shorter one where another change is near
            first, last = slice(max(low, split - size), split), slice(split, min(high, split + size))
            if _differ(values[first], values[last], floor) and _is_sudden(smooth[first], smooth[last]):
                pairs.append((first, last, True))
                waiting += [(low, split), (split, high)]
                break
    size = min(BEFORE, max(MIN_BEFORE, len(values) // 3))
    if not pairs and len(values) >= 2 * size and _differ(smooth[:size], smooth[-size:], floor):
        pairs.append((slice(0, size), slice(len(values) - size, len(values)), False))
    return pairs


def _find_split(sums: Sequence[float], low: int, high: int) -> int | None:
    """Return the place that divides values best into two levels, by the squares of their distances; None for too few values."""
    best, most = None, -math.inf
    for place in range(low + MIN_BEFORE, high - RECENT + 1):
        left, right = sums[place] - sums[low], sums[high] - sums[place]
        fit = left * left / (place - low) + right * right / (high - place)
        if fit > most:
            best, most = place, fit
    return best


def _differ(before: Sequence[float], after: Sequence[float], floor: float) -> bool:
    """Return whether two levels differ by more than the rule for a slow phase allows, and nearly all of their values do."""
    low, high = sorted((sorted(before), sorted(after)), key=median)
    usual, unusual = measure(low), measure(high)
    if usual is None or unusual is None or high[len(high) // 10] <= low[-1 - len(low) // 10]:
        return False
    spread = max(usual.spread, unusual.spread)
    return not usual._replace(spread=spread).allows(unusual.median, floor)


def _is_sudden(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether the values next to the change already differ by most of what the levels do."""
    step = median(after[:_NEAR]) - median(before[-_NEAR:])
    return abs(step) >= DETAIL_SHARE * abs(median(after) - median(before))


def _compare_tokens(shift: _Shift) -> Tokens | None:
    key = _TOKENS.get(shift.name, _ALL_TOKENS)
    medians = []
    for steps in (shift.before, shift.after):
        values = [one.logged.values.get(key, math.nan) for one in steps]
        known = [value for value in values if math.isfinite(value)]
        if not known:
            return None
        medians.append(median(known))
    return Tokens(key, *medians)
