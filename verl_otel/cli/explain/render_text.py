# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders an explanation as text: why steps were slow."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from verl_otel._internal.printable import show
from verl_otel.analysis.gpu import token_cost
from verl_otel.analysis.model import Explanation, Segment, Step
from verl_otel.analysis.verdicts import stragglers
from verl_otel.analysis.verdicts.step_savings import sum_savings
from verl_otel.cli.explain import wording as words
from verl_otel.cli.formatting import dead, failed, headline, number, seconds

WIDTH: Final = 120
PATH_LINES: Final = 8
"""Number of parts of a critical path that are shown by default."""
EVENT_LINES: Final = 5
VERDICT_LINES: Final = 3
LONG_FACTOR: Final = 2
"""A step without a verdict that took this many times as long as the others is reported as unexplained."""
SHORTEST_NS: Final = 1_000_000
NOTED_UNCERTAINTY: Final = 0.01
"""Smaller clock uncertainties in seconds are not reported."""


def render(run: Explanation, *, steps: int = 3) -> str:
    """Return why the slowest steps of a run were slow, and how GPU time and tokens were spent."""
    chosen = choose(run, steps)
    parts = [_head(run), "\n".join(_events(run)), _verdict_count(run)]
    parts += ["\n".join(_step(run, step, whole=False)) for step in chosen]
    whole = list(_whole_run(run))
    parts += ["\n".join(["The whole run", *whole] if whole else []), "\n".join(_unknown(run, run.steps))]
    return "\n\n".join(part for part in parts if part)


def render_step(run: Explanation, chosen: Sequence[Step]) -> str:
    """Return all detail of some steps."""
    parts = [_head(run), "\n".join(_events(run))]
    parts += ["\n".join(_step(run, step, whole=True)) for step in chosen]
    parts.append("\n".join(_unknown(run, chosen)))
    return "\n\n".join(part for part in parts if part)


def choose(run: Explanation, count: int) -> list[Step]:
    """Return the steps to explain: those with the largest savings first; without any verdict, the slowest step."""
    held = sorted((step for step in run.steps if step.verdicts), key=lambda step: -sum_savings(step))
    if held or not run.steps or count < 1:
        return held[:count]
    usual = [
        step for step in run.steps[1:] if not step.failed
    ] or run.steps  # the first contains the start of the workers
    return [max(usual, key=lambda step: step.seconds)]


def _head(run: Explanation) -> str:
    return "\n".join([f"Run {show(run.run_id)} · {show(run.state)}", *filter(None, headline(run))])


def _events(run: Explanation) -> Iterator[str]:
    """Yield failures, stalls and crashes; these come first."""
    yield from filter(None, [failed(run)])
    for event in run.events[:EVENT_LINES]:
        after = f" after {seconds(max(0.0, (event.time_ns - run.start_ns) / 1e9))}" if run.start_ns else ""
        yield f"{show(event.kind.upper())}{after}: {show(event.text)}"
    if len(run.events) > EVENT_LINES:
        yield f"and {len(run.events) - EVENT_LINES} more stalls and crashes"
    for unfinished in run.completeness.unfinished:
        if unfinished.dead:
            yield f"DEAD: {show(dead(unfinished))}"
        elif unfinished.work:
            oldest = max(unfinished.work, key=lambda work: work.age)
            child = f", last in {oldest.last_child}" if oldest.last_child else ""
            yield show(f"STILL OPEN: {unfinished.process.label}: {oldest.span.name} for {seconds(oldest.age)}{child}")


def _verdict_count(run: Explanation) -> str:
    if not run.steps:
        return "No step has ended yet, so there is none to explain."
    held = [step for step in run.steps if step.verdicts]
    if not held:
        return f"Nothing delayed any of {len(run.steps):,} steps noticeably.{_below(start_up(run))}"
    total = sum(map(sum_savings, held))
    whole = sum(step.seconds for step in run.steps)
    return (
        f"{len(held):,} of {len(run.steps):,} steps took longer than necessary, by {seconds(total)} in all "
        f"({words.share(total / max(whole, 1e-9))} of the time of all steps).{_below(start_up(run))}"
    )


def _below(text: str) -> str:
    return f"\n{text}" if text else ""


