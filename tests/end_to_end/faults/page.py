# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page "Faults" (docs/reference/faults.md), from the results that are kept beside this module."""

import json
import math
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from tests.end_to_end.faults import own_loops
from tests.end_to_end.faults.judging import (
    BUSY,
    FELT,
    WAITED,
    count_verdicts,
    find_false,
    find_false_events,
    find_mode,
    judge,
)
from tests.end_to_end.faults.kinds import CRASHED, DATA, HUNG, KINDS, MODES, SLOW, UNPLANTED

KEPT = Path(__file__).resolve().parent / "results"
TOP = Path(__file__).resolve().parents[3]
PAGE, COUNTED = TOP / "docs" / "reference" / "faults.md", TOP / "verl_otel" / "semconv" / "counted_verdicts.py"
WIDTH = 150
"""Columns of a line of the documentation."""
Z = 1.96
"""Standard deviations of a normal distribution on each side of 95 % of it."""
DEVELOPMENT = ("1", "2", "3")
SOON = 15
"""Seconds within which what hangs or dies is to be named."""
CHANGED_AFTER = {
    63: "a dead actor that ends the rollouts is named, so are a failure between two steps and a stopped process that had just begun a rollout, and a "
    "small delay by a trajectory counts only in a step that took longer than usual",
    64: "rollouts that Ray cancels because the trainer has failed are no crash",
}
"""What was changed because of a seed that is in the tables, by seed."""
_COLUMNS = [
    "mode", "kind", "sort", "where", "held out", "planted", "not felt", "found", "named rightly", "time to the name",
]  # fmt: skip
RARE = 0.02
"""Half an interval below which shares have a digit after the point."""


def read(path):
    """Return the results of a seed, or of trainings without a fault."""
    seed = path.stem.removeprefix("seed-").partition("-")[0] if path.stem.startswith("seed-") else path.stem
    return [{"seed": seed, **json.loads(line)} for line in path.read_text("utf-8").splitlines()]


def read_kept():
    """Return the results that are kept."""
    return [result for path in sorted(KEPT.glob("*.jsonl")) for result in read(path)]


def keep(path):
    """Keep the results of a series, and write from all that are kept the page, and what `verl-otel explain` shows of it."""
    KEPT.mkdir(exist_ok=True)
    (KEPT / path.name).write_text(path.read_text("utf-8"), "utf-8")
    write_kept()


def write_kept():
    """Write the page, and what `verl-otel explain` shows of it."""
    PAGE.write_text(write(read_kept()), "utf-8")
    COUNTED.write_text(write_counted(read_kept()), "utf-8")


def write_counted(results):
    """Return the module with the counts of right verdicts."""
    results = [result for result in results if result["seed"] not in DEVELOPMENT]
    counts = sorted(count_verdicts(results).items())
    rows = "".join(f'    "{kind}": ({right}, {of}),\n' for kind, (right, of) in counts)
    rows = f"{{\n{rows}}}" if rows else "{}"
    return _MODULE.format(seeds=", ".join(sorted({result["seed"] for result in results})), rows=rows)


def write(results):
    """Return the page: counts by kind, two faults in one step, the time to the name, false verdicts, and what was not named."""
    development = [result for result in results if result.get("seed") in DEVELOPMENT]
    results = [result for result in results if result not in development]
    planted = [result for result in results if result["faults"]]
    judged = [(result, judgement) for result in results for judgement in judge(result)]
    by_kind, unfelt = defaultdict(list), defaultdict(list)
    for result, judgement in judged:
        if not judgement.together:
            (by_kind if judgement.felt else unfelt)[find_mode(result), judgement.kind].append(judgement)
    tried = [(mode, name) for mode in MODES for name in KINDS if (mode, name) in {*by_kind, *unfelt}]
    missed = [
        (mode, judgement)
        for mode in MODES
        for name in KINDS
        for result, judgement in judged
        if (find_mode(result), judgement.kind) == (mode, name) and judgement.felt and not judgement.named
    ]
    return _TEXT.format(
        series=_wrap(
            f"{_describe_series(planted)} Each training was run once. {_describe_changes()} {_describe_last(planted)}"
        ),
        development=_wrap(_describe_development(development)),
        kinds=len(KINDS),
        tried=len({name for _, name in tried}),
        held=sum(kind.held_out for kind in KINDS.values()),
        felt=f"{FELT:.0%}",
        busy=f"{BUSY:.0%}",
        waited=f"{WAITED:.0%}",
        totals=_table(
            ["mode", "", "planted", "not felt", "found", "named rightly", "named rightly, of the held-out kinds"],
            [row for mode in dict(tried) for row in _total(mode, by_kind, unfelt)],
        ),
        last=_table(
            [
                "mode",
                "seed",
                "planted",
                "not felt",
                "named rightly",
                "within 15 s, of those that hang or kill",
                "healthy steps",
                "false verdicts",
            ],
            _list_last(results),
        ),
        delays=_wrap(_describe_delays(by_kind)),
        pairs=_wrap(_describe_pairs(judged)),
        false=_describe_false(results),
        counted=_table(
            ["verdict", "right"],
            [
                [kind, f"{right} of {of}{_share(right, of)}"]
                for kind, (right, of) in sorted(count_verdicts(results).items())
            ],
        ),
        kinds_table=_table(
            _COLUMNS,
            [_count(*key, by_kind[key], unfelt[key]) for key in tried],
        ),
        unplanted="\n".join(_describe_unplanted(mode, tried) for mode in dict(tried)),
        missed="\n".join(_describe_miss(*each) for each in missed) or "Nothing.",
        own_loops=own_loops.write(own_loops.read_kept()),
    )


