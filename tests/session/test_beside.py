# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Beside other libraries that change a process, a training computes what it does without us, and its spans are written.

``make test-extra ONLY=beside`` installs ddtrace, sentry-sdk, gevent, uvloop, coverage and debugpy into an environment of their own.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).with_name("beside_training.py")
MODULES = {"sentry": "sentry_sdk", "settrace": "sys", "none": "sys"}
STEPS = 3


@pytest.mark.parametrize(
    "library", ["none", "settrace", "pdb", "coverage", "debugpy", "ddtrace", "sentry", "gevent", "uvloop"]
)
def test_a_training_is_as_without_us(library, clean_python, tmp_path, read_run):
    """Results, exit code and the other library's hooks are the same; no thread of ours is left; every step is in the files."""
    module = MODULES.get(library, library)
    if module not in sys.modules and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: `make test-extra ONLY=beside` installs it (requirements/beside.txt)")
    off = json.loads(clean_python(SCRIPT, library, "off", seconds=120).stdout.splitlines()[-1])
    on = json.loads(clean_python(SCRIPT, library, tmp_path, seconds=120).stdout.splitlines()[-1])
    spans = [span.name for span in read_run(next(tmp_path.glob("2*"))).spans]
    assert on["results"] == off["results"]
    assert on["left"].pop("threads") == []
    assert on["left"].get("hook") == off["left"].get("hook")
    assert spans.count("verl.step") == STEPS
    assert spans.count("thread") == 4 * STEPS
    assert spans.count("verl.trajectory") == 8 * STEPS
