# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the trainings of a plan, and keeps what verl-otel reports of each: verdicts, events, and the lines of its report on failures."""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from tests.end_to_end import bed_run
from tests.end_to_end.faults.kinds import ASYNCHRONOUS, CRASHED, SAVE_EVERY, VALIDATE_EVERY
from tests.recount import own_loop
from tests.verl_cpu import cpu_train
from verl_otel.analysis import reader

PATIENCE = 45
"""Seconds after which a training whose process died, and which verl lets hang, is ended."""
AFTERWARDS = 3
"""Seconds for which it goes on when the fault was named."""
_FAILURE = re.compile(r"failed|raised|Error|DEAD|crash", re.IGNORECASE)
_PLACE = re.compile(r" \(pid [^)]*\)")
"""Process id and host."""
OTHERS = "others.jsonl"
OWN_PROGRAM = "tests.end_to_end.faults.own_program"
TOP = Path(__file__).resolve().parents[3]
STEP_SECONDS = 10
"""Seconds for each step of a long training."""
APART = [
    "ray_kwargs.ray_init.num_gpus=3", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2",
]  # fmt: skip
"""Two ranks and a replica of its own, with two updates in a step: a rank has two samples at a time."""
PROMPTS = 4
"""Prompts of a step."""
EPOCHS = 24
"""Passes over the 64 prompts, more than any training here needs."""
LINES = 12
"""Lines of a report on failures that are kept."""


def run(out, training):
    """Train once and return what was found out."""
    load = os.getloadavg()[0]
    folder = out / f"training-{training.number}"
    with bed_run.start(folder, **make_options(folder, training)) as (bed, process), OtherPrograms(process.pid, bed.out):
        if training.series == CRASHED:
            wait_for_crash(bed, process)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):  # a busy machine: what was reached until then counts
                process.wait(max(bed_run.DEADLINE, STEP_SECONDS * training.steps))
    return {
        "training": training.number,
        "series": training.series,
        "mode": training.mode,
        "faults": [fault._asdict() for fault in training.faults],
        "load": round(load, 1),
        **collect(bed, training),
    }


class OtherPrograms(threading.Thread):
    """Measures once a second, without verl-otel, which share of the CPUs programs outside of a training take, and the longest wait of its threads."""

    def __init__(self, pid, folder):
        super().__init__(daemon=True)
        self._pid, self._path, self._stopped = pid, folder / OTHERS, threading.Event()

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self._stopped.set()
        self.join()

    def run(self):
        known, waits, busy, then = {}, {}, sum_busy(), time.time()
        with self._path.open("w", encoding="utf-8") as file:
            is_last = False
            while not is_last:
                is_last = self._stopped.wait(1.0)
                before, known, busy_before, busy = known, read_own(self._pid), busy, sum_busy()
                own = sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in known.items())
                waits_before, waits = waits, read_waits(known)
                waited = max((wait - waits_before.get(thread, wait) for thread, wait in waits.items()), default=0.0)
                now = time.time()
                share = (busy - busy_before - own) / (now - then) / os.cpu_count()
                file.write(
                    json.dumps([round(then, 3), round(now, 3), round(max(0.0, share), 3), round(waited, 3)]) + "\n"
                )
                then = now


def sum_busy():
    """Return for how many seconds the CPUs of this machine were busy."""
    times = psutil.cpu_times()
    return times.user + times.system + times.nice + times.irq + times.softirq


def read_own(pid):
    """Return the CPU seconds of a process and all below it, by process."""
    seconds = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                seconds[process.pid] = sum(process.cpu_times()[:2])
    return seconds


