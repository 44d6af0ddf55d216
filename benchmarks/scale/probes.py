# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Does a part of the simulated run in this process, and prints what it took as JSON. Each part runs in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.hooks.__main__ import install_hooks, measure_node
from benchmarks.hooks.stand_ins import make_module, run_trajectories
from benchmarks.scale.shape import GPUS, NODES, PER_WORKER, PROCESSES, TRAJECTORIES, WORKERS

WORKER_STEPS: Final = 40
TRAINER_STEPS: Final = 10
WARM_STEPS: Final = 3
"""Steps before the first figure is taken: imports, and memory that is used again and again."""
PEERS: Final = 1000
CHECKS: Final = 20
CACHE: Final = "cache"
"""Folder of the states of readers."""
READ_STEPS, READ_TRAJECTORIES = 245, 1024
RANKS_STEPS = 178
"""Of a run of as many spans, half of which are those of 1,024 ranks."""
NODE_PROCESSES: Final = 13
Figures = Mapping[str, float]


def _memory_mib() -> float:
    """Return the memory of this process that is in use now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _measure_steps(run_step: Callable[[int], None], folder: Path, steps: int) -> dict[str, float]:
    """Return CPU and bytes of a step, and the memory after some steps and after all of them."""
    from verl_otel import session

    for number in range(WARM_STEPS):
        run_step(number)
        session.flush(60.0)
    cpu, before, memory = time.process_time(), _count_bytes(folder)[0], _memory_mib()
    for number in range(WARM_STEPS, WARM_STEPS + steps):
        run_step(number)
        session.flush(60.0)
    lines, stored, compressed, original = _count_bytes(folder)
    return {
        "steps": steps,
        "cpu_seconds": (time.process_time() - cpu) / steps,
        "bytes": (lines - before) / steps,
        "stored_bytes": stored,
        "ratio": original / compressed if compressed else 0.0,
        "memory_begin_mib": memory,
        "memory_end_mib": _memory_mib(),
    }


def _count_bytes(folder: Path) -> tuple[int, int, int, int]:
    """Return the bytes of all lines of spans and metrics, of their files, of the compressed ones, and of the lines in these."""
    from verl_otel._internal import rotated_files

    lines = stored = compressed = original = 0
    for kind in ("traces", "metrics"):
        for path in (path for run in folder.iterdir() for path in rotated_files.find(run, f"{kind}-")):
            size = path.stat().st_size
            length = rotated_files.size_of(path)
            lines, stored = lines + length, stored + size
            if rotated_files.is_compressed(path):
                compressed, original = compressed + size, original + length
    return lines, stored, compressed, original


def worker(folder: Path) -> Figures:
    """An agent loop worker: its share of the trajectories of each step, through verl's hooks, written to files that are rotated and compressed."""
    import verl_otel

    verl_otel.init(exporters="file", memory_mib=1024)
    hooked = install_hooks(make_module())

    def run_step(number: int) -> None:
        asyncio.run(run_trajectories(hooked, PER_WORKER, step=number))

    return _measure_steps(run_step, folder, WORKER_STEPS)


def trainer(folder: Path) -> Figures:
    """The trainer: a step with the lineage of all trajectories, and its scalars."""
    import verl_otel
    from verl_otel.integrations.verl import gpu_time
    from verl_otel.integrations.verl.lineage import consume
    from verl_otel.integrations.verl.sample_origin import Origin

    verl_otel.init(exporters="file", memory_mib=1024)
    reward = verl_otel.gauge("bench.reward")

    def run_step(number: int) -> None:
        begin, facts = time.monotonic(), {"llm": 18.0, "tool": 1.0, "reward": 0.1, "prompt": 64.0, "response": 512.0}
        origins = [
            Origin(
                (number << 64) + index + 1,
                index + 1,
                20.0 + index % 7,
                float(index % 2),
                "gsm8k",
                f"prompt-{index // 8}",
                number,
                {**facts, "start": time.time() - 30.0},
            )
            for index in range(TRAJECTORIES)
        ]
        with verl_otel.step(number):
            consume(origins, step=number + 1)
            reward.set(float(number))
        gpu_time.end_step(begin, time.monotonic(), number, None, "sync")

    return _measure_steps(run_step, folder, TRAINER_STEPS)


def idle(folder: Path) -> Figures:
    """Any other process: seconds in which nothing is recorded."""
    del folder
    measured = measure_node("file", NODE_PROCESSES, 20.0)
    return {"cpu_per_second": measured["cpu"], "memory_mib": measured["mib"] / NODE_PROCESSES}


def busy(folder: Path) -> Figures:
    """An agent loop worker by the second: what it takes while its trajectories of a step are open, beside the same without telemetry."""
    del folder
    on, off = (measure_node(kind, 1, 30.0, PER_WORKER)["cpu"] for kind in ("file", "none"))
    return {"cpu_per_second": on - off}


