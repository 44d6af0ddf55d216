# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hostile values in every argument of the public interface raise nothing, and what was recorded can be read."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.attack

TOP = Path(__file__).resolve().parents[2]
PEAK_MIB = 512
"""Far above what the process needs, far below what an unbounded value takes."""


@pytest.fixture(scope="module")
def calls(clean_python, tmp_path_factory):
    """Give every hostile value to every argument, in a process of its own; its result and its folder."""
    folder = tmp_path_factory.mktemp("hostile")
    done = clean_python("-m", "tests.attack.hostile_calls", folder, seconds=300, cwd=TOP)
    return json.loads(done.stdout.splitlines()[-1]), folder, done.stderr


def test_nothing_is_raised(calls, attack_counts):
    """No verb, no span and no instrument raises, whether recording is on or off."""
    result, _, _ = calls
    attack_counts("hostile values", result["tried"], len(result["failed"]))
    assert result["tried"] >= 3_000
    assert not result["failed"]


def test_every_line_of_the_files_is_json(calls, attack_counts):
    """Whatever the values were, the files are complete."""
    lines = [line for path in calls[1].rglob("*.jsonl") for line in path.read_bytes().splitlines()]
    broken = []
    for line in lines:
        try:
            json.loads(line)
        except ValueError:
            broken.append(line[:200])
    attack_counts("lines of files written from hostile values", len(lines), len(broken))
    assert lines
    assert not broken


def test_memory_is_bounded(calls):
    """Values of megabytes are not kept."""
    assert calls[0]["peak_mib"] < PEAK_MIB


def test_no_traceback_is_printed(calls):
    """What is refused is logged in one line."""
    assert "Traceback" not in calls[2]
