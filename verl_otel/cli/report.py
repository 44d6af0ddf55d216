# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print where the time of a run went: steps, phases, slowest trajectories, rewards, missing data.

RUN_DIR is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the
nodes of a run have folders of their own. Runs that are active or were killed can be read, too.

Examples:
  verl-otel report
  verl-otel report ~/.local/state/verl-otel/runs/20261121-093000-a3f2
  verl-otel report node-1/RUN node-2/RUN
  verl-otel report --json RUN | jq '.steps[0].phases'
  verl-otel report RUN --html run.html
  verl-otel report --otlp traces.jsonl

Exit code: 0 reported, 1 the run contains nothing to report, 2 wrong usage, or the page cannot be written.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.cli import options, page, run_selection, wording
from verl_otel.cli.documents.report import Report, Step, Trajectory, make_report
from verl_otel.cli.formatting import SENTENCE, align, end_of, number, orphans, print_json, print_text

MOST_STEPS: Final = options.Steps(20)
"""Steps that are shown by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_runs(parser)
    options.add_otlp(parser)
    form = parser.add_mutually_exclusive_group()
    options.add_json(form)
    form.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page that needs no service")
    parser.add_argument(
        "--slowest", type=options.count, default=5, metavar="N", help="how many slow trajectories to show (5)"
    )
    parser.add_argument(
        "--steps",
        type=options.steps,
        default=MOST_STEPS,
        metavar="K|N-M",
        help="how many steps to show, of more the slowest (20), or from which to which",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse, print. Returns 1 when the run has no step, trajectory or open work to speak of."""
    explanation = run_selection.explain(arguments.folders, "report", otlp=arguments.otlp)
    if arguments.html is not None:
        page.write(explanation, arguments.html)
        print(f"{show(arguments.html, SENTENCE)}: open it in a browser; it needs nothing else")
    else:
        document = make_report(explanation)
        if arguments.json:
            print_json(document)
        else:
            print_text(render(document, slowest=arguments.slowest, steps=arguments.steps))
    return 0 if explanation.steps or explanation.counts.trajectories or explanation.completeness.unfinished else 1


# -- The text. It is made of the document --

LATE_SHARE: Final = 0.1
"""The trainer noticed the end of the rollouts late if that took this share of the step,"""
LATE_SECONDS: Final = 0.25
"""and at least this long."""
LONGEST_NAME: Final = 30
"""Characters of a name in a table."""
LATE_LINES: Final = 3
START_UP_PARTS: Final = 3
"""Parts of the start-up that are listed, the longest first."""
OPEN_LINES: Final = 8
"""Open spans of a process that are listed."""


def render(document: Report, *, slowest: int = 5, steps: options.Steps = MOST_STEPS) -> str:
    """Return the report as text."""
    experiment, *counts = document.headline
    head = " · ".join(part for part in (f"Run {show(document.run_id)}", experiment, show(document.state)) if part)
    missing = [*map(show, document.missing), *filter(None, [orphans(document)])]
    parts = [
        "\n".join([head, *counts]),
        "\n".join(line.text for line in document.findings),
        _steps_table(document, steps),
        _slowest_table(document, slowest),
        _rewards(document),
        _unfinished(document),
        "\n  ".join(["What is missing", *missing] if missing else []),
        f"Files: {', '.join(map(show, document.folders))}\nNext: {document.next[0]}",
    ]
    return "\n\n".join(part for part in parts if part)


def _steps_table(document: Report, asked: options.Steps) -> str:
    if not document.steps:
        return "No step has ended."
    title, limit = "Steps: seconds and share of each phase, seconds between it and the next step", asked.most
    shown = [step for step in document.steps if limit or step.number in asked.numbers]
    if not shown:
        return "None of these steps is in the run."
    if limit and len(shown) > limit:
        kept = set(sorted(range(len(shown)), key=lambda index: -shown[index].seconds)[:limit])
        shown = [step for index, step in enumerate(shown) if index in kept]
        title += f" (the {limit} slowest of {len(document.steps)})"
    keys = list(dict.fromkeys(key for step in shown for key in step.phases))
    rows = [["step", "total", *(show(key, LONGEST_NAME) for key in keys), "no phase", "between"]]
    for step in shown:
        cells = [_cell(step.phases[key], step) if key in step.phases else "-" for key in keys]
        name = f"{number(step)} {end_of(step)}".rstrip()
        rows.append([name, f"{step.seconds:.2f}", *cells, _cell(step.no_phase, step), f"{step.between:.2f}"])
    return "\n".join([title, _table(rows), *_start_up(document), *_late_notices(shown)])


