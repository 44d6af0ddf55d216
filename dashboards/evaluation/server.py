# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A temporary Prometheus with recorded data."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dashboards.evaluation.client import OPENER, Prometheus
from verl_otel.cli.stack import cache_folder

WAIT: Final = 30.0
"""Timeout in seconds for the start of Prometheus."""


class MissingProgramError(Exception):
    """Prometheus is not installed; the message lists the searched folders."""


def find(program: str) -> Path:
    """Return the path of ``prometheus`` or ``promtool`` from this project's cache or the search path."""
    cache = cache_folder()
    path = shutil.which(program, path=f"{cache}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        raise MissingProgramError(f"{program} is neither in {cache} nor on the PATH: make collector builds it")
    return Path(path)


@contextlib.contextmanager
def serve(openmetrics: Path, folder: Path, scrape: float) -> Iterator[Prometheus]:
    """Run a Prometheus over a file of OpenMetrics.

    Args:
        openmetrics: Samples with times.
        folder: An empty folder for its data.
        scrape: Seconds between two samples of a series: after three of them without one it has ended.
    """
    data = folder / "data"
    command = [find("promtool"), "tsdb", "create-blocks-from", "openmetrics", openmetrics, data]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own program
    config = folder / "prometheus.yml"
    config.write_text("global: {}\n", "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=20y",
        f"--web.listen-address={address}",
        f"--query.lookback-delta={scrape * 3:g}s",
    ]
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen([find("prometheus"), *arguments], stdout=log, stderr=log) as process,  # noqa: S603 - as above
    ):
        try:
            _wait(f"http://{address}/-/ready", process)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), OPENER.open(url, timeout=1):
            return
        time.sleep(0.05)
    raise TimeoutError(f"Prometheus did not answer at {url}")