def watcher(folder: Path) -> Figures:
    """The watcher of a node: a second with all processes on its node, and one with all on other nodes of a shared file system."""
    from verl_otel.recording.duration_stats import DurationStats
    from verl_otel.system import procfs
    from verl_otel.watchdog import process_reports
    from verl_otel.watchdog.process_table import ProcessTable

    own = procfs.find_process(os.getpid()) or procfs.Process(os.getpid(), 0)
    peers = {"verl.worker.call": DurationStats(100, (1.0, 2.0, 3.0))}
    figures: dict[str, float] = {"peers": PEERS}
    for where in ("here", "elsewhere"):
        run = folder / where
        reports = run / process_reports.FOLDER
        reports.mkdir(parents=True)
        names = [f"rank-{where}-{number}" for number in range(PEERS)]
        for name in names:
            report = process_reports.ProcessReport(name, own, where, name, "rank", 0, "", 0, 1.0, (), peers, (), ())
            process_reports.write(reports, report)
            (reports / f"{process_reports.HEARTBEAT_PREFIX}{name}").write_bytes(b"%8d %16d\n" % (1, 1))
        table = ProcessTable(run, "here", 0.0)
        begin = time.process_time()
        table.refresh()
        figures[f"first_{where}_seconds"] = time.process_time() - begin
        spent = 0.0
        for check in range(CHECKS):
            for name in names:
                os.utime(
                    reports / f"{process_reports.HEARTBEAT_PREFIX}{name}", (time.time() + check, time.time() + check)
                )
            begin = time.process_time()
            table.refresh()
            spent += time.process_time() - begin
        figures[f"check_{where}_seconds"] = spent / CHECKS
        figures[f"watched_{where}"] = len(table.statuses)
    return figures


def targets(folder: Path) -> Figures:
    """The targets file: bytes with all processes, and CPU of reading it and of adding the last one."""
    from verl_otel import config
    from verl_otel import resource as resources
    from verl_otel.session import prometheus_targets

    settings = config.load_config(run_dir=folder, run_id="scale")
    own = resources.build_resource(settings)
    entries = [
        prometheus_targets.make_target(
            own, f"10.0.{number // 250}.{number % 250}:9464", instance=f"scale/rank-{number}"
        )
        for number in range(PROCESSES)
    ]
    prometheus_targets.add_targets(settings, entries[:-1])
    path = prometheus_targets.targets_path(settings)
    begin = time.process_time()
    prometheus_targets.add_targets(settings, entries[-1:])
    added = time.process_time() - begin
    begin = time.process_time()
    found = prometheus_targets.read_folder(path.parent)
    figures = {"read_seconds": time.process_time() - begin, "targets": len(found)}
    return {**figures, "add_seconds": added, "bytes": path.stat().st_size}


def series(folder: Path) -> Figures:
    """Series in Prometheus, counted from the catalogue as the guide counts those of smaller runs."""
    del folder
    shape: Any = importlib.import_module("tests.collector.shape")
    found = {}
    for gpus in (8, 64, 1024):
        members = shape.members_of(gpus, workers=WORKERS)
        found[f"own_{gpus}"] = sum(
            shape.series_of(name, sets)
            for member in members
            for name, sets in member.rows.items()
            if name.startswith(("verl.", "gen_ai."))
        )
        found[f"processes_{gpus}"] = len(members)
    return found


def reader(folder: Path) -> Figures:
    """`explain` of a run of some steps: CPU of a span, of reading it again and one of its steps, and memory."""
    from verl_otel.analysis import reader

    run = _write_run(folder, READ_STEPS)
    begin = time.process_time()
    explained = reader.read([run], keep_after=0.0)[0]
    cpu = time.process_time() - begin
    figures = {}
    for name, steps in (("again_seconds", None), ("step_seconds", frozenset({READ_STEPS // 2}))):
        begin = time.process_time()
        reader.read([run], steps=steps)
        figures[name] = time.process_time() - begin
    return {
        **figures,
        "spans": explained.counts.spans,
        "cpu_seconds": cpu,
        "spans_per_cpu_second": explained.counts.spans / cpu,
        "state_mib": sum(path.stat().st_size for path in (folder / CACHE).rglob("*") if path.is_file()) / (1 << 20),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _write_run(folder: Path, steps: int, **shape: int) -> Path:
    big_run: Any = importlib.import_module("tests.analysis.big_run")
    path: Path = big_run.write(folder / f"run-{steps}", steps, READ_TRAJECTORIES, **shape)
    return path


def ranks(folder: Path) -> Figures:
    """`explain` of the files of 1,034 processes on 128 nodes: CPU of a span, as a multiple of that of 13 processes, and memory."""
    from verl_otel.analysis import reader

    of_span: list[float] = []
    for run in (_write_run(folder, READ_STEPS), _write_run(folder, RANKS_STEPS, hosts=NODES, ranks=GPUS)):
        begin = time.process_time()
        counts = reader.read([run], keep_after=0.0)[0].counts
        of_span.append((time.process_time() - begin) / counts.spans)
    return {
        "ratio": of_span[1] / of_span[0],
        "spans": counts.spans,
        "processes": counts.processes,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


PROBES: Final[Mapping[str, Callable[[Path], Figures]]] = {
    function.__name__: function for function in (worker, busy, trainer, idle, watcher, targets, series, reader, ranks)
}


def main(argv: list[str] | None = None) -> None:
    """Run one part and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.probes", description=__doc__)
    parser.add_argument("part", choices=tuple(PROBES))
    part: str = parser.parse_args(argv).part
    with tempfile.TemporaryDirectory() as made:
        os.environ |= {
            "VERL_OTEL_RUN_DIR": made,
            "XDG_CACHE_HOME": str(Path(made) / CACHE),
            "VERL_OTEL_FILE_MIB": "4",
            "VERL_OTEL_HARDWARE": "0",
        }
        figures: dict[str, Any] = dict(PROBES[part](Path(made)))
        if part in ("worker", "trainer"):
            import verl_otel

            verl_otel.shutdown()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
