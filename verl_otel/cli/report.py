# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print where the time of a run went: steps, phases, slowest trajectories, rewards, missing data.

RUN_DIR is the folder of a run, or its id or the beginning of it; the newest run if absent. Pass several folders if the nodes of a
run have folders of their own. Runs that are active or were killed can be read, too.

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
from statistics import fmean
from typing import Final

from verl_otel._internal.printable import counted, seconds, show
from verl_otel.analysis import scalars
from verl_otel.analysis.model import Completeness, Explanation, Step, Trajectory
from verl_otel.cli import headlines, options, page, run_selection, wording
from verl_otel.cli.documents.report import make_report
from verl_otel.cli.formatting import SENTENCE, align, end_of, headline, number, orphans, print_json, print_text
from verl_otel.semconv import attributes as attr

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
    elif arguments.json:
        print_json(make_report(explanation))
    else:
        print_text(render(explanation, slowest=arguments.slowest, steps=arguments.steps))
    return 0 if explanation.steps or explanation.counts.trajectories or explanation.completeness.unfinished else 1


# -- The text --

LATE_SHARE: Final = 0.1
"""The trainer noticed the end of the rollouts late if that took this share of the step,"""
LATE_SECONDS: Final = 0.25
"""and at least this long."""
LONGEST_NAME: Final = 30
"""Characters of a name in a table."""
LATE_LINES: Final = 3
START_UP_PARTS: Final = 3
"""Parts of the start-up that are listed, the longest first."""


def render(run: Explanation, *, slowest: int = 5, steps: options.Steps = MOST_STEPS) -> str:
    """Return the report as text."""
    parts = [
        _headline(run),
        "\n".join(line.text for line in headlines.find_headlines(run)),
        _steps_table(run, steps),
        _slowest_table(run, slowest),
        _rewards(run),
        _unfinished(run.completeness),
        _limits(run),
        f"Files: {', '.join(map(show, run.folders))}\nNext: verl-otel explain {run_selection.name_run(run)}",
    ]
    return "\n\n".join(part for part in parts if part)


def _headline(run: Explanation) -> str:
    experiment, *counts = headline(run)
    state = "FAILED" if run.state == "failed" else show(run.state)
    head = " · ".join(part for part in (f"Run {show(run.run_id)}", experiment, state) if part)
    return "\n".join([head, *counts])


def _steps_table(run: Explanation, asked: options.Steps) -> str:
    if not run.steps:
        return "No step has ended yet."
    title, limit = "Steps: seconds and share of each phase, seconds between it and the next step", asked.most
    shown = run.steps if limit else tuple(asked.choose(run.steps))
    if not shown:
        return "None of these steps is in the run."
    if limit and len(shown) > limit:
        kept = set(sorted(range(len(shown)), key=lambda index: -shown[index].seconds)[:limit])
        shown = tuple(step for index, step in enumerate(shown) if index in kept)
        title += f" (the {limit} slowest of {len(run.steps)})"
    keys = list(dict.fromkeys(phase.key for step in shown for phase in step.phases))
    rows = [["step", "total", *(show(key, LONGEST_NAME) for key in keys), "no phase", "between"]]
    for step in shown:
        by_key = {phase.key: phase for phase in step.phases}
        cells = [_cell(by_key[key].seconds, by_key[key].share) if key in by_key else "-" for key in keys]
        rows.append(
            [
                f"{number(step)} {end_of(step)}".rstrip(),
                f"{step.seconds:.2f}",
                *cells,
                _cell(step.no_phase, step.no_phase / step.seconds if step.seconds else 0),
                f"{step.between:.2f}",
            ]
        )
    return "\n".join([title, _table(rows), *_start_up(run), *_late_notices(shown)])


def _start_up(run: Explanation) -> Iterator[str]:
    """Yield what took longest before the first step of the newest attempt."""
    for start_up in run.start_ups[-1:]:
        if start_up.seconds >= wording.NOTED_START_UP:
            longest = sorted(wording.describe_start_up(start_up), key=lambda line: -line[1])[:START_UP_PARTS]
            texts = [f"{seconds(nanoseconds / 1e9)} {show(text)}" for text, nanoseconds in longest]
            yield f"Before the first step: {seconds(start_up.seconds)}; {'; '.join(texts)}"


def _cell(value: float, share: float) -> str:
    return f"{value:.2f} {share:4.0%}"