def _describe_unplanted(mode, tried):
    """Return what was not planted in a mode, and why it cannot be."""
    reasons = defaultdict(list)
    for name in KINDS:
        if (mode, name) not in tried:
            reasons[UNPLANTED.get(mode, {}).get(name, "")].append(name)
    names = "; ".join(f"{', '.join(names)}{f' (it {reason})' * bool(reason)}" for reason, names in reasons.items())
    return _wrap(f"Not planted alone in these trainings of `{mode}`: {names or 'none'}.")


def _describe_series(results):
    """Return which seeds were run, how many trainings of each, and beside which load."""
    counts = Counter((result.get("seed", "?"), find_mode(result)) for result in results)
    seeds = ", ".join(
        f"{seed} (`{mode}`, {count} training{'s' * (count > 1)})" for (seed, mode), count in sorted(counts.items())
    )
    shares = [step["others"] for result in results for step in result["steps"].values() if "others" in step]
    if not shares or not _describe_load(results):
        return f"Seeds: {seeds or 'none'}."
    return (
        f"Seeds: {seeds}. The machine ran other work: when a training began, its load was {_describe_load(results)}, and during the "
        f"median step other programs took {median(shares):.0%} of the CPUs, at most {max(shares):.0%}."
    )


def _describe_changes():
    """Return after which seeds detectors were changed because of them."""
    changes = " ".join(f"After seed {seed}: {what}." for seed, what in CHANGED_AFTER.items())
    return (
        f"Because of two of them detectors were changed, and their results are those of before. {changes} Other changes between the seeds had other "
        "reasons."
    )


def _describe_last(results):
    """Return which results the present detectors gave: those of the last seed only."""
    last = max((result["seed"] for result in results if "seed" in result), key=int, default="")
    modes = ", ".join(f"`{mode}`" for mode in sorted({find_mode(each) for each in results if each.get("seed") == last}))
    but = " but for what was changed after it" if int(last or 0) in CHANGED_AFTER else ""
    return f"Seed {last} ({modes}) was run with the present ones{but}, the others with earlier ones." if last else ""


def _describe_development(results):
    """Return what was named of the seeds for development, which are in no table."""
    judged = [judgement for result in results for judgement in judge(result)]
    if not judged:
        return "Seeds 1 to 3 are for development, and not in this page."
    steps, false, _ = map(
        sum, zip(*((count, len(found), more) for count, found, more in map(find_false, results)), strict=True)
    )
    return (
        f"Seeds 1 to 3 are for development, and in no table: detectors were changed with them in view. In {len(results)} trainings of them "
        f"{sum(judgement.named for judgement in judged)} of {sum(judgement.felt for judgement in judged)} are named rightly; false verdicts "
        f"on {steps} healthy steps: {false}."
    )


def _describe_pairs(judged):
    """Return in how many steps with two faults both were named."""
    steps = defaultdict(list)
    for result, judgement in judged:
        if judgement.together:
            steps[result.get("seed"), result["training"], judgement.step].append(judgement.named)
    if not steps:
        return "No two faults were planted in one step."
    named = Counter(sum(each) for each in steps.values())
    return f"Of {len(steps)} steps with two faults both are named in {named[2]}, one in {named[1]}, none in {named[0]}."


def _wrap(text):
    return textwrap.fill(text, WIDTH)


