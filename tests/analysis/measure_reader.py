# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Measure how fast a long run is explained and how much memory that takes.

    python -m tests.analysis.measure_reader --steps 1000 --processes 0 2

Prints spans per second of wall time, CPU time per span, and peak memory: of the process that explains, and of its helpers (of the largest
one).
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from tests.analysis import big_run
from verl_otel.analysis import summary


def cpu_seconds():
    """CPU time of this process, and of its helpers that have ended."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


def measure(folder, processes):
    """Explain a run; return what it cost as text."""
    wall, before = time.monotonic(), cpu_seconds()
    run = summary.explain([folder], processes=processes)
    wall = time.monotonic() - wall
    own_cpu, helpers_cpu = (
        (now - then) / run.counts.spans * 1e6 for now, then in zip(cpu_seconds(), before, strict=True)
    )
    own, helpers = (
        resource.getrusage(scope).ru_maxrss / 1024 for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    spans = run.counts.spans
    return (
        f"{len(run.steps)} steps, {spans:,} spans, {processes} helpers: {spans / wall:,.0f} spans/s, {wall:.1f} s, "
        f"CPU {own_cpu:.1f} us/span, helpers {helpers_cpu:.1f}, peak {own:.0f} MB, helpers {helpers:.0f} MB, load {os.getloadavg()[0]:.1f}"
    )


def main():
    """Write a run, unless there is one, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a run that is there already")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--processes", type=int, nargs="+", default=[0, summary.run_files.count_workers()])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder or big_run.write(made, arguments.steps, arguments.trajectories, arguments.hosts)
        for processes in arguments.processes:
            print(measure(folder, processes), flush=True)


if __name__ == "__main__":
    main()
