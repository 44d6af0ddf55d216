# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The real command ``verl-otel view`` as a process."""

import contextlib
import subprocess
import sys
from pathlib import Path

from tests.builders.environments import inherit


@contextlib.contextmanager
def serve(runs, *arguments):
    """Start the live page of a folder of runs and yield its address; it ends with the block, by SIGINT and with code 0."""
    process = subprocess.Popen(
        [Path(sys.executable).with_name("verl-otel"), "view", *map(str, arguments), "--port", "0", "--no-token"],
        env={
            **inherit("PYTEST", "VERL_OTEL"),
            "VERL_OTEL_RUN_DIR": str(runs),
            "XDG_CACHE_HOME": str(Path(runs).parent / "cache"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process.stdout.readline().split()[0].rstrip("/")
        finally:
            process.send_signal(2)
            assert process.wait(20) == 0
