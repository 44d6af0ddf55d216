# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The text of a report. Knows nothing of files or arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from verl_otel.analysis.gaps import Gaps, Unfinished
from verl_otel.analysis.load import Run
from verl_otel.analysis.tail import Verdict, slowest
from verl_otel.analysis.timeline import Part, Step, Timeline, Trajectory
from verl_otel.cli.report_json import reward_by_step
from verl_otel.semconv import attributes as attr

WIDTH = 110


def seconds(value: float) -> str:
    """Return a duration that is short and easy to compare.

    Example:
        seconds(0.0312) == "31 ms"; seconds(75) == "1 m 15 s"
    """
    if value < 0.9995:  # noqa: PLR2004 - below what rounds to a second
        return f"{value * 1000:.0f} ms"
    if value < 60:  # noqa: PLR2004 - a minute
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {rest:02d} s"


def render(
    run: Run, timeline: Timeline, gaps: Gaps, verdicts: Sequence[Verdict], *, slowest: int = 5, steps: int = 20
) -> str:
    """Return the report as text."""
    parts = [
        _headline(run, timeline),
        _verdict_lines(timeline, verdicts, gaps),
        _steps_table(timeline, steps),
        _slowest_table(timeline, slowest),
        _rewards(run),
        _unfinished(gaps),
        _limits(run, gaps),
        _files(run),
    ]
    return "\n\n".join(part for part in parts if part)


def _headline(run: Run, timeline: Timeline) -> str:
    facts = run.manifest
    who = "/".join(str(facts[key]) for key in (attr.PROJECT, attr.EXPERIMENT) if facts.get(key))
    how = ", ".join(str(facts[key]) for key in (attr.ALGORITHM, attr.TRAINER_MODE) if facts.get(key))
    version = f"verl {facts[attr.VERL_VERSION]}" if facts.get(attr.VERL_VERSION) else ""
    attempts = facts.get("attempts")
    ended = isinstance(attempts, list) and bool(attempts) and "ended" in attempts[-1]
    states = {1.0: "ended" if ended else "no end seen", 2.0: "finished", 3.0: "FAILED"}
    state = states.get(_last(run, "verl.run.state", 0.0), "")
    head = " · ".join(part for part in (f"Run {run.run_id}", who, how, version, state) if part)
    calls = sum(part.calls for each in timeline.trajectories.values() for part in each.parts if part.kind == "llm")
    tools = sum(part.calls for each in timeline.trajectories.values() for part in each.parts if part.kind == "tool")
    trained = len({trace_id for step in timeline.steps for trace_id in step.trajectories})
    counts = (
        f"{len(timeline.steps)} steps, {len(timeline.validations)} validations, {len(timeline.trajectories)} trajectories "
        f"({trained} trained on), {calls} LLM calls, {tools} tool calls, {len(run.processes)} processes"
    )
    return f"{head}\n{counts}"


def _verdict_lines(timeline: Timeline, verdicts: Sequence[Verdict], gaps: Gaps) -> str:
    lines = [_dead_line(each) for each in gaps.unfinished if each.dead]
    for verdict in verdicts[:3]:
        step, part = verdict.step, verdict.part
        lines.append(
            f"Step {_number(step)} ({seconds(step.seconds)}) waited up to {seconds(verdict.lead)} for trajectory "
            f"{verdict.trajectory.label} alone, which spent {seconds(part.seconds)} of its "
            f"{seconds(verdict.trajectory.seconds)} in {_part_name(part)}{_turn(part)}."
        )
    if not lines and timeline.steps:
        longest = max(timeline.steps, key=lambda step: step.seconds)
        top = max(longest.phases, key=lambda phase: phase.seconds, default=None)
        if top is not None:
            lines.append(
                f"Slowest step: {_number(longest)}, {seconds(longest.seconds)}, {top.share:.0%} of it in {top.key}. "
                f"No single trajectory held a step noticeably.{_spent(longest, timeline)}"
            )
    return "\n".join(lines)


def _spent(step: Step, timeline: Timeline) -> str:
    """Say on what the trajectories of a step spent most of their time: they may all have waited for one tool."""
    members = [timeline.trajectories[each] for each in step.trajectories if each in timeline.trajectories]
    by_name: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in (part for member in members for part in member.parts):
        by_name[(part.kind, part.name)].append(part)
    if not by_name:
        return ""
    sums = {key: sum(part.seconds for part in parts) for key, parts in by_name.items()}
    top = max(sums, key=lambda key: sums[key])
    share = sums[top] / max(sum(member.seconds for member in members), 1e-9)
    return f" Its {len(members)} trajectories spent {share:.0%} of their time in {_part_name(by_name[top][0])}."


def _number(step: Step) -> str:
    return "?" if step.number is None else str(step.number)


def _part_name(part: Part) -> str:
    words = {
        "llm": "LLM calls",
        "tool": f"tool {part.name}",
        "reward": "its reward",
        "wait": "waiting (queue, transfer, own code)",
    }
    return words[part.kind]


def _turn(part: Part) -> str:
    return "" if part.turn is None else f" (turn {part.turn})"