def _cell(value: float, step: Step) -> str:
    return f"{value:.2f} {value / step.seconds if step.seconds else 0:4.0%}"


def _start_up(document: Report) -> Iterator[str]:
    """Yield what took longest before the first step of the newest attempt."""
    for start_up in document.start_up[-1:]:
        if start_up.seconds >= wording.NOTED_START_UP:
            longest = sorted(wording.describe_start_up(start_up), key=lambda line: -line[1])[:START_UP_PARTS]
            texts = [f"{seconds(length)} {show(text)}" for text, length in longest if length < start_up.seconds]
            yield "; ".join([wording.title_start_up(start_up), *texts])


def _late_notices(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the steps in which the trainer noticed the end of the rollouts late; of many the worst, and a count."""
    late = [step for step in steps if step.unnoticed >= max(LATE_SECONDS, LATE_SHARE * step.seconds)]
    worst = sorted(late, key=lambda step: -step.unnoticed)[:LATE_LINES]
    for step in late:
        if any(step is other for other in worst):
            wait, ended = seconds(step.unnoticed), seconds(step.rollouts)
            yield f"  step {number(step)}: rollouts ended {ended} into gen, the trainer noticed it {wait} later"
    if len(late) > len(worst):
        more = len(late) - len(worst)
        yield f"  and {counted(more, 'more step')} in which the trainer noticed the end of the rollouts late"


def _slowest_table(document: Report, limit: int) -> str:
    by_id = {trajectory.trace_id: trajectory for trajectory in document.trajectories}
    chosen = [by_id[trace_id] for trace_id in document.slowest[: max(0, limit)]]
    if not chosen:
        return ""
    rows = [["trajectory", "step", "seconds", "LLM", "tools", "reward", "wait", "score", ""]]
    rows += [_trajectory_row(trajectory) for trajectory in chosen]
    return "Slowest trajectories\n" + _table(rows)


def _trajectory_row(trajectory: Trajectory) -> list[str]:
    tools = [part for part in trajectory.parts if part.kind == "tool"]
    tool_texts = (f"{show(part.name, LONGEST_NAME)} {part.seconds:.2f} ({part.calls}x)" for part in tools[:2])
    llm = [part for part in trajectory.parts if part.kind == "llm"]
    calls = sum(part.calls for part in llm)
    by_kind = {part.kind: part.seconds for part in trajectory.parts}
    marks = [
        word
        for word, on in (
            ("validation", trajectory.validate),
            ("FAILED", trajectory.failed),
            ("cancelled", trajectory.cancelled),
            ("only its root was kept", not trajectory.whole),
        )
        if on
    ]
    return [
        trajectory.label,
        "?" if trajectory.step is None else str(trajectory.step),
        f"{trajectory.seconds:.2f}",
        f"{sum(part.seconds for part in llm):.2f} ({calls}x)" if llm else "-",
        ", ".join(tool_texts) or "-",
        f"{by_kind['reward']:.2f}" if "reward" in by_kind else "-",
        f"{by_kind['wait']:.2f}" if "wait" in by_kind else "-",
        "-" if trajectory.score is None else f"{trajectory.score:.3g}",
        ", ".join(marks),
    ]


def _rewards(document: Report) -> str:
    values = list(document.reward.items())
    if not values:
        return ""
    texts = [f"{step}: {value:.4g}" for step, value in values]
    text = "  ".join(texts if len(texts) <= 12 else [*texts[:3], "...", *texts[-9:]])  # noqa: PLR2004 - a line's worth
    thirds, change = document.rewards, ""
    if thirds is not None:
        first, last = f"the first {thirds.steps}: {thirds.first:.4g}", f"the last {thirds.steps}: {thirds.last:.4g}"
        change = f"   (mean of {first}, of {last})"
    return f"Reward, mean of each step\n  {text}{change}"


def _unfinished(document: Report) -> str:
    if not document.unfinished:
        return ""
    lines = ["Unfinished work"]
    for each in document.unfinished:
        state = f"silent for {seconds(each.silent)}: dead" if each.dead else "open at its last sign of life"
        lines.append(f"  {show(f'{each.process} (pid {each.pid} on {each.host})')}: {state}")
        for work in each.work[:OPEN_LINES]:
            child = f", last child {work.last_child}" if work.last_child else ""
            name = show(f"    {work.name} {work.what}".rstrip())
            lines.append(f"{name}: open for {seconds(work.age)}{show(child)}")
        if len(each.work) > OPEN_LINES:
            lines.append(f"    and {len(each.work) - OPEN_LINES} more")
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"  {line}" for line in align([[show(cell) for cell in row] for row in rows]))
