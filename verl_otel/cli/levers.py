# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rank what would make a run faster, with the predicted gain and its uncertainty.

The newest steps of the run, up to 64 and of one attempt, are replayed with one thing changed: a tool that takes half of its time or no longer
blocks its event loop, twice as many replicas, weights that are sent in the background, and others. RUN is as for explain.

Examples:
  verl-otel levers
  verl-otel levers 20261121-093000-a3f2
  verl-otel levers --json RUN | jq '.levers[0]'

Exit code: 0 ranked, 1 the run contains nothing that can be replayed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis.levers.ranking import find_levers
from verl_otel.cli import options, run_selection
from verl_otel.cli.documents.levers import Lever, Levers, make_levers
from verl_otel.cli.formatting import print_json, print_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_runs(parser)
    options.add_otlp(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read, replay, print. Returns 1 when the run has nothing to replay."""
    explanation = run_selection.explain(arguments.folders, "levers", otlp=arguments.otlp)
    found = make_levers(explanation, find_levers(explanation.recent_steps))
    if arguments.json:
        print_json(found)
    else:
        print_text(render(found))
        print(f"\nNext: {found.next[0]}")
    return 0 if found.levers else 1


# -- Text --

TITLE: Final = "What would make a step shorter, each alone"
SMALLEST_SHARE: Final = 0.01
"""Levers with a smaller gain are only named."""
REPLAYED_ITEMS: Final = 20_000
"""Pieces of trajectories that are replayed where levers are shown beside other things: about a second."""
_LIMITS: Final = {"loop": "event loop of {}, blocked by tools", "server": "{}: {}", "reward": "{}: {}"}


def choose(levers: Sequence[Lever], *, once: bool = False) -> list[Lever]:
    """Return the levers that have a line of their own: those that help in more than one step.

    Those with less than `SMALLEST_SHARE` have none. Of tails with the same gain the smallest has one: with few trajectories in
    a step, 1% and 5% of them are the same ones.

    Args:
        levers: The largest gain first.
        once: Those that help in one step only instead.
    """
    chosen: list[Lever] = []
    for lever in levers:
        is_same = lever.kind == "tail" and any(
            (lever.kind, lever.seconds) == (each.kind, each.seconds) for each in chosen
        )
        if lever.share >= SMALLEST_SHARE and (lever.only_step is not None) == once and not is_same:
            chosen.append(lever)
    return chosen


def list_levers(levers: Sequence[Lever], limit: int | None = None) -> Iterator[str]:
    """Yield a line for each lever with a gain: seconds, share, interval and text.

    Args:
        levers: The largest gain first.
        limit: At most so many; None: all.
    """
    for lever in choose(levers)[:limit]:
        yield f"{seconds(lever.seconds):>9} {lever.share:4.0%}  {describe_interval(lever):<20}  {lever.text}"


def describe_interval(lever: Lever) -> str:
    """Return the interval of the gain of a lever."""
    if lever.low is None or lever.high is None:
        return "uncertainty unknown"
    return f"{_signed(lever.low)} to {_signed(lever.high)}"


def _signed(value: float) -> str:
    return f"-{seconds(-value)}" if value < 0 else seconds(value)


def render(found: Levers) -> str:
    """Return the levers as text."""
    lines = [f"Run {show(found.run_id)} · {show(found.state)}", *_describe_steps(found)]
    shown = list(list_levers(found.levers))
    if shown:
        lines += ["", f"{TITLE} (gain, share of {seconds(found.period)}, interval of 90%)", *shown]
    once = choose(found.levers, once=True)
    if once:
        lines += ["", "In one step only; verl-otel explain names its cause"]
        lines += [f"{seconds(lever.seconds):>9}  in step {lever.only_step}: {lever.text}" for lever in once]
    small = [lever.text for lever in found.levers if abs(lever.share) < SMALLEST_SHARE]
    slower = [lever.text for lever in found.levers if lever.share <= -SMALLEST_SHARE]
    for title, texts in ((f"Less than {SMALLEST_SHARE:.0%}", small), ("Slower, as others then come first", slower)):
        if texts:
            lines += ["", title, *(f"  {text}" for text in texts)]
    if found.limits:
        limits = (
            _LIMITS.get(limit.kind, "{}: {}").format(show(limit.process), counted(limit.slots, "slot"))
            for limit in found.limits
        )
        lines += ["", "Limits that were found", *(f"  {limit}" for limit in limits)]
    lines += ["", "What is not known", *(f"  {sentence}" for sentence in found.unknown)]
    return "\n".join(lines)


def _describe_steps(found: Levers) -> Iterator[str]:
    if found.steps:
        count = counted(len(found.steps), "step")
        yield (
            f"{count} replayed: {seconds(found.period)} from one to the next, "
            f"{seconds(found.waited)} of it waiting for trajectories."
        )
    if found.left_out:
        names = ", ".join("?" if number is None else str(number) for number in found.left_out)
        yield f"Left out, as much longer than the others: step{'' if len(found.left_out) == 1 else 's'} {names}."