def _steps_table(timeline: Timeline, limit: int) -> str:
    if not timeline.steps:
        return "No step has ended yet."
    shown = timeline.steps
    title = "Steps: seconds and share of each phase"
    if len(shown) > limit:
        kept = set(sorted(range(len(shown)), key=lambda index: -shown[index].seconds)[:limit])
        shown = tuple(step for index, step in enumerate(shown) if index in kept)
        title += f" (the {limit} slowest of {len(timeline.steps)})"
    keys = list(dict.fromkeys(phase.key for step in shown for phase in step.phases))
    rows = [["step", "total", *keys, "no phase"]]
    for step in shown:
        by_key = {phase.key: phase for phase in step.phases}
        cells = [_cell(by_key[key].seconds, by_key[key].share) if key in by_key else "-" for key in keys]
        rows.append(
            [
                _number(step) + (" FAILED" if step.failed else ""),
                f"{step.seconds:.2f}",
                *cells,
                _cell(step.no_phase, step.no_phase / step.seconds if step.seconds else 0),
            ]
        )
    lines = [title, _table(rows), *filter(None, map(_gen_line, shown))]
    return "\n".join(lines)


def _cell(value: float, share: float) -> str:
    return f"{value:.2f} {share:4.0%}"


def _gen_line(step: Step) -> str:
    if not step.rollouts_end_ns or not step.gen_end_ns:
        return ""
    done = (step.rollouts_end_ns - step.gen_start_ns) / 1e9
    rest = (step.gen_end_ns - step.rollouts_end_ns) / 1e9
    if done < 0:
        return f"  step {_number(step)}: its rollouts were finished {seconds(-done)} before gen began (they run ahead of the step)"
    return f"  step {_number(step)}: rollouts were finished {seconds(done)} into gen, then {seconds(max(0.0, rest))} until the trainer noticed"


def _slowest_table(timeline: Timeline, limit: int) -> str:
    chosen = slowest(timeline.trajectories.values(), limit)
    if not chosen:
        return ""
    rows = [["trajectory", "step", "seconds", "LLM", "tools", "reward", "wait", "score", ""]]
    rows += [_trajectory_row(each) for each in chosen]
    return "Slowest trajectories\n" + _table(rows)


def _trajectory_row(each: Trajectory) -> list[str]:
    tools = [part for part in each.parts if part.kind == "tool"]
    tool_text = ", ".join(f"{part.name} {part.seconds:.2f} ({part.calls}x)" for part in tools[:2]) or "-"
    llm = [part for part in each.parts if part.kind == "llm"]
    calls = sum(part.calls for part in llm)
    by_kind = {part.kind: part.seconds for part in each.parts}
    marks = [
        word
        for word, on in (
            ("validation", each.validate),
            ("FAILED", each.failed),
            ("only its root was kept", not each.whole),
        )
        if on
    ]
    return [
        each.label,
        "?" if each.step is None else str(each.step),
        f"{each.seconds:.2f}",
        f"{sum(part.seconds for part in llm):.2f} ({calls}x)" if llm else "-",
        tool_text,
        f"{by_kind['reward']:.2f}" if "reward" in by_kind else "-",
        f"{by_kind['wait']:.2f}" if "wait" in by_kind else "-",
        "-" if each.score is None else f"{each.score:.3g}",
        ", ".join(marks),
    ]


def _rewards(run: Run) -> str:
    by_step = reward_by_step(run)
    if not by_step:
        return ""
    values = list(by_step.items())
    shown = values if len(values) <= 12 else [*values[:3], *values[-9:]]  # noqa: PLR2004 - a line's worth
    text = "  ".join(f"{step}: {value:.4g}" for step, value in shown)
    change = f"   (first to last: {values[-1][1] - values[0][1]:+.4g})" if len(values) > 1 else ""
    return f"Reward, mean of each step (critic/rewards/mean)\n  {text}{change}"


def _dead_line(each: Unfinished) -> str:
    held = [work for work in each.work if work.span.name == "verl.trajectory"]
    doing = f"{len(held)} open trajectories" if held else each.work[-1].span.name
    return f"DEAD: {each.process.label} fell silent {seconds(each.silent)} before the rest, with {doing}."


def _unfinished(gaps: Gaps) -> str:
    if not gaps.unfinished:
        return ""
    lines = ["Unfinished work"]
    for each in gaps.unfinished:
        state = f"silent for {seconds(each.silent)}: dead" if each.dead else "open when last heard of"
        lines.append(f"  {each.process.label}: {state}")
        for work in each.work[:8]:
            what = " ".join(
                str(work.span.attributes[key])
                for key in (attr.STEP_NUMBER, attr.SAMPLE_UID, attr.ROLLOUT_INDEX)
                if key in work.span.attributes
            )
            child = f", last child {work.last_child}" if work.last_child else ""
            lines.append(f"    {work.span.name} {what}".rstrip() + f": open for {seconds(work.age)}{child}")
        if len(each.work) > 8:  # noqa: PLR2004 - a screen's worth
            lines.append(f"    and {len(each.work) - 8} more")
    return "\n".join(lines)


def _limits(run: Run, gaps: Gaps) -> str:
    lines = [f"  {text}" for text in (*gaps.missing, *run.problems)]
    if gaps.orphans:
        lines.append(
            f"  {gaps.orphans} spans have a parent in no file: a process was killed in its last second, or its files are missing"
        )
    return "\n".join(["What is missing", *lines]) if lines else ""


def _files(run: Run) -> str:
    return "Files: " + ", ".join(str(folder) for folder in run.folders)


def _last(run: Run, name: str, default: float) -> float:
    found = [scalar for scalar in run.scalars if scalar.name == name]
    return max(found, key=lambda scalar: scalar.time_ns).value if found else default


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(lines)