def start_up(run: Explanation) -> str:
    """Return the message about the first step if it was much longer than the others; else an empty text."""
    first, others = run.steps[0], [step for step in run.steps[1:] if not step.failed]
    top = max(first.phases, key=lambda phase: phase.seconds, default=None)
    if not others or top is None or first.seconds < LONG_FACTOR * median(step.seconds for step in others):
        return ""
    return f"The first, step {number(first)}, took {seconds(first.seconds)}: start-up is in it ({show(top.key)} {top.share:.0%})."


# -- one step --


def _step(run: Explanation, step: Step, *, whole: bool) -> Iterator[str]:
    yield _title(run, step)
    shown = step.verdicts if whole else step.verdicts[:VERDICT_LINES]
    for verdict in shown:
        yield textwrap.fill(
            words.describe_verdict(verdict),
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    if len(shown) < len(step.verdicts):
        yield f"  And {len(step.verdicts) - len(shown)} more: --step {number(step)} shows them."
    yield from _block("Critical path, largest parts first", _path(run, step, whole=whole))
    if whole and step.path:
        yield from _block("Critical path in the order of time", _path_in_order(run, step))
    yield from _block("It would have been shorter by", words.describe_savings(step.savings, step.seconds))
    gpus = words.device_seconds(step.devices)
    count = sum(device.gpus for device in step.devices)
    yield from _block(
        f"GPU time until the next step ({count} x {seconds(gpus / max(1, count))})",
        words.describe_devices(step.devices),
    )
    late = step.stragglers if whole else step.stragglers[:VERDICT_LINES]
    yield from _block("Ranks that others waited for", map(words.describe_straggler, late))
    if step.cost is not None:
        yield from _block(
            "Tokens", words.describe_cost(step.cost.gpu_seconds, step.cost.trained_tokens, step.cost.wasted_tokens)
        )
    if step.uncertainty >= NOTED_UNCERTAINTY:
        yield f"  Clocks of its hosts may be {seconds(step.uncertainty)} apart: nothing shorter is sure between them."


def _title(run: Explanation, step: Step) -> str:
    whole = [other for other in run.steps if not other.failed]  # the duration of a failed step is not comparable
    others = [other.seconds for other in whole if other is not step and other is not run.steps[0]] or [
        other.seconds for other in whole if other is not step
    ]
    usual = f" (others: median {seconds(median(others))})" if others else ""
    name = f"Step {number(step)}{' FAILED after' if step.failed else ' took'} {seconds(step.seconds)}"
    if step.verdicts:
        return f"{name}, {seconds(sum_savings(step))} longer than necessary{usual}."
    is_long = others and step.seconds > LONG_FACTOR * median(others)
    return f"{name}{usual}. {'No single cause was found' if is_long else 'Nothing delayed it noticeably'}."


def _block(title: str, lines: Iterable[str]) -> Iterator[str]:
    shown = list(lines)
    if shown:
        yield f"  {title}"
        yield from (f"    {line}" for line in shown)


def _path(run: Explanation, step: Step, *, whole: bool) -> Iterator[str]:
    """Yield what a step waited for, in groups: parts of a trajectory by activity, parts of workers by phase."""
    sums: dict[str, int] = {}
    labels = _labels(run, step)
    for segment in step.path:
        text = _segment(segment, labels)
        sums[text] = sums.get(text, 0) + segment.end_ns - segment.start_ns
    if not sums:
        sums = {words.doing(kind, show(name)): nanoseconds for kind, name, nanoseconds in step.groups}
    total = max(1, sum(sums.values()))
    rows = sorted(sums.items(), key=lambda pair: -pair[1])
    limit = len(rows) if whole else PATH_LINES
    kept = [row for row in rows[:limit] if whole or row[1] / total >= 2 * words.SMALL_SHARE]
    for text, nanoseconds in kept:
        yield f"{nanoseconds / total:4.0%} {seconds(nanoseconds / 1e9):>9}  {text}"
    rest = sum(nanoseconds for _, nanoseconds in rows[len(kept) :])
    if rest:
        yield f"{rest / total:4.0%} {seconds(rest / 1e9):>9}  {len(rows) - len(kept)} smaller ones"


def _path_in_order(run: Explanation, step: Step) -> Iterator[str]:
    """Yield a critical path in the order of time; adjacent parts with equal text are merged."""
    labels = _labels(run, step)
    joined: list[tuple[int, int, str]] = []
    for segment in step.path:
        text = _segment(segment, labels, turns=True)
        if joined and joined[-1][2] == text:
            joined[-1] = (joined[-1][0], segment.end_ns, text)
        else:
            joined.append((segment.start_ns, segment.end_ns, text))
    short = 0
    for begin, end, text in joined:
        if end - begin < SHORTEST_NS:
            short += 1
        else:
            yield f"+{(begin - step.start_ns) / 1e9:9.3f} s {seconds((end - begin) / 1e9):>9}  {text}"
    if short:
        yield f"{short} parts below a millisecond are left out here (--json has them)"


def _labels(run: Explanation, step: Step) -> dict[int, str]:
    """Return the labels of trajectories, by trace id, as far as they are known."""
    labels = {trajectory.trace_id: trajectory.label for trajectory in (*run.slowest, *step.slowest)}
    labels |= {verdict.trace_id: verdict.subject for verdict in step.verdicts if verdict.kind == "trajectory"}
    return labels


def _segment(segment: Segment, labels: dict[int, str], *, turns: bool = False) -> str:
    """Return the text for a part of a critical path, with the process where that is more specific than the kind."""
    if segment.trace_id:
        label = f"trajectory {labels.get(segment.trace_id, f'{segment.trace_id:032x}'[:8])}"
        turn = f", turn {segment.turn}" if segment.turn is not None and (turns or segment.kind == "tool") else ""
        where = f", on {segment.instance}" if segment.instance and segment.kind != "trajectory" else ""
        return show(f"{label}: {words.doing(segment.kind, segment.name)}{turn}{where}")
    phase = f"{segment.phase}: " if segment.phase else ""
    if segment.kind == "worker":
        return show(f"{phase}{segment.name if turns else 'the workers'} on {segment.instance}")
    name = segment.name if segment.kind == "tool" or turns else ""
    return show(f"{phase}{words.doing(segment.kind, name if name != segment.phase else '')}")


# -- the run --


def _whole_run(run: Explanation) -> Iterator[str]:
    gpus = words.device_seconds(run.devices)
    count = len(run.devices)
    yield from _block(f"GPU time ({count} x {seconds(gpus / max(1, count))})", words.describe_devices(run.devices))
    price = token_cost.sum_costs(run.steps, run.unused)
    if price is not None:
        yield from _block("Tokens", words.describe_cost(price.gpu_seconds, price.trained_tokens, price.wasted_tokens))
    late = stragglers.find_persistent(run.steps)
    yield from _block("Ranks that others waited for", map(words.describe_persistence, late[:VERDICT_LINES]))


def _unknown(run: Explanation, steps: Sequence[Step]) -> Iterator[str]:
    """Yield what is missing and what is not observable."""
    yield "What is not known"
    for text in (*run.completeness.missing, *run.problems):
        yield f"  {show(text)}"
    orphans = run.completeness.orphans
    if orphans:
        yield f"  {orphans} spans have a parent in no file: a process was killed in its last second, or its files are missing"
    for host, ahead, doubt in run.offsets:
        if max(abs(ahead), doubt) >= NOTED_UNCERTAINTY:
            yield f"  the clock of {show(host)} was {seconds(abs(ahead))} {'ahead' if ahead >= 0 else 'behind'}, give or take {seconds(doubt)}"
    yield f"  late ranks: {_blind_spots(steps)}"
    if not run.devices:
        yield "  GPU time: not observable, no process says which GPUs it has"
    yield "  tokens: padding and what was computed twice are not observable, nor is energy"


def _blind_spots(steps: Sequence[Step]) -> str:
    """Return what is not observable about ranks in any of the steps."""
    never = [
        evidence for evidence in stragglers.EVIDENCE if steps and all(evidence in step.blind_spots for step in steps)
    ]
    if not steps or len(never) == len(stragglers.EVIDENCE):
        return "not observable, no call reached more than one rank"
    names = ", ".join(
        {"arrival": "arrival", "data": "preparation", "tokens": "tokens", "cpu": "CPU time"}[evidence]
        for evidence in never
    )
    return f"{', '.join([names, 'GPU clocks and power'] if names else ['GPU clocks and power'])} are not observable"