def _table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _total(mode, by_kind, unfelt):
    """Return a row for each series of a mode, and one for all."""
    rows = []
    for title, series in (
        ("slow or starved", SLOW),
        ("hung", HUNG),
        ("crashed", CRASHED),
        ("wrong data", DATA),
        ("all", ""),
    ):
        named = [name for name, kind in KINDS.items() if not series or kind.series == series]
        every = [judgement for name in named for judgement in by_kind[mode, name]]
        held = [judgement for name in named if KINDS[name].held_out for judgement in by_kind[mode, name]]
        right, more = sum(judgement.named for judgement in every), sum(len(unfelt[mode, name]) for name in named)
        rows.append([
            mode, title, str(len(every) + more), str(more), str(sum(judgement.found for judgement in every)),
            f"{right}{_share(right, len(every))}", f"{sum(judgement.named for judgement in held)} of {len(held)}",
        ])  # fmt: skip
    return rows


def _list_last(results):
    """Return a row for the last seed of each mode: what the detectors gave that are next to the present ones."""
    rows = []
    for mode in MODES:
        planted = [result for result in results if result["faults"] and "seed" in result and find_mode(result) == mode]
        if not planted:
            continue
        last = max((result["seed"] for result in planted), key=int)
        of_seed = [result for result in planted if result["seed"] == last]
        every = [judgement for result in of_seed for judgement in judge(result)]
        felt = [judgement for judgement in every if judgement.felt]
        sudden = [judgement for judgement in felt if _is_sudden(judgement.kind)]
        soon = sum(judgement.delay is not None and judgement.delay <= SOON for judgement in sudden)
        right, healthy = sum(judgement.named for judgement in felt), [find_false(result) for result in of_seed]
        steps, false = sum(count for count, *_ in healthy), sum(len(found) for _, found, _ in healthy)
        rows.append([
            mode, last, str(len(every)), str(len(every) - len(felt)), f"{right}{_share(right, len(felt))}",
            f"{soon} of {len(sudden)}", str(steps), f"{false}{_share(false, steps)}",
        ])  # fmt: skip
    return rows


def _is_sudden(name):
    """Return whether an event names a kind while the training goes on, and not the line of a failed training."""
    kind = KINDS[name]
    return kind.series in (HUNG, CRASHED) and not any(right.startswith("failed") for right in kind.right)


def _share(count, total):
    """Return a share with its interval of Wilson, for 95 %."""
    if not total:
        return ""
    share, more = count / total, Z * Z / total
    middle = (share + more / 2) / (1 + more)
    half = Z / (1 + more) * math.sqrt(share * (1 - share) / total + more / total / 4)
    digits = 0 if half >= RARE else 1
    return f" ({share:.{digits}%}; {max(0.0, middle - half):.{digits}%} to {min(1.0, middle + half):.{digits}%})"


def _count(mode, name, judgements, unfelt):
    kind = KINDS[name]
    delays = [judgement.delay for judgement in judgements if judgement.delay is not None]
    return [
        mode, name, kind.sort, kind.where, "yes" if kind.held_out else "", str(len(judgements) + len(unfelt)),
        str(len(unfelt)), str(sum(judgement.found for judgement in judgements)), str(sum(judgement.named for judgement in judgements)),
        f"{max(delays):.1f} s" if delays else "",
    ]  # fmt: skip


def _describe_delays(by_kind):
    judged = [
        judgement for (_, name), judgements in by_kind.items() if _is_sudden(name) for judgement in judgements
    ]  # fmt: skip
    delays = [judgement.delay for judgement in judged if judgement.delay is not None]
    if not delays:
        return "No fault that hangs or kills a process was planted."
    soon = sum(delay <= SOON for delay in delays)
    return (
        f"Of {len(judged)} faults that hang or kill a process {soon} were named within {SOON} s while the training went on "
        f"(median {median(delays):.1f} s, longest {max(delays):.1f} s)."
    )


def _describe_false(results):
    """Return the false verdicts by what was trained, beside which load, and their kinds."""
    rows, kinds, explained = [], Counter(), 0
    named = [(_name_training(result), result, find_false(result), find_false_events(result)) for result in results]
    for title in (*dict.fromkeys(title for title, *_ in named), "all"):
        of_title = [each for each in named if title in (each[0], "all")]
        steps = sum(count for _, _, (count, _, _), _ in of_title)
        false = sum(len(found) for _, _, (_, found, _), _ in of_title)
        events = sum(len(events) for *_, events in of_title)
        rows.append(
            [
                title,
                str(steps),
                f"{false}{_share(false, steps)}",
                str(events),
                _describe_load(each[1] for each in of_title),
            ]
        )
    for _, _, (_, found, more), _ in named:
        explained += more
        kinds.update(" ".join(map(str, filter(None, verdict[:3]))) for _, verdict in found)
    text = _table(["training", "healthy steps", "false verdicts", "false events", "load when it began"], rows)
    if kinds:
        text += "\n\n" + _wrap(f"By kind: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}.")
    if explained:
        text += "\n\n" + _wrap(
            f"{explained} more say that a process had no CPU, in steps in which that was measured beside: they are right, and are not counted."
        )
    return text


