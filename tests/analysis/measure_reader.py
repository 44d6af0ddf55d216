# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Measure how fast a long run is explained, for the first and for the second time, and how much memory that takes.

    python -m tests.analysis.measure_reader --steps 1000

Prints spans per second, CPU time per span, and the peak memory of a process that does only this.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.analysis import big_run
from verl_otel.analysis import reader


def measure(folder):
    """Explain a run; return what it cost as text."""
    wall, cpu = time.monotonic(), time.process_time()
    run = reader.read([folder], keep_after=0)[0]
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    spans, peak = run.counts.spans, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{len(run.steps)} steps, {spans:,} spans: {spans / wall:,.0f} spans/s, {wall:.2f} s, "
        f"CPU {cpu:.2f} s, {cpu / spans * 1e6:.1f} us/span, peak {peak:.0f} MB, load {os.getloadavg()[0]:.1f}"
    )


def main():
    """Write a run, unless there is one, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a run that is there already")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(measure(arguments.folder))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder or big_run.write(made, arguments.steps, arguments.trajectories, arguments.hosts)
        command = [sys.executable, "-m", "tests.analysis.measure_reader", "--folder", folder, "--here"]
        for _ in range(2):
            subprocess.run(command, check=True, env={**os.environ, "XDG_CACHE_HOME": f"{made}/cache"})


if __name__ == "__main__":
    main()
