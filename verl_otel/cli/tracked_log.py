# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What ``verl-otel explain`` says about a log of verl's own ``file`` logger: time, learning, and what such a log cannot show."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import findings, step_lengths, tracked_log
from verl_otel.analysis.io import run_log
from verl_otel.analysis.model import Step, Verdict
from verl_otel.analysis.tracked_log import NO_PHASE, VALIDATION, WHOLE_STEP, Change, TrackedLog
from verl_otel.analysis.verdicts import off_policy
from verl_otel.cli import advice, options, wording
from verl_otel.cli import explain as recorded
from verl_otel.cli.formatting import SENTENCE, align, fill_schema, make_plain, number, print_json, wrap
from verl_otel.cli.guards import find_variable
from verl_otel.cli.json_schemas import EXPLAIN_LOG
from verl_otel.cli.run_folders import is_run
from verl_otel.guards.conditions import (
    FINITE,
    Check,
    Condition,
    Scalars,
    find_reward,
    make_conditions,
)
from verl_otel.health import profiles
from verl_otel.health.profiles import Profile
from verl_otel.health.recent_past import MIN_VALUES, WINDOW, LearningProgress, measure_trend
from verl_otel.semconv.scalar_keys import PPO, REFERENCE_KL, REWARDS, ROLLOUT, TRAINING, Keys


def _select(fields: Mapping[str, Keys], *names: str) -> dict[str, Keys]:
    return {name: fields[name] for name in names}


SIGNALS: Final[dict[str, Keys]] = {
    "reward_mean": REWARDS,
    "score_mean": ROLLOUT["score_mean"],
    "kl_div": PPO["kl_div"],
    "kl_reference": REFERENCE_KL,
    **_select(PPO, "entropy", "policy_loss", "value_loss", "grad_norm", "value_grad_norm", "clip_ratio", "rollout_kl"),
    "staleness": ("training/off_policy/trajectory_staleness/mean",),
    "stale_samples": ("fully_async/count/stale_samples_processed",),
    "trainer_idle_ratio": ("fully_async/trainer/idle_ratio",),
    **_select(ROLLOUT, "response_length_mean", "response_clip_ratio", "aborted_ratio"),
    **_select(TRAINING, "tokens", "tokens_per_second_per_gpu"),
    "mfu": ("perf/mfu/actor",),
    "gpu_memory_gib": ("actor/perf/max_memory_allocated_gb", "perf/max_memory_allocated_gb"),
    "gpu_reserved_gib": ("actor/perf/max_memory_reserved_gb", "perf/max_memory_reserved_gb"),
    "host_memory_gib": ("actor/perf/cpu_memory_used_gb", "perf/cpu_memory_used_gb"),
}  # fmt: skip
"""Signals, named as in the run log of verl-otel, and the keys of verl that have them; the first that a log has counts."""
_SCORES: Final = ("critic/score/min", "critic/score/max")
_KEYS: Final = frozenset(
    (*FINITE, *_SCORES, *(key for keys in SIGNALS.values() for key in keys), off_policy.AGE, *off_policy.DIFFERENCES)
)
MAX_LINES: Final = 80
"""Lines of the text; 40 with ``--brief``."""