def _late_notices(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the steps in which the trainer noticed late that the rollouts had ended; of many the worst ones, and a count."""
    late = [
        (wait, step) for step in steps if (wait := _unnoticed(step)) >= max(LATE_SECONDS, LATE_SHARE * step.seconds)
    ]
    worst = sorted(late, key=lambda pair: -pair[0])[:LATE_LINES]
    for wait, step in late:
        if (wait, step) in worst:
            ended = seconds((step.rollouts_end_ns - step.gen_start_ns) / 1e9)
            yield f"  step {number(step)}: rollouts ended {ended} into gen, the trainer noticed it {seconds(wait)} later"
    if len(late) > len(worst):
        more = len(late) - len(worst)
        yield f"  and {counted(more, 'more step')} in which the trainer noticed the end of the rollouts late"


def _unnoticed(step: Step) -> float:
    """Return the seconds between the end of a step's rollouts and the end of gen; 0 if they had ended before gen began, or if that is unknown."""
    if not step.rollouts_end_ns or not step.gen_end_ns or step.rollouts_end_ns < step.gen_start_ns:
        return 0.0
    return max(0.0, (step.gen_end_ns - step.rollouts_end_ns) / 1e9)


def _slowest_table(run: Explanation, limit: int) -> str:
    chosen = run.slowest[: max(0, limit)]
    if not chosen:
        return ""
    rows = [["trajectory", "step", "seconds", "LLM", "tools", "reward", "wait", "score", ""]]
    rows += [_trajectory_row(trajectory) for trajectory in chosen]
    return "Slowest trajectories\n" + _table(rows)


def _trajectory_row(trajectory: Trajectory) -> list[str]:
    tools = [part for part in trajectory.parts if part.kind == "tool"]
    tool_text = (
        ", ".join(f"{show(part.name, LONGEST_NAME)} {part.seconds:.2f} ({part.calls}x)" for part in tools[:2]) or "-"
    )
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
        tool_text,
        f"{by_kind['reward']:.2f}" if "reward" in by_kind else "-",
        f"{by_kind['wait']:.2f}" if "wait" in by_kind else "-",
        "-" if trajectory.score is None else f"{trajectory.score:.3g}",
        ", ".join(marks),
    ]


def _rewards(run: Explanation) -> str:
    by_step = scalars.find_rewards(run.series)
    if not by_step:
        return ""
    values = list(by_step.items())
    shown = values if len(values) <= 12 else [*values[:3], *values[-9:]]  # noqa: PLR2004 - a line's worth
    text = "  ".join(f"{step}: {value:.4g}" for step, value in shown)
    change, third = "", len(values) // 3
    if third > 1:  # two single steps differ by chance
        first, last = (fmean(value for _, value in part) for part in (values[:third], values[-third:]))
        change = f"   (mean of the first {third}: {first:.4g}, of the last {third}: {last:.4g})"
    return f"Reward, mean of each step (critic/rewards/mean)\n  {text}{change}"


def _unfinished(completeness: Completeness) -> str:
    if not completeness.unfinished:
        return ""
    lines = ["Unfinished work"]
    for unfinished in completeness.unfinished:
        state = f"silent for {seconds(unfinished.silent)}: dead" if unfinished.dead else "open at its last sign of life"
        lines.append(f"  {show(unfinished.process.label)}: {state}")
        for work in unfinished.work[:8]:
            what = " ".join(
                str(work.span.attributes[key])
                for key in (attr.STEP_NUMBER, attr.SAMPLE_UID, attr.ROLLOUT_INDEX)
                if key in work.span.attributes
            )
            child = f", last child {work.last_child}" if work.last_child else ""
            lines.append(show(f"    {work.span.name} {what}".rstrip()) + f": open for {seconds(work.age)}{show(child)}")
        if len(unfinished.work) > 8:  # noqa: PLR2004 - a screen's worth
            lines.append(f"    and {len(unfinished.work) - 8} more")
    return "\n".join(lines)


def _limits(run: Explanation) -> str:
    lines = [f"  {show(text)}" for text in run.missing]
    lines += [f"  {text}" for text in filter(None, [orphans(run)])]
    return "\n".join(["What is missing", *lines]) if lines else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"  {line}" for line in align([[show(cell) for cell in row] for row in rows]))
