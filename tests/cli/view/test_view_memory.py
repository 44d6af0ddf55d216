# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The memory of the process that serves the live page of a long run."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.analysis import big_run
from tests.builders.environments import inherit

OWN_MIB = 54
"""Memory of its own, without the pages of shared libraries; a further step takes 4 kB."""


@pytest.mark.alone
def test_memory_of_a_long_run(tmp_path, wait_for):
    """Two thousand steps, read while a client requests them: below the limit at every moment."""
    big_run.write(tmp_path / "long", 2000, 1)
    program = Path(sys.executable).with_name("verl-otel")
    command = [program, "view", tmp_path / "long", "--port", "0", "--no-token"]
    with subprocess.Popen(command, env=inherit("PYTEST", "VERL_OTEL"), stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[0]

            def request(path=""):
                with urllib.request.urlopen(f"{address}api/runs/long{path}") as answer:
                    return json.load(answer)

            wait_for(lambda: request()["steps"] == 2000, 60, 1)
            assert len(request("/steps?first=0")["seconds"]) == 2000
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) < OWN_MIB * 1024
        finally:
            process.terminate()