PHASE_LINES: Final = 12
CHANGE_LINES: Final = 6
VALIDATION_LINES: Final = 3
MAX_KEY: Final = 40
"""Characters of the name of a validation score."""
LONGEST_WINDOW: Final = 20
"""Steps at the begin and at the end whose means are shown; of short runs a third."""
START: Final = "VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ..."
_OVERLAP: Final = 0.01
_NAMED: Final = 3
"""Names of files, and steps with start-up, that are listed."""
_SAME: Final = 0.1
"""Numbers of tokens that differ by a smaller share are called equal."""
_STRICTER: Final = "math"
"""A profile that limits the share of truncated responses."""
_COMPARED: Final = ("reward_mean", "score_mean")
_BLIND: Final = (
    "which trajectory, tool call, turn, server or rank a step waited for, and why GPUs were idle: the log has sums of a step, no spans",
    "the time between two steps (logging, loading data, own code): the logger writes no time stamps",
)
_REMEDIES: Final = {
    "nan": "look at the steps before it, and at the learning rate; {variable}=1 stops such a run",
    "kl": "lower actor.optim.lr or the number of updates of a batch; {variable}=5 stops such a run",
    "reward_fall": "go back to a checkpoint before it; {variable}=5 stops such a run",
    "plateau": "look at entropy, truncation and equal scores from that step on; {variable}=100 stops such a run",
    "reward_zero": "look at what the reward function returns; trainer.rollout_data_dir keeps the rollouts",
    "reward_range": "look at what the reward function returns; trainer.rollout_data_dir keeps the rollouts",
    "entropy": "raise actor.entropy_coeff, or lower actor.optim.lr",
    "truncated": "raise data.max_response_length, or punish long responses",
    "equal_scores": "nothing is learned from such a step: mix easier and harder prompts, or raise rollout.n",
}
"""What can be done about a finding."""


class Signal(NamedTuple):
    """One value of verl over the run."""

    name: str
    key: str
    begin: float
    """Mean of the first steps."""
    end: float
    """Mean of the last steps."""
    low: float
    low_step: int
    high: float
    high_step: int
    trend: float | None
    """Kendall's tau of the means of 20 parts of the run; None for too few values."""
    not_finite: int
    """Steps in which it was NaN or infinite."""


class Finding(NamedTuple):
    """What was wrong with the learning."""

    kind: str
    step: int
    """The first step at which it was noticed."""
    last_step: int
    """The last step at which it was."""
    times: int
    text: str
    next: str


class _Learning(NamedTuple):
    """The learning of a run."""

    profile: str
    limits: Mapping[str, float]
    """Its thresholds."""
    signals: tuple[Signal, ...]
    findings: tuple[Finding, ...]
    progress: str
    """Sentence about the reward; empty without one."""


# -- The command --


def find_logs(places: Sequence[Path]) -> list[Path]:
    """Return the places if each one is a log of verl's ``file`` logger, or an empty file that may become one; else none."""
    found = [place for place in places if place.is_file() and (run_log.is_tracked_log(place) or _is_empty(place))]
    return found if len(found) == len(places) else []


def _is_empty(place: Path) -> bool:
    return place.suffix == ".jsonl" and not place.stat().st_size and not is_run(place.parent)


def explain(arguments: argparse.Namespace, places: Sequence[Path]) -> int:
    """Explain a log. Returns 1 when it has no step.

    Args:
        arguments: Those of ``verl-otel explain``.
        places: Files of one run, in the order of time.
    """
    log = tracked_log.read(places, _KEYS.__contains__)
    if not log.steps:
        print(f"verl-otel: nothing to explain: {show(places[0], SENTENCE)} has no step yet", file=sys.stderr)
        return 1
    if arguments.step is None:
        chosen = findings.choose_steps(log.run, arguments.steps)
    else:
        chosen = [step for step in log.run.steps if step.number == arguments.step]
        if not chosen:
            first, last = log.steps[0].number, log.steps[-1].number
            print(f"verl-otel: step {arguments.step} is not in the log: it has {first} to {last}", file=sys.stderr)
            return 2
    learning = _learn(log, options.load_profile())
    if arguments.json:
        print_json(make_plain(_to_json(log, learning, chosen)))
        return 0
    lines = list(_render(log, learning, chosen, whole=arguments.step is not None))
    most = recorded.MAX_LINES if arguments.brief else MAX_LINES
    if arguments.brief:
        lines = [line for line in lines if line]
    if len(lines) > most:
        more = counted(len(lines) - most + 1, "more line")
        lines = [*lines[: most - 1], f"and {more}: verl-otel explain --json has everything"]
    print("\n".join(lines))
    return 0


# -- Learning --


