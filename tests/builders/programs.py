# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The real programs of `collector/build.sh`. No test compiles them: ``make collector`` does, and without them a test is skipped."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from verl_otel.cli.stack import cache_folder

BUILD = Path(__file__).resolve().parents[2] / "collector" / "build.sh"


@cache
def _look(*names):
    return subprocess.run(["sh", BUILD, "--look", *names], capture_output=True, text=True, check=False)


def need_programs(*names):
    """Return the folder of programs built from this state of the sources; skip the test where one is missing."""
    looked = _look(*names)
    if looked.returncode:
        pytest.skip(f"{', '.join(names)} not built for this state of the sources: make collector")
    return cache_folder()
