# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explain why steps were slow, and how the run learned: verdict, critical path, GPU time, reward.

RUN is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the nodes of a
run have folders of their own. Runs that are active or were killed can be read, too.

RUN may also be the log of verl's own file logger (trainer.logger=[console,file]) of a training without verl-otel, or what its console logger printed: it
has the time of phases, slow steps and what was learned, with the thresholds of VERL_OTEL_HEALTH_PROFILE, and less than a run that verl-otel recorded.
Several files are one run in parts.

Examples:
  verl-otel explain
  verl-otel explain 20261121-093000-a3f2 --steps 5
  verl-otel explain --step 7 ~/.local/state/verl-otel/runs/20261121-093000-a3f2
  verl-otel explain node-1/RUN node-2/RUN
  verl-otel explain my_project/my_experiment.jsonl
  verl-otel explain console.log
  verl-otel explain --events RUN
  verl-otel explain --brief RUN
  verl-otel explain --json RUN | jq '.steps[0].verdicts'
  verl-otel explain RUN --fail-if crash --fail-if learning

Exit code: 0 explained, 1 the run contains nothing to explain or has what --fail-if names, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import findings, learning, step_lengths
from verl_otel.analysis.gpu import devices
from verl_otel.analysis.levers.ranking import find_levers
from verl_otel.analysis.model import Event, Explanation, Segment, Step, Verdict
from verl_otel.analysis.verdicts import stragglers
from verl_otel.analysis.verdicts.judge import sum_savings, sum_shared
from verl_otel.analysis.verdicts.slow_trajectories import find_single_wait
from verl_otel.cli import advice, headlines, incidents, options, run_selection, tracked_log, wording
from verl_otel.cli.documents.explain import WholeRun, find_next, make_explain
from verl_otel.cli.documents.levers import make_levers
from verl_otel.cli.formatting import (
    BRIEF_LINES,
    DOCUMENTS,
    VERDICT_LINES,
    WIDTH,
    dead,
    end_of,
    failed,
    headline,
    number,
    orphans,
    print_json,
    print_text,
    wrap,
)
from verl_otel.cli.learning import choose_signals, describe_briefly, describe_learning
from verl_otel.cli.levers import REPLAYED_ITEMS, TITLE, list_levers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_runs(parser)
    options.add_otlp(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--step", type=options.count, metavar="N", help="explain this step, with its complete critical path"
    )
    which.add_argument(
        "--steps",
        type=options.steps,
        default=options.Steps(3),
        metavar="K|N-M",
        help="how many of the slowest steps to explain (3), or from which to which",
    )
    which.add_argument(
        "--events", action="store_true", help="show stalls and crashes, with all stacks, the end of the log, and memory"
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        choices=findings.KINDS,
        metavar="FINDING",
        help=f"exit with 1 if the run has this: {', '.join(findings.KINDS)}; may be repeated",
    )
    form = parser.add_mutually_exclusive_group()
    options.add_json(form)
    form.add_argument("--brief", action="store_true", help="print at most 40 lines, with ids as evidence")


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse, say. Returns 1 when the run has nothing to explain."""
    logged = [] if arguments.otlp else tracked_log.find_logs(arguments.folders)
    if logged:
        return tracked_log.explain(arguments, logged)
    asked = None if arguments.step is None else frozenset({arguments.step})
    explanation = run_selection.explain(arguments.folders, "explain", otlp=arguments.otlp, steps=asked)
    if asked:
        chosen = [step for step in explanation.steps if step.number in asked]
        if not chosen:
            print(
                f"verl-otel: step {arguments.step} is not in the run: {run_selection.list_numbers(explanation)}",
                file=sys.stderr,
            )
            return 2
    else:
        chosen = run_selection.choose_steps(explanation, arguments.steps)
    if arguments.json:
        print_json(make_explain(explanation, chosen, whole=arguments.step is not None))
    elif arguments.brief:
        print_text(render_brief(explanation, chosen))
    elif arguments.events:
        print_text(render_events(explanation))
    else:
        print_text(render(explanation, chosen) if arguments.step is None else render_step(explanation, chosen))
    if explanation.steps or explanation.events or explanation.completeness.unfinished:
        return int(findings.has_any(arguments.fail_if, explanation, lambda: learning.judge(explanation)))
    print(f"verl-otel: {_nothing(explanation)}", file=sys.stderr)
    return 1


def _nothing(explanation: Explanation) -> str:
    if explanation.counts.trajectories:
        found = counted(explanation.counts.trajectories, "trajectory", "trajectories")
        return f"no step to explain, only {found}: verl-otel report shows more"
    return "nothing to explain: no step was recorded. verl-otel check says whether training is hooked"


# -- The text: why steps were slow --

PATH_LINES: Final = 8
"""Number of parts of a critical path that are shown by default."""
EVENT_LINES: Final = 5
LEVER_LINES: Final = 3
NOTED_UNCERTAINTY: Final = 0.01
"""Smaller clock uncertainties in seconds are not reported."""


def render(run: Explanation, steps: Sequence[Step] | None = None) -> str:
    """Return why steps of a run were slow, the slowest unless others are given, and how GPU time and tokens were spent."""
    chosen = findings.choose_steps(run, 3) if steps is None else steps
    document = make_explain(run, chosen)
    parts = [_head(run), "\n".join(_events(run)), _verdict_count(run)]
    parts += ["\n".join(_step(run, step, whole=False)) for step in chosen]
    parts += ["\n".join(_advice(run, chosen)), "\n".join(_learning(run))]
    whole = list(_whole_run(run, document.run))
    parts += ["\n".join(["The whole run", *whole] if whole else []), "\n".join(_unknown(run, run.steps))]
    parts.append(f"Next: {document.next[0]}")
    return "\n\n".join(part for part in parts if part)


def render_step(run: Explanation, chosen: Sequence[Step]) -> str:
    """Return all detail of some steps."""
    parts = [_head(run), "\n".join(_events(run))]
    parts += ["\n".join(_step(run, step, whole=True)) for step in chosen]
    parts += ["\n".join(_advice(run, chosen)), "\n".join(_unknown(run, chosen))]
    parts.append(f"Next: {find_next(run, chosen, whole=True)[0]}")
    return "\n\n".join(part for part in parts if part)


def render_events(run: Explanation) -> str:
    """Return all stalls and crashes of a run with everything that was recorded of them."""
    lines = list(_describe_events(run, run.events, whole=True))
    following = next(
        command for command in find_next(run, findings.choose_steps(run, 1)) if command != advice.events_command(run)
    )
    return "\n".join([_head(run), "", *(lines or ["No stall and no crash was reported."]), "", f"Next: {following}"])


def _head(run: Explanation) -> str:
    return "\n".join([f"Run {show(run.run_id)} · {show(run.state)}", *filter(None, headline(run))])


def _events(run: Explanation) -> Iterator[str]:
    """Yield failures and events; these come first."""
    yield from filter(None, [failed(run)])
    yield from _describe_events(run, run.events[:EVENT_LINES])
    if len(run.events) > EVENT_LINES:
        yield f"and {counted(len(run.events) - EVENT_LINES, 'more event')}"
    for unfinished in run.completeness.unfinished:
        if unfinished.dead:
            yield f"DEAD: {show(dead(unfinished))}"
        elif unfinished.work:
            oldest = max(unfinished.work, key=lambda work: work.age)
            child = f", last in {oldest.last_child}" if oldest.last_child else ""
            yield show(f"STILL OPEN: {unfinished.process.label}: {oldest.span.name} for {seconds(oldest.age)}{child}")


def _describe_events(run: Explanation, events: Iterable[Event], *, whole: bool = False) -> Iterator[str]:
    for event in events:
        after = f" after {seconds(max(0.0, (event.time_ns - run.start_ns) / 1e9))}" if run.start_ns else ""
        yield f"{show(event.kind.upper())}{after}: {show(event.text)}"
        yield from incidents.describe(run, event, whole=whole)


def _verdict_count(run: Explanation) -> str:
    if not run.steps:
        return "No step has ended yet, so there is none to explain."
    return "\n".join(filter(None, [_count_slow(run), wording.describe_first(run.steps)]))


def _count_slow(run: Explanation) -> str:
    unexplained = wording.describe_unexplained(run.steps)
    if not any(step.verdicts for step in run.steps):
        steps, slow = counted(len(run.steps), "step"), len(step_lengths.find_unexplained(run.steps))
        were = "was" if slow == 1 else "were"
        return (
            f"{slow:,} of {steps} {were} slow, none explained: {unexplained}."
            if slow
            else wording.describe_no_delay(run.steps)
        )
    held, whole = findings.sum_held(run.steps), sum(step.seconds + step.between for step in run.steps)
    share = f"{wording.share(held.seconds / max(whole, 1e-9))} of the time of all steps and between them"
    more = f" Slow without a cause: {unexplained}." if unexplained else ""
    return f"{wording.describe_held(held)} ({share}).{more}"


# -- one step --


def _step(run: Explanation, step: Step, *, whole: bool) -> Iterator[str]:
    yield _title(run, step)
    found = findings.find_of_step(step)
    shown = found if whole else found[:VERDICT_LINES]
    for finding in shown:
        yield from wrap(wording.describe_cause(finding.cause), WIDTH, first="  ", rest="    ")
    if len(shown) < len(found):
        yield f"  And {len(found) - len(shown)} more: --step {number(step)} shows them."
    shared = sum_shared(step)
    if shared >= wording.SMALLEST_ROW * step.seconds:
        yield f"  {seconds(shared)} of these are the same time: together they are {seconds(sum_savings(step))}."
    yield from _block("Failed in its trajectories", map(wording.describe_failure, step.failures))
    yield from _block("Ranks that trained on less", map(wording.describe_short_rank, step.short_ranks))
    yield from _block("Critical path, largest parts first", _path(run, step, whole=whole))
    if whole and step.path:
        yield from _block("Critical path in the order of time", _path_in_order(run, step))
    until = "the last record" if step is run.steps[-1] else "the next step"
    following = "a step that did not end" if step.open_ns else until
    yield from _block(f"Then {seconds(step.between)} until {following}", _between(step, whole=whole))
    yield from _block("The step would have been shorter by", wording.describe_savings(step.savings, step.seconds))
    title = wording.device_title(step.devices, f" until {until}", has_gpu=run.has_gpu)
    yield from _block(title, wording.describe_devices(step.devices))
    late = step.stragglers if whole else step.stragglers[:VERDICT_LINES]
    yield from _block("Ranks that others waited for", map(wording.describe_straggler, late))
    cost = step.cost
    # Without GPU time and waste only the sum of the run says something.
    if cost is not None and (cost.gpu_seconds or any(cost.wasted_tokens.values())):
        yield from _block("Tokens", wording.describe_cost(cost, has_gpu=run.has_gpu))
    if step.uncertainty >= NOTED_UNCERTAINTY:
        yield f"  Clocks of its hosts may be {seconds(step.uncertainty)} apart: nothing shorter is sure between them."


def _title(run: Explanation, step: Step) -> str:
    others = step_lengths.find_comparable(run.steps, step)
    usual = f" (others: median {seconds(median(other.seconds for other in others))})" if others else ""
    if len(others) == 1:
        usual = f" (step {number(others[0])}: {seconds(others[0].seconds)})"
    name = f"Step {number(step)}{f' {end_of(step)} after' if step.failed else ' took'} {seconds(step.seconds)}"
    if step.verdicts:
        (excess,) = findings.find_excesses(run.steps, [step])
        late = f", and the next one started {seconds(excess.late)} late" if excess.late else ""
        if excess.is_measured:
            rest = f", of which {seconds(excess.rest)} are not explained" if excess.rest else ""
            return f"{name}, {seconds(excess.longer)} longer than usual{usual}{rest}{late}."
        shorter = f"; without its causes {seconds(excess.longer)} less" if excess.longer else ""
        return f"{name}{usual}{shorter}{late}."
    if any(other is step for other in step_lengths.find_start_up(run.steps)):
        return f"{name}{usual}. It includes the start-up, so that it is longer than later steps."
    if step.interrupted or find_single_wait(step) is not None:
        return f"{name}{usual}."
    is_long = any(other is step for other in step_lengths.find_unexplained(run.steps))
    return f"{name}{usual}. {'No single cause was found' if is_long else 'Nothing delayed it noticeably'}."


def _block(title: str, lines: Iterable[str]) -> Iterator[str]:
    shown = list(lines)
    if shown:
        yield f"  {title}"
        yield from (f"    {line}" for line in shown)


def _path(run: Explanation, step: Step, *, whole: bool) -> Iterator[str]:
    """Yield what a step waited for, in groups: parts of a trajectory by activity, parts of workers by phase."""
    sums = _sum_path(run, step)
    yield from _rows(sums, limit=len(sums) if whole else PATH_LINES)


def _sum_path(run: Explanation, step: Step) -> dict[str, int]:
    """Return nanoseconds of a critical path by what was waited for; by kind and name where the path itself was not kept."""
    sums: dict[str, int] = {}
    labels = _labels(run, step)
    for segment in step.path:
        text = _segment(segment, labels)
        sums[text] = sums.get(text, 0) + segment.end_ns - segment.start_ns
    return sums or {wording.doing(kind, show(name)): nanoseconds for kind, name, nanoseconds in step.groups}


def _rows(sums: dict[str, int], *, limit: int) -> Iterator[str]:
    """Yield nanoseconds by text, the most first, and a sum of what is left out."""
    total = max(1, sum(sums.values()))
    rows = sorted(sums.items(), key=lambda pair: -pair[1])
    kept = [row for row in rows[:limit] if row[1] / total >= wording.SMALLEST_ROW]
    for text, nanoseconds in kept:
        yield f"{nanoseconds / total:4.0%} {seconds(nanoseconds / 1e9):>9}  {text}"
    rest = sum(nanoseconds for _, nanoseconds in rows[len(kept) :])
    if rest / total >= wording.SMALLEST_ROW:
        smaller = counted(len(rows) - len(kept), "smaller one")
        yield f"{rest / total:4.0%} {seconds(rest / 1e9):>9}  {smaller}"


def _between(step: Step, *, whole: bool) -> Iterator[str]:
    """Yield what the trainer did until the next step; nothing where that is short, unless all detail is asked for."""
    sums = {wording.doing(kind, show(name)): nanoseconds for kind, name, nanoseconds in step.between_groups}
    if round(step.between, 3) and (whole or step.between >= wording.NOTABLE_BETWEEN * step.seconds):
        yield from _rows(sums, limit=len(sums) if whole else PATH_LINES)


def _path_in_order(run: Explanation, step: Step) -> Iterator[str]:
    """Yield a critical path in the order of time: adjacent parts with equal text are merged, and so are adjacent short ones."""
    labels = _labels(run, step)
    named = [(part.start_ns, part.end_ns, 1, _segment(part, labels, turns=True)) for part in step.path]
    shortest = wording.SMALLEST_ROW * (step.end_ns - step.start_ns)
    short = [(begin, end, parts, text if end - begin >= shortest else "") for begin, end, parts, text in _merge(named)]
    left_out = 0
    for begin, end, parts, text in _merge(short):
        if end - begin < shortest:
            left_out += parts
            continue
        at = f"+{(begin - step.start_ns) / 1e9:9.3f} s {seconds((end - begin) / 1e9):>9}"
        yield f"{at}  {text or counted(parts, 'short part')}"
    if left_out:
        yield f"{counted(left_out, 'part')} below 1% of the step {'is' if left_out == 1 else 'are'} left out here (--json has all)"


def _merge(parts: Iterable[tuple[int, int, int, str]]) -> list[tuple[int, int, int, str]]:
    """Return adjacent parts with equal text as one: start, end, number of merged parts, text."""
    merged: list[tuple[int, int, int, str]] = []
    for begin, end, count, text in parts:
        if merged and merged[-1][3] == text:
            merged[-1] = (merged[-1][0], end, merged[-1][2] + count, text)
        else:
            merged.append((begin, end, count, text))
    return merged


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
        return show(f"{label}: {wording.doing(segment.kind, segment.name)}{turn}{where}")
    phase = f"{segment.phase}: " if segment.phase else ""
    if segment.kind == "worker":
        return show(f"{phase}{segment.name if turns else 'the workers'} on {segment.instance}")
    name = segment.name if segment.kind in ("tool", "unknown") or turns else ""
    return show(f"{phase}{wording.doing(segment.kind, name if name != segment.phase else '')}")


# -- the run --


def _whole_run(run: Explanation, whole: WholeRun) -> Iterator[str]:
    for start_up in run.start_ups[-1:]:
        if start_up.seconds >= wording.NOTED_START_UP:
            first = next((step for step in run.steps if step.attempt == start_up.attempt), None)
            name = f"step {number(first)}" if first is not None else "the first step"
            rows = (
                f"{nanoseconds / 1e9 / start_up.seconds:4.0%} {seconds(nanoseconds / 1e9):>9}  {show(text)}"
                for text, nanoseconds in wording.describe_start_up(start_up)
            )
            yield from _block(f"Before {name}: {seconds(start_up.seconds)} from the start of the program", rows)
    yield from _block("Learned wrong, and nothing was slow", (show(line.text) for line in headlines.find_silent(run)))
    title = wording.device_title(run.devices, has_gpu=run.has_gpu)
    yield from _block(title, wording.describe_devices(run.devices))
    yield from _block("Rollouts and trainer", wording.describe_balance(whole.balance, has_gpu=run.has_gpu))
    yield from _block("Engine and trainer", wording.describe_off_policy(whole.off_policy))
    yield from _block("Tokens", wording.describe_cost(whole.cost, has_gpu=run.has_gpu, when=" of the steps"))
    yield from _block("Trajectories of the training", wording.describe_ends(whole.trajectories))
    yield from _block("Weight sync", wording.describe_syncs(whole.weight_sync))
    yield from _block("Ray's object store", wording.describe_spilled(whole.spilled))
    yield from _block("Memory of the processes that grew most", wording.describe_memory(whole.memory))
    yield from _block("Kept on GPUs by engines that sleep", wording.describe_kept(whole.asleep))
    late = whole.stragglers[:VERDICT_LINES]
    yield from _block("Ranks that others waited for", map(wording.describe_persistence, late))
    found = make_levers(run, find_levers(run.recent_steps, most_items=REPLAYED_ITEMS))
    title = f"{TITLE}: gain, share of {seconds(found.period)} (mean of {counted(len(found.steps), 'step')}), interval"
    yield from _block(title, list_levers(found.levers, LEVER_LINES))


def _learning(run: Explanation) -> Iterator[str]:
    """Yield how the run learned; the signals only where something was wrong with it, more than single steps with equal scores."""
    found = learning.judge(run)
    is_wrong = any(trouble.first.kind != "equal_scores" for trouble in found.troubles)
    signals = choose_signals(found, resources=False) if is_wrong else ()
    lines = list(describe_learning(found, WIDTH - 2, signals, has_verl=not run.is_own))
    if lines:
        yield f"Learning (thresholds: profile {show(found.profile.name)})"
        yield from (f"  {line}" for line in lines)


def _advice(run: Explanation, steps: Sequence[Step]) -> Iterator[str]:
    """Yield what can be done about the causes in some steps, each kind of cause once."""
    keys = advice.find_keys(run, steps, findings.choose_unexplained(run, steps))
    todo = [*_advise_events(run), *((key, advice.word(key, run)) for key in keys)]
    if todo:
        yield f"What to do (table in {DOCUMENTS}{advice.PAGE})"
    for key, text in todo:
        yield from wrap(f"{key}: {text}", WIDTH, first="  ", rest="    ")


def _advise_events(run: Explanation) -> Iterator[tuple[str, str]]:
    """Yield what to do about the stalls and crashes of a run, each kind once."""
    for kind in dict.fromkeys(event.kind for event in incidents.find_incidents(run)):
        yield kind, advice.advise_event(run, kind)


def _unknown(run: Explanation, steps: Sequence[Step]) -> Iterator[str]:
    """Yield what is missing, and what spans do not say."""
    missing = [*map(show, run.missing), *filter(None, [orphans(run)])]
    missing += _find_blind_spots(run, steps)
    missing += [
        f"the clock of {show(host)} was {seconds(abs(ahead))} {'ahead' if ahead >= 0 else 'behind'}, give or take {seconds(doubt)}"
        for host, ahead, doubt in run.offsets
        if max(abs(ahead), doubt) >= NOTED_UNCERTAINTY
    ]
    if missing:
        yield "What is not known"
        yield from (f"  {text}" for text in missing)


def _find_blind_spots(run: Explanation, steps: Sequence[Step]) -> Iterator[str]:
    """Yield what the spans of a run do not say, where it matters: GPU time, and why a rank was late."""
    if run.has_gpu and not run.devices and devices.UNKNOWN_GPUS not in run.problems:
        yield "GPU time: no process reports its GPUs"
    late = [step for step in steps if any(verdict.kind == "rank" for verdict in step.verdicts)]
    never = [evidence for evidence in stragglers.EVIDENCE if all(evidence in step.blind_spots for step in late)]
    if late:
        others = [_EVIDENCE_NAMES[evidence] for evidence in never]
        yield f"whether a late rank differs from the others in {', '.join([*others, 'the clock or the power of its GPU'])}: not recorded"


_EVIDENCE_NAMES: Final = {
    "arrival": "when the call reached it",
    "data": "how long it prepared",
    "tokens": "its number of tokens",
    "cpu": "its CPU time",
}


# -- A bounded number of lines, each with the ids that are its evidence: for programs that read text --

MAX_LINE: Final = 400
"""Characters of a line; longer ones are cut."""
_EVENTS: Final = 5
_VERDICTS: Final = 3
_COMMANDS: Final = 3


def render_brief(run: Explanation, steps: Sequence[Step]) -> str:
    """Return at most `BRIEF_LINES` lines of at most `MAX_LINE` characters.

    Args:
        run: The explained run.
        steps: The steps to describe, the most important first.
    """
    lines = [show(line, MAX_LINE) for line in _lines(run, steps)]
    if len(lines) > BRIEF_LINES:
        left = len(lines) - BRIEF_LINES + 1
        lines = [
            *lines[: BRIEF_LINES - 1],
            f"and {counted(left, 'more line')}: verl-otel explain --json has everything",
        ]
    return "\n".join(lines)


def _lines(run: Explanation, steps: Sequence[Step]) -> Iterator[str]:
    yield f"run {run.run_id}: {run.state}, {counted(len(run.steps), 'step')}, {counted(run.counts.trajectories, 'trajectory', 'trajectories')}"
    if run.steps:
        usual, longest = step_lengths.find_usual(run.steps), max(step.seconds for step in run.steps)
        unexplained = len(step_lengths.find_unexplained(run.steps))
        yield (
            f"median step {'unknown' if usual is None else seconds(usual)}, longest {seconds(longest)}; "
            f"{wording.describe_held(findings.sum_held(run.steps))}, {unexplained} slow without a cause"
        )
    yield from filter(None, [failed(run)])
    for event in run.events[:_EVENTS]:
        yield f"{event.kind}: {event.text}"
        yield from incidents.describe_briefly(run, event)
    if len(run.events) > _EVENTS:
        yield f"and {counted(len(run.events) - _EVENTS, 'more event')}"
    yield from (f"dead: {dead(one)}" for one in run.completeness.unfinished if one.dead)
    for step in steps:
        yield from _describe_step(run, step)
    yield from describe_briefly(learning.judge(run), has_verl=not run.is_own)
    yield from (f"do ({kind}): {text}" for kind, text in _advise_events(run))
    for key in advice.find_keys(run, steps, findings.choose_unexplained(run, steps)):
        yield f"do ({key}): {advice.word(key, run)}"
    yield from (f"not known: {problem}" for problem in run.missing[:_EVENTS])
    name = run_selection.name_run(run)
    yield f"more: {'; '.join([*find_next(run, steps)[:_COMMANDS], f'verl-otel report --json {name}'])}"


def _describe_step(run: Explanation, step: Step) -> Iterator[str]:
    yield f"step {step.number}: {seconds(step.seconds)} [trace {step.trace_id:032x}]{f' {end_of(step)} {step.error}' if step.failed else ''}"
    for verdict in step.verdicts[:_VERDICTS]:
        yield f"  cause: {wording.describe_verdict(verdict)} [{_evidence(verdict)}]"
    if not step.verdicts:
        longest = sorted(_sum_path(run, step).items(), key=lambda part: -part[1])[:3]
        parts = ", ".join(f"{text} {seconds(length / 1e9)}" for text, length in longest)
        yield f"  no single cause; it waited for: {parts or 'unknown'}"


def _evidence(verdict: Verdict) -> str:
    parts = [f"kind {verdict.kind}", f"cause {verdict.cause}"]
    parts += [f"trace {verdict.trace_id:032x}"] if verdict.trace_id else []
    parts += [f"turn {verdict.turn}"] if verdict.turn is not None else []
    parts += [f"process {verdict.instance}"] if verdict.instance else []
    return ", ".join(parts)
