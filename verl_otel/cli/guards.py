# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Show what guards would have done in a recorded run, before switching them on.

RUN is the folder of a run, or its id or the beginning of it; the newest run if absent. Each guard is tried by itself, on the scalars that verl logged.
Nothing is stopped by this command. The best checkpoint is sought among the steps that verl saved by `trainer.save_freq`; whether each save was completed,
what a callback saved, and what an earlier attempt kept is not known here. To switch a guard on, set its variable where the training is started.

Examples:
  verl-otel guards
  verl-otel guards RUN --reward-fall 10 --plateau 200
  verl-otel guards RUN --best min:actor/ppo_kl --json
  verl-otel guards RUN --profile math
  VERL_OTEL_STOP_ON_NAN=1 VERL_OTEL_STOP_ON_REWARD_FALL=5 python -m verl.trainer.main_ppo ...

Exit code: 0 shown, 1 the run has no scalars of verl, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from verl_otel._internal.printable import counted, show
from verl_otel.analysis.model import Explanation
from verl_otel.analysis.scalars import StepScalars, find_keys, find_limit, read_steps
from verl_otel.cli import options, run_selection
from verl_otel.cli.documents.base import fill
from verl_otel.cli.documents.tools import Guards
from verl_otel.cli.formatting import SENTENCE, print_json
from verl_otel.errors import VerlOtelError
from verl_otel.guards.decisions import BestMetric, describe_missing
from verl_otel.guards.wording import describe, find_variable
from verl_otel.health.conditions import FINITE, GUARD_KEYS, LEVEL, Finding, make_conditions
from verl_otel.health.profiles import from_manifest
from verl_otel.health.thresholds import DEFAULTS

TRIED: Final = {"nan": 1, "kl": 5, "reward_fall": 5, "plateau": 100}
"""Steps with which a guard is tried, unless its option says otherwise."""

_SAVES_LAST: Final = ("finished", "stopped by guard")
"""States of a run that came to verl's last step."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_runs(parser)
    for guard, steps in TRIED.items():
        parser.add_argument(
            f"--{guard.replace('_', '-')}",
            type=options.positive,
            default=steps,
            metavar="STEPS",
            help=f"steps of the guard {find_variable(guard)} ({steps})",
        )
    parser.add_argument("--best", metavar="KEY", help="also show which step has the best value of this scalar")
    options.add_profile(parser, "the profile of the run")
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay the guards. Returns 1 when the run has no scalars."""
    explanation = run_selection.explain(arguments.folders, "guards")
    best = BestMetric(arguments.best) if arguments.best else None
    steps = list(read_steps(explanation.series, [*FINITE, *(best.keys if best else ())]))
    if best is not None and steps and not any(best.is_in(one.values) for one in steps):
        missing = f"the run has no scalar {best.key!r}; {describe_missing(best.key, find_keys(explanation.series))}"
        raise VerlOtelError(show(missing, SENTENCE))
    profile = arguments.profile or from_manifest(explanation.manifest)
    findings = {guard: replay(guard, getattr(arguments, guard), steps, profile.values) for guard in TRIED}
    limit = find_limit(explanation.series, "save_frequency")
    frequency = None if limit is None else int(limit)
    values = {} if best is None else find_values(best, steps, frequency, is_complete=explanation.state in _SAVES_LAST)
    best_step = None if best is None else best.choose(values)
    if arguments.json:
        found = {
            guard: None if finding is None else {"step": finding.step, "text": describe(finding)}
            for guard, finding in findings.items()
        }
        print_json(
            fill(
                Guards,
                None,
                run_id=explanation.run_id,
                steps=len(steps),
                guards=found,
                best_step=best_step,
                save_frequency=frequency,
                next=[_find_next(explanation)],
            )
        )
    else:
        print(f"run {show(explanation.run_id)}: {counted(len(steps), 'step')} with scalars")
        for guard, finding in findings.items():
            number = getattr(arguments, guard)
            print(f"  {find_variable(guard)}={number} {_describe_effect(guard, number, finding, steps)}")
        if best is not None and best_step is not None:
            print(
                f"  best {show(best.key)}: {values[best_step]:.4g} at step {best_step}, {_name_candidates(frequency)}"
            )
        elif best is not None:
            print(f"  best {show(best.key)}: {_name_candidates(frequency)}, none has a value")
        if explanation.is_own:
            print("  guards act in verl's trainers only: a loop of your own is not stopped by them")
        print(f"Next: {_find_next(explanation)}")
    if steps:
        return 0
    print("verl-otel: the run has no scalars of verl, which guards need", file=sys.stderr)
    return 1


def _describe_effect(guard: str, number: int, finding: Finding | None, steps: Sequence[StepScalars]) -> str:
    """Return what a guard would have done in a run with these scalars."""
    if finding is not None:
        return f"would have stopped it after step {finding.step + 1}: {describe(finding)}"
    if not steps:
        return "not known: the run has no scalars of verl"
    keys = GUARD_KEYS[guard]
    recorded = sum(not one.values.keys().isdisjoint(keys) for one in steps)
    if not recorded:
        return f"not known: the run has no {' or '.join(keys)}"
    if recorded < number + (LEVEL if guard == "reward_fall" else 0):
        return f"not known: the run has only {counted(recorded, 'step')} with its scalars"
    return "would not have stopped it"


def replay(
    guard: str, steps: int, recorded: Iterable[StepScalars], thresholds: Mapping[str, float] = DEFAULTS
) -> Finding | None:
    """Return the first finding of one guard.

    Args:
        guard: A key of `TRIED`.
        steps: Its number of steps.
        recorded: The scalars of the run.
        thresholds: Those of a profile.
    """
    (condition,) = make_conditions(thresholds, **{**dict.fromkeys(TRIED, 0), guard: steps})
    return next((finding for one in recorded if (finding := condition.observe(*one)) is not None), None)


def find_values(
    best: BestMetric, recorded: Sequence[StepScalars], frequency: int | None, *, is_complete: bool
) -> dict[int, float]:
    """Return the values of a scalar at the steps that verl saved; at all steps if it is not known, or if verl saved none.

    Args:
        best: The scalar.
        recorded: The scalars of the run.
        frequency: Every how many steps verl saved, 0 or less: never; None: it is not recorded.
        is_complete: Whether the run came to verl's last step, which verl saves, too.
    """
    values = {one.step: value for one in recorded if (value := best.read(one.values)) is not None}
    if frequency is None or frequency <= 0:
        return values
    last = recorded[-1].step if recorded and is_complete else None
    return {step: value for step, value in values.items() if step % frequency == 0 or step == last}


def _name_candidates(frequency: int | None) -> str:
    if frequency is None:
        return "of all steps: how often verl saved is not recorded"
    if frequency <= 0:
        return "of all steps: verl saved none (trainer.save_freq)"
    return f"of those that verl saved (trainer.save_freq={frequency})"


def _find_next(run: Explanation) -> str:
    """Return the command that shows the steps in the run log, which has scalars of verl's trainers."""
    scopes = "" if run.is_own else " --scope ppo --scope rollout"
    return f"verl-otel logs {run_selection.name_run(run)}{scopes}"
