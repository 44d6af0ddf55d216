# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page "Modes of verl" (docs/reference/modes.md), from what the trainings of ``make matrix`` produced.

Usage: python -m tests.end_to_end.modes_page   (after ``make matrix``)
"""

import hashlib
import json
import textwrap
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from tests.end_to_end import modes
from tests.recount import table, trainings

KEPT = modes.TOP / ".cache" / "modes"
PAGE = modes.TOP / "docs" / "reference" / "modes.md"
COUNTED = "counted-"
STAMP = "Made from the integrations with the sha256 "
COLUMNS = {
    "steps": "verl.step",
    "phases": "verl.phase",
    "worker calls": "verl.worker",
    "trajectories": "verl.trajectory",
    "turns": "verl.turn",
    "LLM calls": "chat",
    "server side": "verl.generate",
    "tools": "execute_tool",
    "rewards": "verl.reward",
    "weight syncs": "verl.weight_sync",
    "checkpoints": "verl.checkpoint",
}
"""Column of the table: first part of the names of its spans."""


def hash_integrations():
    """Return a hash over the source of every hook. What reads GPUs is left out: no mode depends on it, and the bed has none."""
    folder = modes.TOP / "verl_otel" / "integrations"
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if path.is_relative_to(folder / "gpu"):
            continue
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def forget(name):
    """Forget what was kept of a mode: it is about to be trained anew, and what fails has no row."""
    (KEPT / f"{name}.json").unlink(missing_ok=True)


def keep(name, training, spans):
    """Keep what one training produced, for the page. Only for what was counted and found right."""
    KEPT.mkdir(parents=True, exist_ok=True)
    names = Counter()
    for span in spans:
        first = span.name.partition(" ")[0]
        names["verl.phase" if first.startswith("verl.phase.") else first] += 1
    facts = {
        "hash": hash_integrations(),
        "spans": names,
        "processes": len({span.pid for span in spans}),
        "consumed": sum(len(span.links) for span in spans if span.name == "verl.consume"),
        "metrics": len({name for name, *_ in training.points()}),
        "seconds": training.seconds,
    }
    (KEPT / f"{name}.json").write_text(json.dumps(facts))


def keep_counts(name, cells):
    """Keep what `tests.recount` found in a mode, by family of numbers. Only if nothing was wrong."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{COUNTED}{name}.json").write_text(json.dumps({"hash": hash_integrations(), "cells": cells}))


def read_kept(names, prefix=""):
    """Return what was kept of the modes that were trained with the integrations that are here now."""
    present = hash_integrations()
    kept = {name: json.loads(path.read_text()) for name in names if (path := KEPT / f"{prefix}{name}.json").exists()}
    return {name: facts for name, facts in kept.items() if facts["hash"] == present}


def make_counts():
    """Return the table of the numbers that were counted again, the modes that are not in it, and the reasons for which numbers are not checked."""
    kept = {name: facts["cells"] for name, facts in read_kept(trainings.MODES, COUNTED).items()}
    cells = {(family, name): state for name, found in kept.items() for family, state in found.items()}
    reasons = {}
    for (family, name), state in cells.items():
        if len(state) > 1:
            reasons.setdefault((family, state), []).append(f"`{name}`")
    return {
        "counts": "\n".join(table.make_lines(list(kept), cells)),
        "uncounted": ", ".join(f"`{name}`" for name in trainings.MODES if name not in kept) or "none",
        "reasons": "\n".join(
            textwrap.fill(
                f"* {family}, in {', '.join(names)}: {reason}.", 150, subsequent_indent="  ", break_on_hyphens=False
            )
            for (family, reason), names in reasons.items()
        )
        or "* none",
    }


def write_page():
    """Write the page; modes that were not run with the present integrations, or failed, are named on it and have no row."""
    found = read_kept(modes.MODES)
    missing = ", ".join(modes.MODES[name].title for name in modes.MODES if name not in found) or "none"
    head = ["mode", *COLUMNS, "linked to a step", "processes", "metrics"]
    rows = [
        [
            modes.MODES[name].title,
            *(str(facts["spans"].get(span, 0)) for span in COLUMNS.values()),
            *(str(facts[key]) for key in ("consumed", "processes", "metrics")),
        ]
        for name, facts in found.items()
    ]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    PAGE.write_text(
        _TEXT.format(
            table="\n".join(lines), missing=missing, stamp=STAMP + hash_integrations(), day=_today(), **make_counts()
        )
    )


def _today():
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


_TEXT = """# Modes of verl

What verl-otel records in each mode of verl. For this table one training of each mode was run on a CPU on {day}, with a tiny model, real verl,
real Ray, and telemetry in files. The numbers are spans of that training. The tests compare them with the server, the tool and the reward
function of the test bed, and with Ray's own timeline: no span is missing, none exists twice, every parent and link target is in the files.
They also compare the run log, TensorBoard and the live page of each mode with verl's own file logger: each step is there, with the same values.

{table}

Not run for this table: {missing}.

* "linked to a step": trajectories to which a step that trained on them is linked. Every trained sample is linked once.
* Legacy, one-step-off and fully asynchronous trainers, verl 0.7 and 0.8, and branch `neo` have no TransferQueue: there the links travel with the
  batches of the agent loop.
* A step of the fully asynchronous trainer is a version of the weights, as verl logs it; its local steps are the rounds of the step. verl adds the
  metrics of a local step up after it has logged those of the version, so that its own scalars of a version lack the last local step and have the
  last one of the version before. Spans, metrics of verl-otel, and scores
  and rewards in the run log are of the local steps of the version.
* Rollouts of the fully asynchronous trainer run independently: no step submits them, so their traces have no link `submitted_by`.
* `separate_async` with `actor_rollout_ref.hybrid_engine=False` is missing: verl 0.9.1 cannot train so. Its `_setup` passes `flush=True` to
  `logger.info`, which raises `TypeError`.
* verl 0.7 and 0.8 have no plug-in entry points: set `VERL_USE_EXTERNAL_MODULES=verl_otel.plugin`, with verl-otel installed on every node.

## Numbers that were counted again

In one training of each mode `tests/recount` counts these numbers from what verl logs, what the test bed writes, and stamps at its own methods,
without code of verl-otel, and compares them with metrics, boards, run log, TensorBoard, commands and the live page. R: equal; durations within 1 % or
5 ms for each call, and 50 ms for stamps that a busy machine delays. -: the mode does not have the number, and nothing shows one. ?: not checked. A
number that is wrong fails `make matrix`. `own_asyncio`, `own_threads`, `own_failed` and `own_ray` are loops of one's own without verl; `kl` has the
KL in the reward, `two` has two ranks and replicas, `resume` was continued after its end, and `crash` after an exception.

{counts}

Not checked:

{reasons}

Not counted for this table: {uncounted}.

{stamp}. `make matrix` runs all of it again.
"""

if __name__ == "__main__":
    write_page()
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