def _name_training(result):
    return f"{result.get('mode', 'sync')}, {'beside planted faults' if result['faults'] else 'no fault planted'}"


def _describe_load(results):
    loads = [result["load"] for result in results if "load" in result]
    return " to ".join(dict.fromkeys(f"{each:.1f}" for each in (min(loads), max(loads)))) if loads else ""


def _describe_miss(mode, judgement):
    reason = WHY.get(judgement.kind, "")
    reported = judgement.reported or "nothing"
    size = f" of {judgement.seconds} s" if judgement.seconds else ""
    return f"* `{mode}`, {judgement.kind}{size}: reported: *{reported}*." + (f" {reason}" if reason else "")


WHY = {
    "replica stopped for long": "A request had hung for 25 s before in this training, so that work of a stopped process was overdue after 30 s only. The step is "
    "named rightly afterwards.",
}
"""Why a kind was not named, where it is known. Only for what is not named in the results that are kept."""
_MODULE = '''# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How often verdicts of each kind were right in real trainings with planted faults. Made with ``docs/reference/faults.md``, and not edited."""

from typing import Final

SERIES: Final = "{seeds}"
"""What was trained: seeds, and modes without a fault."""
RIGHT: Final[dict[str, tuple[int, int]]] = {rows}
"""How many were right, and of how many, by kind."""
'''
_TEXT = """# Faults

How many planted faults verl-otel finds and names, counted in real trainings. This page is made from the results in
`tests/end_to_end/faults/results`; `make test-extra ONLY=faults MODE=sync` plants them again.

Each training is real verl (GRPO, a tool agent, two ranks) on a CPU with two cores: v1 `sync`, with a replica on each rank, v1 `separate_async` or
`fully_async`, with a replica of its own. A seed and a mode decide which kinds are planted in which steps, and for how long: 1.5 to 4 s, or 25 s
for those that hang. {kinds} kinds were written down before detectors were made for them, {tried} of them were planted alone in a step; {held} are
held out: they are only counted, and no detector was changed because of one.

{series}

{development}

* **not felt**: in asynchronous modes other work may go on during a fault, and then there is nothing to report. Of the steps that were running during a
  slow fault, by the times at which the bed logged their ends, none was longer than the median of the training by {felt} of the fault. It is in no
  share. Steps that end with a validation or a checkpoint are compared with each other.
* **found**: there is a verdict on the step, or an event at that time.
* **named rightly**: the first verdict on the step, or an event, has the kind and the cause that were written down for it in that mode. With two
  faults in one step any of its verdicts counts. The step is that of the plan; in asynchronous modes it is the longest during the fault. That a
  process had no CPU is passed over where the bed measured that, too: by the kernel's count a thread of the training waited for a CPU longer than in
  the median step, by {waited} of what the verdict says. Results of seeds up to 61 have no such count; there other programs had to take {busy} of the
  CPUs in that step. That older rule was made when nine runs of own loops of seed 61 had been read; it changed two faults of one of them, and no training of
  verl before.
* Shares are given with their 95 % interval (Wilson).

## In short

{totals}

The last seed of each mode, whose detectors differ least from the present ones:

{last}

{delays}

{pairs}

## False verdicts

Verdicts on steps in which nothing was planted, nor in the step before. Own loops (`asyncio`, `threads`, `ray`) are
`tests/recount/own_loop.py`; `python -m tests.end_to_end.faults OUT --healthy --mode MODE --steps N --page` counts more steps. An event is a stall or
a crash; beside planted faults events are not counted.

{false}

## How sure a verdict is

Of the steps with slow faults the first verdict, which is right if it names a fault that was planted there, and all verdicts on healthy steps, which
are wrong. `verl-otel explain --json` has these counts beside each verdict.

{counted}

## By kind

{kinds_table}

{unplanted}

## What was not named rightly

{missed}

{own_loops}

## What was not planted

Other modes; in asynchronous ones two faults in one step; prompts that are loaded again, or that no process works on any more; a clock that jumps,
which a container cannot set; rewards that are not numbers, which end the training of a model as small as this one; several nodes; GPUs. The first
checkpoint of a training is not made slow: it makes its folders, and is not compared with later ones.
"""