def read_waits(pids):
    """Return for how many seconds each thread of some processes has waited for a CPU, by thread, as the kernel counts it."""
    seconds = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                seconds[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return seconds


def read_others(folder):
    """Return what `OtherPrograms` has measured: begin, end, share of the CPUs, and seconds of the longest wait of a thread."""
    path = folder / OTHERS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def make_options(folder, training):
    """Return the arguments of `bed_run.start`."""
    telemetry = {"VERL_OTEL_ENABLED": 1, "VERL_OTEL_RUN_DIR": folder / "runs"}
    if training.mode not in cpu_train.MODES:
        module = OWN_PROGRAM if training.faults else own_loop.__name__
        return {
            "command": [sys.executable, "-m", module, training.mode, folder, str(training.steps)],
            "PYTHONPATH_EXTRA": TOP,
            "CPU_BED_PLANT": ",".join(training.plants),
            **telemetry,
        }
    validate = VALIDATE_EVERY if training.needs("validation") else -1
    save = SAVE_EVERY if training.needs("checkpoint") else -1
    more = {
        "sync": ["ray_kwargs.ray_init.num_gpus=2"],
        "separate_async": [*APART, *cpu_train.ORDERED],
        "fully_async": [*APART, f"rollout.total_rollout_steps={PROMPTS * training.steps}"],
    }.get(training.mode)
    ranks = ["trainer.n_gpus_per_node=2", *more] if more else []
    overrides = [
        *ranks, f"trainer.total_epochs={EPOCHS}",
        f"trainer.test_freq={validate}", f"trainer.save_freq={save}",
        f"trainer.default_local_dir={folder}/checkpoints", "trainer.max_actor_ckpt_to_keep=1",
    ]  # fmt: skip
    return {
        "overrides": overrides, "steps": training.steps, "tool": True, "mode": training.mode,
        "CPU_BED_PLANT": ",".join(training.plants), **telemetry,
    }  # fmt: skip


def wait_for_crash(bed, process):
    """Wait for the end of a training whose process dies; verl waits for some of them without a deadline."""
    end = time.monotonic() + bed_run.DEADLINE
    reached = named = None
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.5)
        if reached is None and bed.bed("plant"):
            reached = time.monotonic()
            end = reached + PATIENCE
        if named is None and any(path.stat().st_size for path in (bed.out / "runs").glob("*/events.jsonl")):
            named = time.monotonic()
            end = min(end, named + AFTERWARDS)


def collect(bed, training):
    """Return what the files of a training say, and when its faults were reached."""
    reached = {line["plant"]: line["start"] for line in reversed(bed.bed("plant"))}
    others = read_others(bed.out)
    ended = others[-1][1] if others else math.inf
    # What the end of the training has cut short is not counted.
    plants = [
        start if (start := reached.get(plant)) is not None and start + fault.seconds <= ended else None
        for plant, fault in zip(training.plants, training.faults, strict=True)
    ]
    explained = None
    with contextlib.suppress(StopIteration, FileNotFoundError):  # it has no folder
        explained = reader.read([bed.folder])[0]
    if explained is None or not (explained.steps or explained.events):  # on a busy machine Ray may not start
        return {"state": "not started", "reached": plants, "ends": {}, "steps": {}, "events": [], "lines": []}
    lines = [_PLACE.sub("", line.strip()) for line in bed.report().splitlines() if _FAILURE.search(line)]
    return {
        "state": explained.state,
        "reached": plants,
        "ends": find_ends(bed) if training.mode in ASYNCHRONOUS else {},
        "steps": {str(step.number): _describe(step, others) for step in explained.steps},
        "events": [_describe_event(event) for event in explained.events],
        "lines": lines[:LINES],
    }


def find_ends(bed):
    """Return when the trainer logged the scalars of each step, the last time: its end, by the bed's own clock."""
    ends = {}
    for line in bed.bed("logged"):
        ends[str(line["step"])] = max(round(line["end"], 3), ends.get(str(line["step"]), 0.0))
    return ends


def _describe(step, others):
    first, last = step.start_ns / 1e9, step.next_ns / 1e9
    during = [each for each in others if each[0] < last and each[1] > first]
    shares = [share for _, _, share, *_ in during]
    waits = [
        (min(end, last) - max(begin, first)) / (end - begin) * wait
        for begin, end, _, *waits in during
        for wait in waits
    ]
    verdicts = [
        [verdict.kind, verdict.cause, verdict.cause_name, verdict.subject, verdict.instance, round(verdict.seconds, 2)]
        + [verdict.line.rpartition("/")[2]] * bool(verdict.line)
        for verdict in step.verdicts
    ]
    wasted = {} if step.cost is None else {reason: count for reason, count in step.cost.wasted_tokens.items() if count}
    trained = 0 if step.cost is None else step.cost.trained_tokens
    failed = sorted({failure.name for failure in step.failures})
    return {
        "seconds": round(step.seconds, 2),
        "verdicts": verdicts,
        "others": round(sum(shares) / max(1, len(shares)), 2),
        **({"waited": round(sum(waits), 2)} if waits else {}),
        **({"wasted": wasted, "trained": trained} if wasted else {}),
        **({"failed": failed} if failed else {}),
        **({"error": step.error} if step.error else {}),
    }


def _describe_event(event):
    culprit = event.detail.get("culprit") or {}
    return {
        "kind": event.kind,
        "time": event.time_ns / 1e9,
        "instance": culprit.get("instance", ""),
        "span": culprit.get("span", ""),
    }
