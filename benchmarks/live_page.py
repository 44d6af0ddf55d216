# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What `verl-otel view` costs beside a running training: CPU seconds of its process for each second, as JSON on the standard output.

The training is a loop of its own process, with a step a second and eight trajectories in each, so that the files grow. A viewer requests what the
page of a run requests, every five seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

RUN: Final = "bench"
PAST: Final = 100
"""Steps that are in the files before the measurement."""
TRAJECTORIES: Final = 8
SETTLE: Final = 1.0
"""Seconds until the measurement begins, after the page has read the past steps."""
READ: Final = 60.0
"""Seconds in which the page has read the past steps."""
EVERY: Final = 5.0
"""Seconds between the requests of a page."""
_COMMAND: Final = "import sys; from verl_otel.cli import main; sys.exit(main())"
_TRAINING: Final = f"""
import sys, time, verl_otel
from verl_otel import session
verl_otel.init(exporters="file", run_dir=sys.argv[1], run_id={RUN!r})
number = 0
while True:
    number += 1
    with verl_otel.step(number), verl_otel.phase("gen"):
        for index in range({TRAJECTORIES}):
            with verl_otel.trajectory(f"prompt-{{number}}", index, step=number):
                for turn in range(4):
                    with verl_otel.turn(turn):
                        pass
        if number > {PAST}:
            time.sleep(1)
    verl_otel.gauge("reward").set(number % 7)
    if number == {PAST}:
        session.flush(10)
        print("ready", flush=True)
"""


class _Page:
    """Requests what a page of a run requests: its state, the steps that may have changed, and a scalar."""

    def __init__(self, address: str) -> None:
        self._base = f"{address}api/runs/{RUN}"
        self._settled = 0

    def update(self) -> int:
        """Return the number of steps that are known."""
        state = _fetch(self._base)
        self._settled = _fetch(f"{self._base}/steps?first={self._settled}")["settled"]
        _fetch(f"{self._base}/scalars?name=reward")
        return int(state["steps"])

    def look(self, stopped: threading.Event) -> None:
        """Update every few seconds until it is stopped."""
        while not stopped.wait(EVERY):
            self.update()


def _fetch(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the loopback
        return json.load(answer)


@contextmanager
def _start(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start Python and yield it with its first line; it ends with the block."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline() if process.stdout else ""
        finally:
            process.kill()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process with all threads that it has had, in nanoseconds' resolution, which /proc does not have."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python does not have


def measure(viewers: int, seconds: float) -> dict[str, float]:
    """Return the CPU seconds of a second.

    Args:
        viewers: Pages that are open.
        seconds: Length of the measurement.

    Raises:
        RuntimeError: The run has not grown meanwhile, or the page has not shown it.
    """
    stopped = threading.Event()
    with (
        tempfile.TemporaryDirectory() as folder,
        _start("-c", _TRAINING, folder),
        _start("-c", _COMMAND, "view", folder, "--port", "0", "--no-token") as (view, line),
    ):
        address = line.split()[0]
        pages = [_Page(address) for _ in range(viewers)]
        shown = [_wait_for_past(page) for page in pages]
        threads = [threading.Thread(target=page.look, args=(stopped,)) for page in pages]
        for thread in threads:
            thread.start()
        size = _size(folder)
        time.sleep(SETTLE)
        spent_before, begin = cpu_seconds(view.pid), time.monotonic()
        time.sleep(seconds)
        spent = (cpu_seconds(view.pid) - spent_before) / (time.monotonic() - begin)
        stopped.set()
        for thread in threads:
            thread.join()
        has_grown = _size(folder) > size and all(
            page.update() > before for page, before in zip(pages, shown, strict=True)
        )
        if not has_grown:
            raise RuntimeError("the run has not grown, or the page does not show it")
    return {"cpu": spent}


def _wait_for_past(page: _Page) -> int:
    """Return the number of known steps once all that was there at first has been read."""
    deadline = time.monotonic() + READ
    while (known := page.update()) < PAST and time.monotonic() < deadline:
        time.sleep(0.5)
    return known


def _size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl"))


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_page", description=__doc__)
    parser.add_argument("--viewers", type=int, default=0, help="pages that are open (0)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="a multiple of 5, so that requests are counted evenly (10)"
    )
    arguments = parser.parse_args(argv)
    print(json.dumps(measure(arguments.viewers, arguments.seconds)))


if __name__ == "__main__":
    main()