def _learn(log: TrackedLog, profile: Profile) -> _Learning:
    findings: dict[str, Finding] = {}
    conditions = _make_conditions(profile.values)
    progress = LearningProgress()
    for step in log.steps:
        if not step.values.keys().isdisjoint(_KEYS):
            for condition in conditions:
                found = condition.observe(step.number, step.values)
                if found is not None:
                    kind, at, text = found
                    first = findings.get(kind) or Finding(kind, at, at, 0, text, _advise(kind))
                    findings[kind] = first._replace(last_step=at, times=first.times + 1)
        reward = find_reward(step.values)
        if reward is not None:
            progress.add(step.number, reward)
    signals = [signal for name, keys in SIGNALS.items() if (signal := _follow(log, name, keys)) is not None]
    signals = [signal for signal in signals if signal.name != "score_mean" or signal[2:] != signals[0][2:]]
    keys = dict.fromkeys(key for step in log.steps for key in step.values if key.startswith(VALIDATION))
    signals += [signal for key in keys if (signal := _follow(log, key, (key,))) is not None]
    ordered = sorted(findings.values(), key=lambda finding: finding.step)
    rise = _describe_progress(log, progress, profile.values)
    return _Learning(profile.name, profile.values, tuple(signals), tuple(ordered), rise)


def _make_conditions(limits: Mapping[str, float]) -> list[Condition]:
    """Return the guards of a training, and conditions of its alerts that one number a step is enough for."""
    guards = make_conditions(
        limits, nan=1, kl=_count(limits, "policy_kl_steps"), reward_fall=_count(limits, "reward_fall_steps"),
        plateau=_count(limits, "stagnation_steps"),
    )  # fmt: skip
    others: tuple[tuple[str, str, Check], ...] = (
        ("reward_zero", "reward_zero_steps", _ZeroReward()),
        ("reward_range", "reward_range_steps", functools.partial(_check_range, limits)),
        ("entropy", "entropy_steps", _EntropyFall(limits)),
        ("truncated", "response_steps", functools.partial(_check_truncated, limits)),
    )
    alerts = [Condition(kind, _count(limits, steps), check) for kind, steps, check in others if _count(limits, steps)]
    return [*guards, *alerts, Condition("equal_scores", 1, _check_scores)]


def _count(limits: Mapping[str, float], name: str) -> int:
    """Return a threshold that is a number of steps; 0 where it is off."""
    return 0 if math.isnan(limits[name]) else max(1, int(limits[name]))


class _ZeroReward:
    """Checks whether the reward is exactly 0 in a run that had another one."""

    def __init__(self) -> None:
        self._had_other = False

    def __call__(self, _step: int, scalars: Scalars) -> str | None:
        """Add a step; return what was seen."""
        reward = find_reward(scalars)
        self._had_other = self._had_other or bool(reward)
        return "the mean reward is exactly 0, which it was not before" if reward == 0 and self._had_other else None


