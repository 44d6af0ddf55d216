# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explain why steps were slow, and how the run learned: verdict, critical path, GPU time, reward.

RUN is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the
nodes of a run have folders of their own. Runs that are active or were killed can be read, too.

RUN may also be the log of verl's own file logger (trainer.logger=[console,file]) of a training without verl-otel, or
what its console logger printed: it has the time of phases, slow steps and what was learned, with the thresholds of
VERL_OTEL_HEALTH_PROFILE, and less than a run that verl-otel recorded. Several files are one run in parts.

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
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import findings
from verl_otel.analysis.levers.ranking import find_levers
from verl_otel.cli import advice, incidents, options, run_selection, tracked_log, wording
from verl_otel.cli.documents.base import Summed
from verl_otel.cli.documents.explain import Event, Explain, Segment, Step, make_explain
from verl_otel.cli.documents.levers import Levers, make_levers
from verl_otel.cli.formatting import (
    BRIEF_LINES,
    DOCUMENTS,
    VERDICT_LINES,
    WIDTH,
    end_of,
    number,
    orphans,
    print_json,
    print_text,
    show_bytes,
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
    """Read, analyse, print. Returns 1 when the run has nothing to explain."""
    logged = [] if arguments.otlp else tracked_log.find_logs(arguments.folders)
    if logged:
        return tracked_log.explain(arguments, logged)
    whole = arguments.step is not None
    asked = frozenset({arguments.step}) if whole else None
    explanation = run_selection.explain(arguments.folders, "explain", otlp=arguments.otlp, steps=asked)
    chosen = run_selection.choose_steps(explanation, arguments.steps, arguments.step)
    document = make_explain(explanation, chosen, whole=whole, all_stacks=arguments.events)
    if arguments.json:
        print_json(document)
    elif arguments.brief:
        print_text(render_brief(document))
    elif arguments.events:
        print_text(render_events(document))
    else:
        levers = None if whole else find_levers(explanation.recent_steps, most_items=REPLAYED_ITEMS)
        print_text(render(document, None if levers is None else make_levers(explanation, levers)))
    if document.counts["steps"] or document.events or document.unfinished:
        return int(findings.has_any(arguments.fail_if, explanation, is_learned=not document.findings))
    text = "nothing to explain: no step was recorded. verl-otel check says whether training is hooked"
    if document.failed:
        text = f"nothing to explain: {document.failed}"
    elif document.counts["trajectories"]:
        found = counted(document.counts["trajectories"], "trajectory", "trajectories")
        text = f"no step to explain, only {found}: verl-otel report shows more"
    print(f"verl-otel: {text}", file=sys.stderr)
    return 1


# -- The text: why steps were slow. It is made of the document --

PATH_LINES: Final = 8
"""Number of parts of a critical path that are shown by default."""
EVENT_LINES: Final = 5
LEVER_LINES: Final = 3
FRAMES: Final = 4
"""Frames of a stack that are shown with an event, the innermost ones."""
LOG_LINES: Final = 3
"""Lines of a log that are shown with an event."""
Block = tuple[str, Iterable[str]]
"""A title, and the lines below it."""
NOTED_UNCERTAINTY: Final = 0.01
"""Smaller clock uncertainties in seconds are not reported."""


def render(document: Explain, levers: Levers | None = None) -> str:
    """Return why steps of a run were slow, and how GPU time and tokens were spent.

    Args:
        document: The explanation.
        levers: Those of the run; None: only the steps are shown, with all their detail.
    """
    whole = levers is None
    parts = ["\n".join(_head(document)), "\n".join(_events(document)), "" if whole else _verdict_count(document)]
    parts += [] if whole else map(show, document.run.learned_wrong)
    parts += ["\n".join(_step(document, step, whole=whole)) for step in document.steps]
    parts.append("\n".join(_advice(document)))
    if levers is not None:
        of_run = list(_blocks([*list_run_blocks(document), _list_levers(levers, LEVER_LINES)]))
        parts += ["\n".join(_learning(document)), "\n".join(["The whole run", *of_run] if of_run else [])]
    parts += ["\n".join(_unknown(document)), f"Next: {document.next[0]}"]
    return "\n\n".join(part for part in parts if part)


def render_events(document: Explain) -> str:
    """Return all stalls and crashes of a run with everything that was recorded of them."""
    lines = list(_describe_events(document.events, whole=True)) or ["No stall and no crash was reported."]
    following = next(command for command in document.next if not command.endswith(" --events"))
    return "\n".join([*_head(document), "", *lines, "", f"Next: {following}"])


def _head(document: Explain) -> Iterator[str]:
    yield f"Run {show(document.run_id)} · {show(document.state)}"
    yield from filter(None, document.headline)


def _events(document: Explain) -> Iterator[str]:
    """Yield failures and events; these come first."""
    yield from filter(None, [document.failed])
    yield from _describe_events(document.events[:EVENT_LINES])
    if len(document.events) > EVENT_LINES:
        yield f"and {counted(len(document.events) - EVENT_LINES, 'more event')}"
    for unfinished in document.unfinished:
        if unfinished.text:
            yield f"{'DEAD' if unfinished.dead else 'STILL OPEN'}: {show(unfinished.text)}"


def _describe_events(events: Iterable[Event], *, whole: bool = False) -> Iterator[str]:
    for event in events:
        after = "" if event.after is None else f" after {seconds(max(0.0, event.after))}"
        yield f"{show(event.kind.upper())}{after}: {show(event.text)}"
        if event.kind in incidents.KINDS:
            yield from _describe_evidence(event, whole=whole)


def _describe_evidence(event: Event, *, whole: bool) -> Iterator[str]:
    """Yield what was recorded of a stall or a crash, indented."""
    if event.stack_file:
        yield show(f"  Where {event.culprit or 'it'} was, the innermost call first ({event.stack_file})")
    for stack in event.stacks:
        first, *others = stack.frames if whole else stack.frames[:FRAMES]
        yield f"    {show(first)}"
        yield from (f"      called by {show(frame)}" for frame in others)
    if event.other_files:
        yield show(f"  Stacks of those that waited: {', '.join(event.other_files)}")
    if event.kind == "crash" or whole:
        yield from (f"  Its {text}" for text in _describe_memory(event))
        if event.log:
            yield "  End of its log"
            yield from (f"    {show(line)}" for line in (event.log if whole else event.log[-LOG_LINES:]))


def _describe_memory(event: Event) -> Iterator[str]:
    memory = event.memory
    if memory is not None:
        before = f", at most {show_bytes(memory.highest)} in the {seconds(memory.seconds)} before"
        yield f"memory: {show_bytes(memory.newest)} at last{before if memory.seconds > 0 else ''}"


def _verdict_count(document: Explain) -> str:
    count, slow, unexplained = document.counts["steps"], document.counts["unexplained"], document.slow
    if not count:
        return "No step has ended, so there is none to explain."
    if document.counts["held"]:
        more = f" Slow without a cause: {unexplained}." if unexplained else ""
        text = f"{document.held.text}.{more}"
    else:
        text = f"{wording.begin_sentence(document.held.text)}{f': {unexplained}' if slow else ''}."
    return "\n".join(filter(None, [text, document.starting]))


# -- one step --


def _step(document: Explain, step: Step, *, whole: bool) -> Iterator[str]:
    yield step.title
    found = [(verdict.saved, verdict.text) for verdict in step.verdicts]
    if step.wait is not None:
        found = sorted([*found, (step.wait.lead, step.wait.text)], key=lambda cause: -cause[0])
    shown = found if whole else found[:VERDICT_LINES]
    for _, text in shown:
        yield from wrap(text, WIDTH, first="  ", rest="    ")
    if len(shown) < len(found):
        yield f"  And {len(found) - len(shown)} more: --step {number(step)} shows them."
    if step.shared >= wording.SMALLEST_ROW * step.seconds:
        yield f"  {seconds(step.shared)} of these are the same time: together they are {seconds(step.together)}."
    yield from _blocks(list_step_blocks(step, whole=whole, has_gpu=document.has_gpu, has_verl=not document.is_own))
    if step.uncertainty >= NOTED_UNCERTAINTY:
        yield f"  Clocks of its hosts may be {seconds(step.uncertainty)} apart: nothing shorter is sure between them."


def list_step_blocks(step: Step, *, whole: bool = False, has_gpu: bool, has_verl: bool) -> Iterator[Block]:
    """Yield what is known of a step beside its causes.

    Args:
        step: The step.
        whole: Whether with all detail.
        has_gpu: False: its devices are ranks on CPUs.
        has_verl: False: its loop is the user's own, without settings of verl.
    """
    yield "Failed in its trajectories", map(wording.describe_failure, step.failures)
    yield "Ranks that trained on less", map(wording.describe_short_rank, step.short_ranks)
    path = _sum_path(step)
    limit = len(path) if whole else PATH_LINES
    yield "Critical path, largest parts first", _rows(path, limit=limit)
    if whole and step.path:
        yield "Critical path in the order of time", _path_in_order(step)
    until = "the last record" if step.is_last else "the next step"
    following = "a step that did not end" if step.is_open else until
    yield f"Then {seconds(step.between)} until {following}", _between(step, whole=whole)
    yield "The step would have been shorter by", wording.describe_savings(step.savings, step.seconds)
    title = wording.device_title(step.devices, f" until {following}", has_gpu=has_gpu)
    yield title, wording.describe_devices(step.devices)
    late = step.stragglers if whole else step.stragglers[:VERDICT_LINES]
    yield "Ranks that others waited for", map(wording.describe_straggler, late)
    cost = step.cost
    # Without GPU time and waste only the sum of the run says something.
    if cost is not None and (cost.gpu_seconds or any(cost.wasted_tokens.values())):
        yield "Tokens", wording.describe_cost(cost, has_gpu=has_gpu, has_verl=has_verl)


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the lines of blocks; nothing of those without a line."""
    for title, lines in blocks:
        shown = [f"    {line}" for line in lines]
        yield from [f"  {title}", *shown] if shown else []


def _sum_path(step: Step) -> dict[str, float]:
    """Return seconds of a critical path by what was waited for; by kind and name where the path itself was not kept."""
    sums: dict[str, float] = {}
    for segment in step.path:
        text = _segment(segment, step.labels)
        sums[text] = sums.get(text, 0.0) + segment.seconds
    return sums or _name_parts(step.path_summed)


def _name_parts(parts: Iterable[Summed]) -> dict[str, float]:
    return {wording.doing(part.kind, show(part.name)): part.seconds for part in parts}


def _rows(sums: dict[str, float], *, limit: int) -> Iterator[str]:
    """Yield seconds by text, the most first, and a sum of what is left out."""
    total = sum(sums.values()) or 1.0
    rows = sorted(sums.items(), key=lambda pair: -pair[1])
    kept = [row for row in rows[:limit] if row[1] / total >= wording.SMALLEST_ROW]
    for text, length in kept:
        yield f"{length / total:4.0%} {seconds(length):>9}  {text}"
    rest = sum(length for _, length in rows[len(kept) :])
    if rest / total >= wording.SMALLEST_ROW:
        yield f"{rest / total:4.0%} {seconds(rest):>9}  {counted(len(rows) - len(kept), 'smaller one')}"


def _between(step: Step, *, whole: bool) -> Iterator[str]:
    """Yield what the trainer did until the next step; nothing where that is short, unless all detail is asked for."""
    sums = _name_parts(step.between_summed)
    if round(step.between, 3) and (whole or step.between >= wording.NOTABLE_BETWEEN * step.seconds):
        yield from _rows(sums, limit=len(sums) if whole else PATH_LINES)


def _path_in_order(step: Step) -> Iterator[str]:
    """Yield a critical path in the order of time: adjacent parts with equal text, and short ones, are merged."""
    named = [(part.after, part.after + part.seconds, 1, _segment(part, step.labels, turns=True)) for part in step.path]
    shortest = wording.SMALLEST_ROW * step.seconds
    short = [(begin, end, parts, text if end - begin >= shortest else "") for begin, end, parts, text in _merge(named)]
    left_out = 0
    for begin, end, parts, text in _merge(short):
        if end - begin < shortest:
            left_out += parts
            continue
        yield f"+{begin:9.3f} s {seconds(end - begin):>9}  {text or counted(parts, 'short part')}"
    if left_out:
        yield (
            f"{counted(left_out, 'part')} below 1% of the step {'is' if left_out == 1 else 'are'} left out here "
            "(--json has all)"
        )


def _merge(parts: Iterable[tuple[float, float, int, str]]) -> list[tuple[float, float, int, str]]:
    """Return adjacent parts with equal text as one: start, end, number of merged parts, text."""
    merged: list[tuple[float, float, int, str]] = []
    for begin, end, count, text in parts:
        if merged and merged[-1][3] == text:
            merged[-1] = (merged[-1][0], end, merged[-1][2] + count, text)
        else:
            merged.append((begin, end, count, text))
    return merged


def _segment(segment: Segment, labels: Mapping[str, str], *, turns: bool = False) -> str:
    """Return the text for a part of a critical path, with the process where that is more specific than the kind."""
    if segment.trace_id is not None:
        label = f"trajectory {labels.get(segment.trace_id, segment.trace_id[:8])}"
        turn = f", turn {segment.turn}" if segment.turn is not None and (turns or segment.kind == "tool") else ""
        where = f", on {segment.process}" if segment.process and segment.kind != "trajectory" else ""
        return show(f"{label}: {wording.doing(segment.kind, segment.name)}{turn}{where}")
    phase = f"{segment.phase}: " if segment.phase else ""
    if segment.kind == "worker":
        return show(f"{phase}{segment.name if turns else 'the workers'} on {segment.process}")
    name = segment.name if segment.kind in ("tool", "unknown") or turns else ""
    return show(f"{phase}{wording.doing(segment.kind, name if name != segment.phase else '')}")


# -- the run --


def list_run_blocks(document: Explain) -> Iterator[Block]:
    """Yield what is known of a whole run beside its learning and its levers."""
    whole, has_gpu = document.run, document.has_gpu
    for start_up in whole.start_up[-1:]:
        if start_up.seconds >= wording.NOTED_START_UP:
            rows = (
                f"{length / start_up.seconds:4.0%} {seconds(length):>9}  {show(text)}"
                for text, length in wording.describe_start_up(start_up)
            )
            yield wording.title_start_up(start_up), rows
    yield wording.device_title(whole.devices, has_gpu=has_gpu), wording.describe_devices(whole.devices)
    yield "Rollouts and trainer", wording.describe_balance(whole.balance, has_gpu=has_gpu)
    yield "Engine and trainer", wording.describe_off_policy(whole.off_policy)
    yield (
        "Tokens",
        wording.describe_cost(whole.cost, has_gpu=has_gpu, has_verl=not document.is_own, when=" of the steps"),
    )
    yield "Trajectories of the training", wording.describe_ends(whole.trajectories)
    yield "Weight sync", wording.describe_syncs(whole.weight_sync)
    yield "Ray's object store", wording.describe_spilled(whole.spilled)
    yield "Memory of the processes that grew most", wording.describe_memory(whole.memory)
    yield "Kept on GPUs by engines that sleep", wording.describe_kept(whole.asleep)
    yield "Pauses of the processes that the median step waits for", wording.describe_pauses(whole.pauses)
    yield "Ranks that others waited for", map(wording.describe_persistence, whole.stragglers[:VERDICT_LINES])


def _list_levers(levers: Levers, most: int) -> Block:
    count = counted(len(levers.steps), "step")
    title = f"{TITLE}: gain, share of {seconds(levers.period)} (mean of {count}), interval"
    return title, list_levers(levers.levers, most)


def _learning(document: Explain) -> Iterator[str]:
    """Yield how the run learned; the signals only where more was wrong than single steps with equal scores."""
    is_wrong = any(finding.kind != "equal_scores" for finding in document.findings)
    signals = choose_signals(document.signals, resources=False) if is_wrong else ()
    lines = list(describe_learning(document, WIDTH - 2, signals))
    if lines:
        yield f"Learning (thresholds: profile {show(document.profile)})"
        yield from (f"  {line}" for line in lines)


def _advice(document: Explain) -> Iterator[str]:
    """Yield what can be done about the causes in some steps, each kind of cause once."""
    if document.to_do:
        yield f"What to do (table in {DOCUMENTS}{advice.PAGE})"
    for each in document.to_do:
        yield from wrap(f"{each.kind}: {each.text}", WIDTH, first="  ", rest="    ")


def _unknown(document: Explain) -> Iterator[str]:
    missing = list(list_unknown(document))
    if missing:
        yield "What is not known"
        yield from (f"  {text}" for text in missing)


def list_unknown(document: Explain) -> Iterator[str]:
    """Yield what is missing, and what spans do not say."""
    yield from (*map(show, document.missing), *filter(None, [orphans(document)]), *document.not_recorded)
    for clock in document.clocks:
        if max(abs(clock.ahead), clock.uncertainty) >= NOTED_UNCERTAINTY:
            way = "ahead" if clock.ahead >= 0 else "behind"
            doubt = f"give or take {seconds(clock.uncertainty)}"
            yield f"the clock of {show(clock.host)} was {seconds(abs(clock.ahead))} {way}, {doubt}"


# -- A bounded number of lines, each with the ids that are its evidence: for programs that read text --

MAX_LINE: Final = 400
"""Characters of a line; longer ones are cut."""
_EVENTS: Final = 5
_VERDICTS: Final = 3
_COMMANDS: Final = 3


def render_brief(document: Explain) -> str:
    """Return at most `BRIEF_LINES` lines of at most `MAX_LINE` characters."""
    lines = [show(line, MAX_LINE) for line in _lines(document)]
    if len(lines) > BRIEF_LINES:
        left = len(lines) - BRIEF_LINES + 1
        lines = [
            *lines[: BRIEF_LINES - 1],
            f"and {counted(left, 'more line')}: verl-otel explain --json has everything",
        ]
    return "\n".join(lines)


def _lines(document: Explain) -> Iterator[str]:
    counts = document.counts
    trajectories = counted(counts["trajectories"], "trajectory", "trajectories")
    yield f"run {document.run_id}: {document.state}, {counted(counts['steps'], 'step')}, {trajectories}"
    if document.longest is not None:
        usual = "unknown" if document.median is None else seconds(document.median)
        slow = f", {counts['unexplained']} slow without a known cause" if counts["held"] else ""
        yield f"median step {usual}, longest {seconds(document.longest)}; {document.held.text}{slow}"
    yield from filter(None, [document.failed])
    for event in document.events[:_EVENTS]:
        yield f"{event.kind}: {event.text}"
        if event.kind in incidents.KINDS and event.stack:
            yield f"  at: {', called by '.join(event.stack[:FRAMES])} [{event.stack_file}]"
        if event.kind == "crash":
            yield from (f"  {text}" for text in _describe_memory(event))
            yield from (f"  log: {line}" for line in event.log[-1:])
    if len(document.events) > _EVENTS:
        yield f"and {counted(len(document.events) - _EVENTS, 'more event')}"
    yield from (f"dead: {one.text}" for one in document.unfinished if one.dead)
    for step in document.steps:
        yield from _describe_step(step)
    yield from describe_briefly(document)
    yield from (f"do ({each.kind}): {each.text}" for each in document.to_do)
    yield from (f"not known: {problem}" for problem in document.missing[:_EVENTS])
    yield f"more: {'; '.join([*document.next[:_COMMANDS], f'verl-otel report --json {document.name}'])}"


def _describe_step(step: Step) -> Iterator[str]:
    end = f" {end_of(step)} {step.error}" if step.failed else ""
    yield f"step {number(step)}: {seconds(step.seconds)} [trace {step.trace_id}]{end}"
    for verdict in step.verdicts[:_VERDICTS]:
        evidence = [f"kind {verdict.kind}", f"cause {verdict.cause}"]
        evidence += [f"trace {verdict.trace_id}"] if verdict.trace_id else []
        evidence += [f"turn {verdict.turn}"] if verdict.turn is not None else []
        evidence += [f"process {verdict.instance}"] if verdict.instance else []
        yield f"  cause: {verdict.text} [{', '.join(evidence)}]"
    if not step.verdicts:
        longest = sorted(_sum_path(step).items(), key=lambda part: -part[1])[:3]
        parts = ", ".join(f"{text} {seconds(length)}" for text, length in longest)
        yield f"  no single cause; it waited for: {parts or 'unknown'}"
