# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Faults planted in loops of one's own (`own_program`): their kinds, their plan, and their part of the page.

What names a kind rightly was written down before it was planted. Seeds 1 to 3 are for development.

Usage: python -m tests.end_to_end.faults.own_loops OUT [--seed N] [--modes MODE,MODE] [--only N,N] [--again] [--page]
"""

import argparse
import json
import random
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.end_to_end import bed_run
from tests.end_to_end.faults import evidence, judging, page
from tests.end_to_end.faults.kinds import CRASHED, DATA, HUNG, NO_CPU, SLOW, Kind
from tests.end_to_end.faults.plan import Fault

MODES = ("asyncio", "threads", "ray")
FIRST, APART = 8, 3
"""First step with a fault, and steps between two of them."""
SIZES = {SLOW: (0.8, 3.0), HUNG: (20.0, 20.0), CRASHED: (0.0, 0.0), DATA: (0.0, 0.0)}
"""Seconds that a fault lasts, by series."""
RUNS, PAIRS = 3, 2
"""Runs that plant each slow kind once between them, and the steps with two faults that each has besides."""
LONE = {HUNG: 2, CRASHED: 3}
"""Kinds that are planted in a run of their own, by series, of each seed and mode."""
KEPT = Path(__file__).resolve().parent / "results" / "own_loops"


def _row(sort, where, plant, right, threads=None, ray=None, *, series=SLOW):
    """Return a kind by mode.

    Alternatives that are right are separated by ``;``. Threads are as asyncio, and Ray as threads, if not given; empty: not planted.
    """
    threads = right if threads is None else threads
    texts = zip(MODES, (right, threads, threads if ray is None else ray), strict=True)
    return {mode: Kind(sort, where, plant, "step", tuple(text.split("; ")), series) for mode, text in texts if text}


def _own(sort, action):
    """Return a kind in the own code of a trajectory, which blocks an event loop, and in a thread holds the trajectory only."""
    return _row(sort, "trajectory", f"own!{action}", f"loop blocked {action}", f"trajectory trajectory@{action}")


_STOPPED = "loop blocked the process did not run; process paused the process did not run"
_LOCKED = "loop blocked a call into C; process paused a call into C"
_GC = "loop blocked garbage collection; process paused garbage collection"
_ROWS = {
    "slow tool": _row("slow", "tool", "tool", "trajectory tool search"),
    "slow reward": _row("slow", "reward", "reward", "trajectory reward"),
    "slow request": _row("slow", "model server", "llm", "trajectory llm"),
    "slow model server, all requests": _row("slow", "model server", "server", "code llm; phase llm; trajectory llm; replica llm"),
    "request that is refused and sent again": _row("slow", "model server", "llm!busy", "trajectory llm", "trajectory llm@back_off"),
    "tool that is asked again after a pause": _row("slow", "tool", "tool!refuse", "trajectory trajectory", "trajectory trajectory@back_off"),
    "slow dataset": _row("disk", "trainer", "data", "phase phase data; phase data_loading"),
    "queue that stays empty": _row("slow", "trainer", "data!empty_queue", "phase phase data@empty_queue; phase data_loading@empty_queue"),
    "slow code in a step, outside its phases": _row("slow", "trainer", "step", "phase step"),
    "slow checkpoint": _row("disk", "trainer", "checkpoint", "phase checkpoint; phase phase save_checkpoint"),
    "slow weight sync": _row("slow", "trainer", "sync", "phase weight_sync; phase phase sync_weights"),
    "slow tracker": _row("network", "trainer", "log!sync_http", "between between@sync_http; between logging"),
    "late worker": _row("slow", "worker", "rank:1", "rank worker"),
    "slow update on all workers": _row("slow", "worker", "rank:*", "phase worker; phase phase update_actor"),
    "asynchronous lock held by another task": _row("blocked", "trajectory", "own!async_lock", "trajectory trajectory", ""),
    "tool with a synchronous request": _row("blocked", "tool", "tool!sync_http", "loop blocked tool search", "trajectory tool search@sync_http"),
    "child that is waited for": _own("blocked", "run_child"),
    "lock held by another thread": _own("blocked", "held_lock"),
    "lock of a file": _own("blocked", "file_lock"),
    "lock of a database": _own("blocked", "sqlite_lock"),
    "queue that is full": _own("blocked", "full_queue"),
    "loop in Python": _own("blocked", "parse"),
    "JSON of a large object": _row("blocked", "trajectory", "own!dump_json", f"{_LOCKED}; loop blocked dump_json", f"{_LOCKED}; trajectory trajectory@dump_json"),
    "no free thread": _row("starved", "trajectory", "pool", "process paused no free thread", "process paused no free thread; phase start; trajectory start"),
    "interpreter lock held by another thread": _row("starved", "trajectory", "own!lock", _LOCKED),
    "collections of garbage in the rollouts": _row("starved", "tool", "tool!collect", _GC),
    "collections of garbage in the trainer": _row("starved", "trainer", "advantage!collect", "process paused garbage collection"),
    "process stopped in the rollouts": _row("starved", "tool", "tool!stop", _STOPPED),
    "stopped worker": _row("starved", "worker", "rank!stop:1", "process paused the process did not run"),
    "stopped trainer": _row("starved", "trainer", "advantage!stop", "process paused the process did not run"),
    "CPU taken by other programs": _row("starved", "node", "advantage!hog", f"process paused {NO_CPU}; loop blocked {NO_CPU}"),
    "hanging request": _row("hung", "model server", "llm", "stall process chat toy", ray="stall actor chat toy", series=HUNG),
    "hanging tool": _row("hung", "tool", "tool", "stall process execute_tool search", ray="stall actor execute_tool search", series=HUNG),
    "child that never ends": _row("hung", "tool", "tool!run_child", "stall process execute_tool search", ray="stall actor execute_tool search", series=HUNG),
    "lock that is never released": _row("hung", "trajectory", "own!held_lock", "stall process verl.turn; stall process verl.trajectory", ray="stall actor verl.turn; stall actor verl.trajectory", series=HUNG),
    "queue that is never filled": _row("hung", "trainer", "data!empty_queue", "stall process verl.phase.data", ray="stall driver verl.phase.data", series=HUNG),
    "hanging worker": _row("hung", "worker", "rank:1", "stall process verl.worker", ray="stall actor verl.worker", series=HUNG),
    "worker stopped for long": _row("hung", "worker", "rank!stop:1", "stall process verl.worker", ray="stall actor verl.worker", series=HUNG),
    "killed worker": _row("crashed", "worker", "rank!kill:1", "crash process", ray="crash actor", series=CRASHED),
    "killed actor": _row("crashed", "tool", "tool!kill", "", ray="crash actor", series=CRASHED),
    "no memory": _row("crashed", "trainer", "advantage!no_memory", "failed MemoryError", series=CRASHED),
    "full disk at a checkpoint": _row("disk", "trainer", "checkpoint!full", "failed OSError", series=CRASHED),
    "exception in the trainer": _row("crashed", "trainer", "advantage!fail", "failed RuntimeError", series=CRASHED),
    "tool that raises": _row("wrong data", "tool", "tool!fail", "tool search failed", series=DATA),
    "rewards without a signal": _row("wrong data", "reward", "score!equal", "zero_variance", series=DATA),
}  # fmt: skip
KINDS = {mode: {name: row[mode] for name, row in _ROWS.items() if mode in row} for mode in MODES}
"""By mode and name."""
_IN_ROLLOUTS = ("server", "llm", "own", "tool", "reward")
_LASTING = ("!stop", "!hog", "!collect", "!lock", "!dump_json")
"""Ends of plants that hold a process, and with it what is planted beside them."""


class Run(NamedTuple):
    """One run of a plan."""

    number: str
    """Mode and number."""
    series: str
    faults: tuple[Fault, ...]
    mode: str

    @property
    def steps(self):
        """Number of its steps."""
        return max(fault.step for fault in self.faults) + APART

    @property
    def plants(self):
        """What `cpu_plant` reads for each fault."""
        planted = []
        for fault in self.faults:
            place, _, which = KINDS[self.mode][fault.kind].plant.partition(":")
            planted.append(":".join([place, f"{fault.seconds:.2f}", str(fault.step), *filter(None, [which])]))
        return planted


def make_plan(seed, mode):
    """Return the runs of a seed in a mode. Each slow kind is planted once, in one of three runs; what hangs or ends, in a run of its own."""
    chance = random.Random(f"own/{seed}/{mode}")
    kinds = KINDS[mode]
    together = [name for name, kind in kinds.items() if kind.series in (SLOW, DATA)]
    alone = [name for name, kind in kinds.items() if kind.series == SLOW and not kind.plant.endswith(_LASTING)]
    in_rollouts = [name for name in alone if kinds[name].plant.split("!")[0] in _IN_ROLLOUTS]
    after = [name for name in alone if name not in in_rollouts and kinds[name].plant not in ("step", "pool")]
    chance.shuffle(together)
    runs = []
    for number in range(RUNS):
        steps = [[name] for name in together[number::RUNS]]
        steps += [[chance.choice(in_rollouts), chance.choice(after)] for _ in range(PAIRS)]
        runs.append((SLOW, steps))
    for series, count in LONE.items():
        of_series = [name for name, kind in kinds.items() if kind.series == series]
        runs += [(series, [[name]]) for name in chance.sample(of_series, count)]
    return [
        Run(f"{mode}-{number}", series, tuple(_place(chance, kinds, steps)), mode)
        for number, (series, steps) in enumerate(runs)
    ]


def _place(chance, kinds, steps):
    for place, names in enumerate(steps):
        for name in names:
            yield Fault(name, FIRST + APART * place, round(chance.uniform(*SIZES[kinds[name].series]), 2))


def judge(results):
    """Yield result and judgement of each fault that was reached."""
    for result in results:
        for judgement in judging.judge(result, KINDS[result["mode"]]):
            yield result, judgement


def read_kept():
    """Return the results that are kept."""
    return [result for path in sorted(KEPT.glob("seed-*.jsonl")) for result in page.read(path)]


def write(results):
    """Return the part of the page."""
    development = [result for result in results if result["seed"] in page.DEVELOPMENT]
    results = [result for result in results if result not in development]
    judged = list(judge(results))
    early = [judgement for _, judgement in judge(development)]
    seeds = ", ".join(sorted({result["seed"] for result in results})) or "none yet"
    hung = {name for name, row in _ROWS.items() for kind in row.values() if kind.series == HUNG}
    delays = [judgement.delay for _, judgement in judged if judgement.kind in hung and judgement.delay is not None]
    missed = [(result["mode"], judgement) for result, judgement in judged if not judgement.named]
    return _TEXT.format(
        kinds=len(_ROWS),
        series=page._wrap(
            f"Seeds: {seeds}; load of the machine when a run began: {page._describe_load(results) or 'not measured'}. "
            f"Seeds 1 to 3 are for development, and in no table: {sum(judgement.named for judgement in early)} of {len(early)} are named rightly in what was run of them."
        ),
        totals=page._table(
            ["loop", "planted", "found", "named rightly", "healthy steps", "false verdicts"],
            [_total(mode, judged, results) for mode in (*MODES, "all")],
        ),
        pairs=page._wrap(
            page._describe_pairs(judged)
            + (
                f" A hang was named after {median(delays):.1f} s (median), at most {max(delays):.1f} s."
                if delays
                else ""
            )
        ),
        table=page._table(
            ["kind", "sort", "where", *MODES],
            [_count(name, judged) for name in _ROWS if any(name == judgement.kind for _, judgement in judged)],
        ),
        missed="\n".join(
            f"{page._describe_miss(mode, judgement)} {WHY.get(judgement.kind, '')}".rstrip()
            for mode, judgement in missed
        )
        or "Nothing.",
    )


def _total(mode, judged, results):
    of_mode = [judgement for result, judgement in judged if mode in (result["mode"], "all")]
    healthy = [judging.find_false(result) for result in results if mode in (result["mode"], "all")]
    named, steps = sum(judgement.named for judgement in of_mode), sum(count for count, *_ in healthy)
    false = sum(len(found) for _, found, _ in healthy)
    return [
        mode, str(len(of_mode)), str(sum(judgement.found for judgement in of_mode)),
        f"{named}{page._share(named, len(of_mode))}", str(steps), f"{false}{page._share(false, steps)}",
    ]  # fmt: skip


def _count(name, judged):
    row, counts = _ROWS[name], []
    for mode in MODES:
        of_mode = [judgement.named for result, judgement in judged if (result["mode"], judgement.kind) == (mode, name)]
        counts.append(f"{sum(of_mode)} of {len(of_mode)}" if of_mode else "" if mode in row else "not planted")
    kind = next(iter(row.values()))
    return [name, kind.sort, kind.where, *counts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", default=",".join(MODES), help="separated by commas")
    parser.add_argument("--only", default="", help="numbers of the runs, separated by commas")
    parser.add_argument(
        "--again", action="store_true", help="read what was run before with the present code, and run nothing"
    )
    parser.add_argument(
        "--page", action="store_true", help="keep the results, and write the page of the documentation from them"
    )
    arguments = parser.parse_args()
    out = arguments.out.absolute() / f"seed-{arguments.seed}"
    out.mkdir(parents=True, exist_ok=True)
    path = out.with_suffix(".jsonl")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    results = {result["training"]: result for result in map(json.loads, lines)}
    wanted = set(filter(None, arguments.only.split(",")))
    for run in (run for mode in arguments.modes.split(",") for run in make_plan(arguments.seed, mode)):
        known = results.get(run.number)
        if wanted and run.number.partition("-")[2] not in wanted:
            continue
        if arguments.again and known:
            bed = bed_run.Training(out / f"training-{run.number}")
            results[run.number] = {**known, **evidence.collect(bed, run), "reached": known["reached"]}
        elif not arguments.again and not known:
            results[run.number] = evidence.run(out, run)
        path.write_text("".join(json.dumps(result) + "\n" for result in results.values()), "utf-8")
    print(write(page.read(path)))
    if arguments.page:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / path.name).write_text(path.read_text("utf-8"), "utf-8")
        page.write_kept()
    return 0


WHY = {
    "no free thread": "The threads of a pool of one's own, and those of an actor, are not known: the phase is named, with the line that waits.",
    "child that never ends": "The report names a call that waits for the blocked event loop, and the line of the code that blocks it.",
    "killed worker": "The program ends at once: there is no event; the report names the death beside the exception of the pipe.",
    "killed actor": "The program ends at once: the report has its exception (`ActorDiedError`), and not the death.",
    "collections of garbage in the rollouts": "Collections that take less than 0.2 s each are not seen; the line that collects is.",
    "stopped worker": "A process that is stopped within a second after it had had nothing to do for two is not looked at yet: it is named as late.",
}
"""Why a kind is not named, where it is known."""
_TEXT = """## Own loops

Faults in a [loop of one's own](../how-to/own-loop.md), `tests/end_to_end/faults/own_program.py`: 8 trajectories a step, as tasks of an event loop,
in threads, or in two actors of Ray, and an update on two workers, which are processes without a context of the step, or actors. {kinds} kinds were
written down with what names them before they were planted. A slow one lasts 0.8 to 3 s, one that hangs 20 s. Of each seed and loop three runs plant
every slow kind once, and have two steps more with two faults each; two kinds that hang and three that end the run have runs of their own. A verdict
on the code of a trajectory counts only with the line that waited, except in tasks of an event loop.
`python -m tests.end_to_end.faults.own_loops OUT --seed N --page` runs a seed, and writes this part.

{series}

{totals}

{pairs}

{table}

Not named rightly:

{missed}
"""


if __name__ == "__main__":
    sys.exit(main())