class _EntropyFall:
    """Checks whether the entropy is low after it was several times as high."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = limits
        self._highest = 0.0

    def __call__(self, _step: int, scalars: Scalars) -> str | None:
        """Add a step; return what was seen."""
        value = next((scalars[key] for key in SIGNALS["entropy"] if key in scalars), math.nan)
        if not math.isfinite(value):
            return None
        self._highest = max(self._highest, value)
        low = value < self._limits["entropy"] and value * self._limits["entropy_fall_factor"] <= self._highest
        return (
            f"entropy {value:.3g} is below {self._limits['entropy']:g}, after it was {self._highest:.3g}"
            if low
            else None
        )


def _check_range(limits: Mapping[str, float], _step: int, scalars: Scalars) -> str | None:
    reward = find_reward(scalars)
    if reward is None or not (reward < limits["reward_low"] or reward > limits["reward_high"]):
        return None
    return f"the mean reward {reward:.3g} is outside of {limits['reward_low']:g} to {limits['reward_high']:g}"


def _check_truncated(limits: Mapping[str, float], _step: int, scalars: Scalars) -> str | None:
    share = scalars.get("response_length/clip_ratio", math.nan)
    if not share > limits["response_cut"]:
        return None
    return f"{share:.0%} of the responses were cut off at the limit of tokens, more than {limits['response_cut']:.0%}"


def _check_scores(_step: int, scalars: Scalars) -> str | None:
    low, high = (scalars.get(key, math.nan) for key in _SCORES)
    return f"all scores of the step were {low:.3g}" if low == high else None


def _advise(kind: str) -> str:
    remedy = _REMEDIES[kind]
    return remedy.format(variable=find_variable(kind)) if "{" in remedy else remedy


def _describe_progress(log: TrackedLog, progress: LearningProgress, limits: Mapping[str, float]) -> str:
    last = log.steps[-1].number
    since = progress.count_since_best(last)
    if since is None:
        return ""
    best = (
        f"the best mean reward of five steps ended at step {last - since}, {counted(since, 'step')} before the last one"
    )
    trend = progress.find_trend()
    if trend is None:
        return best
    rises = "the reward still rises" if trend >= limits["stagnation_trend"] else "the reward does not rise"
    return f"{best}; in the last {WINDOW} steps {rises} (Kendall's tau {trend:.2f})"


def _follow(log: TrackedLog, name: str, keys: Iterable[str]) -> Signal | None:
    """Return a signal over the run; None if the log does not have it, or only zeros."""
    known = {key: [(step.values[key], step.number) for step in log.steps if key in step.values] for key in keys}
    key = next((key for key, pairs in known.items() if any(math.isfinite(value) for value, _ in pairs)), None)
    if key is None:
        return None
    pairs = [pair for pair in known[key] if math.isfinite(pair[0])]
    values = [value for value, _ in pairs]
    if not any(values) and name not in _COMPARED:
        return None
    size = _find_window(len(values))
    (low, low_step), (high, high_step) = min(pairs, key=lambda pair: pair[0]), max(pairs, key=lambda pair: pair[0])
    return Signal(
        name, key, fmean(values[:size]), fmean(values[-size:]), low, low_step, high, high_step, _measure_trend(values),
        len(known[key]) - len(pairs),
    )  # fmt: skip


def _find_window(count: int) -> int:
    return max(1, min(LONGEST_WINDOW, count // 3))


def _measure_trend(values: Sequence[float]) -> float | None:
    """Return the trend of a whole run, by the means of `WINDOW` parts of it."""
    if len(values) < MIN_VALUES:
        return None
    parts = min(WINDOW, len(values))
    ends = [len(values) * part // parts for part in range(parts + 1)]
    return measure_trend([fmean(values[begin:end]) for begin, end in itertools.pairwise(ends)])


# -- Text --


def _render(log: TrackedLog, learning: _Learning, chosen: Sequence[Step], *, whole: bool) -> Iterator[str]:
    """Yield the lines of the text.

    Args:
        log: The log.
        learning: What was learned.
        chosen: The steps that are shown.
        whole: Whether they were asked for, and are shown with all their phases.
    """
    yield from _head(log)
    for title, lines in (
        ("Time in phases" + _name_start_up(log), [] if whole else _list_phases(log)),
        ("What changed", [] if whole else _describe_changes(log)),
        ("Steps" if whole else "Slow steps", _describe_steps(log, learning, chosen, whole=whole)),
        (
            f"Learning (thresholds: profile {show(learning.profile)})",
            [] if whole else _describe_learning(log, learning),
        ),
        ("Engine and trainer", [] if whole else _describe_off_policy(log)),
        (
            "What this log does not show",
            (f"  {sentence}" for text in (*_list_missing(log), *_BLIND) for sentence in _wrap(text)),
        ),
        ("Next", (f"  {line}" for line in _list_next(log, chosen, whole=whole))),
    ):
        block = list(lines)
        if block:
            yield ""
            yield title
            yield from block


def _wrap(text: str) -> list[str]:
    return wrap(show(text, SENTENCE), recorded.WIDTH - 2, rest="  ")


def _head(log: TrackedLog) -> Iterator[str]:
    names = ", ".join(show(place) for place in log.run.folders[:3])
    yield f"Log {names} of verl's file logger: a run without verl-otel"
    steps, timed = log.steps, log.run.steps
    span = f"{counted(len(steps), 'step')}, {steps[0].number}{f' to {steps[-1].number}' if len(steps) > 1 else ''}"
    attempts = steps[-1].attempt
    again = [step for step in timed if step.repeated]
    if attempts > 1:
        span += f", in {attempts} attempts"
    if again:
        lost = seconds(sum(step.seconds for step in again))
        span += f" ({counted(len(again), 'step')} trained again, which took {lost} before)"
    if not timed:
        yield f"{span}, without their lengths"
        return
    longest = max(timed, key=lambda step: step.seconds)
    after = sum(step.between for step in timed)
    also = f" and {seconds(after)} of {', '.join(sorted(log.outside))} after them" if after else ""
    whole, middle = sum(step.seconds for step in timed), median(step.seconds for step in timed)
    yield f"{span}: {seconds(whole)}{also}; median step {seconds(middle)}, longest {seconds(longest.seconds)} (step {longest.number})"


def _name_start_up(log: TrackedLog) -> str:
    starting = step_lengths.find_start_up(log.run.steps)
    if not starting or len(starting) == len(log.run.steps):
        return ""
    names = ", ".join(f"{step.number} ({seconds(step.seconds)})" for step in starting[:_NAMED])
    more = f" and {len(starting) - _NAMED:,} more" if len(starting) > _NAMED else ""
    return f", without the start-up in step {names}{more}"


def _list_phases(log: TrackedLog) -> Iterator[str]:
    if not log.phases:
        return
    rows = [("phase", "share", "total", "median", "longest", "at step", "steps")]
    rows += [
        (
            show(f"{phase.name}{' (after the step)' if phase.outside else ''}", MAX_KEY), wording.share(phase.share), seconds(phase.seconds),
            seconds(phase.median), seconds(phase.longest), str(phase.longest_step), f"{phase.steps:,}",
        )
        for phase in log.phases[:PHASE_LINES]
    ]  # fmt: skip
    yield from (f"  {line}" for line in align(rows, range(1, 7)))
    rest = log.phases[PHASE_LINES:]
    if rest:
        yield f"  and {counted(len(rest), 'smaller phase')}: {wording.share(sum(phase.share for phase in rest))}"
    if sum(phase.share for phase in log.phases) > 1 + _OVERLAP:
        yield "  Some of these timers overlap, so that shares add up to more than 100%."


def _describe_changes(log: TrackedLog) -> Iterator[str]:
    for change in log.changes[:CHANGE_LINES]:
        yield from (f"  {line}" for line in _wrap(_describe_change(change)))
    if len(log.changes) > CHANGE_LINES:
        yield f"  and {counted(len(log.changes) - CHANGE_LINES, 'smaller change')}"


def _describe_change(change: Change) -> str:
    name = {WHOLE_STEP: "a step", NO_PHASE: "the time outside of all phases"}.get(change.name, change.name)
    before, after = seconds(change.before), seconds(change.after)
    text = f"From step {change.step} on {name} took {after} instead of {before}"
    if not change.sudden:
        way = "grew" if change.after > change.before else "fell"
        text = f"From step {change.step} to {change.last_step} {name} {way} from {before} to {after}"
    if change.tokens is None:
        return show(text)
    key, old, new = change.tokens
    tokens = f"stayed at {wording.figure(new)}"
    if abs(new - old) > _SAME * abs(old):
        tokens = f"went from {wording.figure(old)} to {wording.figure(new)}"
    return f"{show(text)}; {key} {tokens}"


def _describe_steps(log: TrackedLog, learning: _Learning, chosen: Sequence[Step], *, whole: bool) -> Iterator[str]:
    steps = log.run.steps
    unexplained = wording.describe_unexplained(log.run.steps)
    if not whole and steps:
        if any(step.verdicts for step in steps):
            yield f"  {wording.describe_held(steps)}"
        elif not unexplained:
            yield f"  {wording.describe_no_delay(steps)}"
        if unexplained:
            yield f"  Slow without one phase as the cause: {unexplained}"
    shown = chosen if whole else [step for step in chosen if step.verdicts or unexplained]
    for step in shown:
        others = step_lengths.find_comparable(steps, step)
        usual = f" (others: median {seconds(median(other.seconds for other in others))})" if others else ""
        yield f"  Step {number(step)} took {seconds(step.seconds)}{usual}"
        for verdict in step.verdicts[: recorded.VERDICT_LINES]:
            yield from (f"    {line}" for line in _wrap(wording.describe_verdict(verdict)))
            yield from (f"    {line}" for line in _wrap(f"To do: {_advise_on(verdict)}"))
        if whole or not step.verdicts:
            yield from _list_step(step, others)
        if whole:
            yield from _list_values(log, learning, step)


def _advise_on(verdict: Verdict) -> str:
    """Return what to do about a slow phase; what it waited for is not in the log unless the phase is one kind of work."""
    if verdict.cause in ("phase", "step"):
        where = "between its phases" if verdict.cause == "step" else f"in {verdict.subject}"
        return f"train again with VERL_OTEL_ENABLED=1, which records what the step waits for {where}"
    return advice.advise(verdict)


def _list_step(step: Step, others: Sequence[Step]) -> Iterator[str]:
    """Yield the phases of a step, the longest first, and how long they usually take."""
    usual: dict[str, list[float]] = {}
    for other in others:
        for name, length in tracked_log.list_lengths(other).items():
            usual.setdefault(name, []).append(length)
    for name, length in sorted(tracked_log.list_lengths(step).items(), key=lambda pair: -pair[1])[:PHASE_LINES]:
        also = f" (others: median {seconds(median(usual[name]))})" if name in usual else ""
        yield f"    {seconds(length):>9}  {show(name, MAX_KEY)}{also}"


def _list_values(log: TrackedLog, learning: _Learning, step: Step) -> Iterator[str]:
    """Yield the signals of a step, and what they usually are."""
    own = next((one for one in log.steps if (one.number, one.attempt) == (step.number, step.attempt)), None)
    for signal in learning.signals if own else ():
        if own and signal.key in own.values:
            middle = median(value for one in log.steps if math.isfinite(value := one.values.get(signal.key, math.nan)))
            yield f"    {_figure(own.values[signal.key]):>9}  {show(signal.name, MAX_KEY)} (median of all steps {_figure(middle)})"


def _describe_learning(log: TrackedLog, learning: _Learning) -> Iterator[str]:
    signals = [signal for signal in learning.signals if not signal.name.startswith(VALIDATION)]
    signals += [signal for signal in learning.signals if signal.name.startswith(VALIDATION)][:VALIDATION_LINES]
    for finding in learning.findings:
        often = f" ({finding.times:,} times)" if finding.times > 1 else ""
        yield from (
            f"  {line}" for line in _wrap(f"Step {finding.step}: {finding.text}{often}. To do: {finding.next}.")
        )
    if learning.progress:
        yield from (f"  {line}" for line in _wrap(f"{learning.progress[:1].upper()}{learning.progress[1:]}."))
    yield from (f"  {line}" for text in _name_unjudged(learning) for line in _wrap(text))
    if signals:
        size = _find_window(len(log.steps))
        rows = [("signal", f"first {size}", f"last {size}", "lowest", "at step", "highest", "at step", "trend")]
        rows += [
            (
                show(signal.name, MAX_KEY), _figure(signal.begin), _figure(signal.end), _figure(signal.low), str(signal.low_step),
                _figure(signal.high), str(signal.high_step), _name_trend(signal, learning.limits["stagnation_trend"]),
            )
            for signal in signals
        ]  # fmt: skip
        yield from (f"  {line}" for line in align(rows, range(1, 7)))


def _name_unjudged(learning: _Learning) -> Iterator[str]:
    """Yield what another profile would call truncation, as most profiles have no threshold for it."""
    limit = profiles.PROFILES[_STRICTER]["response_cut"]
    share = next((signal.end for signal in learning.signals if signal.name == "response_clip_ratio"), 0.0)
    if math.isnan(learning.limits["response_cut"]) and share > limit:
        yield (
            f"In the last steps {share:.0%} of the responses were cut off at the limit of tokens, which this profile allows; "
            f"VERL_OTEL_HEALTH_PROFILE={_STRICTER} allows {limit:.0%}."
        )


def _describe_off_policy(log: TrackedLog) -> Iterator[str]:
    found = off_policy.judge(step.values for step in log.steps)
    for text in wording.describe_off_policy(found):
        yield from (f"  {line}" for line in _wrap(f"{text[:1].upper()}{text[1:]}."))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"  # noqa: PLR2004 - more digits than are shown


def _name_trend(signal: Signal, limit: float) -> str:
    trend = signal.trend
    word = "" if trend is None else "rises" if trend >= limit else "falls" if trend <= -limit else "no trend"
    return f"{word}; NaN in {counted(signal.not_finite, 'step')}" if signal.not_finite else word


def _list_missing(log: TrackedLog) -> Iterator[str]:
    """Yield what is not in this log, although other logs of verl have it."""
    if log.damaged:
        yield f"{counted(log.damaged, 'line')} that could not be read: cut off, or of something else"
    keys = {key for step in log.steps for key in step.values}
    if not log.run.steps:
        yield "the time of steps: no timing_s/step"
    elif not any(map(tracked_log.find_phase, keys)):
        yield "the time of phases: no timing_s/gen or another timer of a phase"
    for name, text in (("reward_mean", "the reward"), ("kl_div", "the policy KL"), ("grad_norm", "the gradient norm")):
        if keys.isdisjoint(SIGNALS[name]):
            yield f"{text}: no {SIGNALS[name][0]}"


def _list_next(log: TrackedLog, chosen: Sequence[Step], *, whole: bool = False) -> list[str]:
    place = " ".join(log.run.folders)
    steps = [] if whole else [step.number for step in chosen[:1]]
    return [
        *(f"verl-otel explain {place} --step {step}" for step in steps),
        f"{START}   (records what is missing here; then: verl-otel explain)",
    ]


# -- JSON --


def _to_json(log: TrackedLog, learning: _Learning, chosen: Sequence[Step]) -> dict[str, Any]:
    steps, found = log.run.steps, off_policy.judge(step.values for step in log.steps)
    return fill_schema(
        EXPLAIN_LOG,
        log.run,
        counts={
            "steps": len(log.steps),
            "attempts": log.steps[-1].attempt,
            "repeated": sum(step.repeated for step in steps),
            "held": sum(bool(step.verdicts) for step in steps),
            "unexplained": len(step_lengths.find_unexplained(steps)),
        },
        steps=[_step_json(step) for step in chosen],
        seconds=sum(step.seconds + step.between for step in steps),
        median=median(step.seconds for step in steps) if steps else None,
        phases=log.phases,
        changes=log.changes,
        profile=learning.profile,
        progress=learning.progress,
        off_policy=found,
        signals=learning.signals,
        findings=learning.findings,
        missing=list(_list_missing(log)),
        unknown=_BLIND,
        next=_list_next(log, chosen),
    )


def _step_json(step: Step) -> dict[str, Any]:
    schema = EXPLAIN_LOG["properties"]["steps"]
    verdicts = schema["items"]["properties"]["verdicts"]
    return fill_schema(
        schema,
        step,
        verdicts=[fill_schema(verdicts, verdict, next=_advise_on(verdict)) for verdict in step.verdicts],
        phases={phase.key: phase.seconds for phase in step.phases},
    )
