# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The commands read runs that were damaged: no traceback, bounded memory, no hang, and the damage is told."""

import os
import subprocess
import sys

import pytest

from tests.builders import stories
from tests.builders.environments import inherit

LIMIT_MIB = 400
"""Peak memory of a command: what it takes for a small run, and room for some lines of the largest length."""
GIB = 1 << 30
DEEP = b"[" * 200_000 + b"\n"
DEEP_OBJECT = b'{"resourceSpans":' * 100_000 + b"1" + b"}" * 100_000 + b"\n"
DAMAGE = {
    "deep": DEEP,
    "deep object": DEEP_OBJECT,
    "huge number": b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":' + b"9" * 5000 + b"}]}]}]}\n",
    "NUL": b"\x00" * 5000 + b"\n",
    "wrong": b'{"resourceSpans":{"a":[]},"resourceMetrics":7,"kind":[],"time_ns":{},"text":null}\n',
}
MEASURED = """
import re, resource, sys
from verl_otel import cli
code = cli.main(sys.argv[1:])
own = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])  # ru_maxrss begins with that of the process that started this one
print("PEAK", own // 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
sys.exit(code)
"""


@pytest.fixture
def folder(tmp_path):
    """The written files of a small training."""
    return stories.training(tmp_path / "r1").write()


def command(*arguments):
    """Run a command as a process; return its code, its output and its errors. A hang or a traceback fails the test."""
    environ = inherit("VERL_", "PYTEST")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, env=environ,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    out, _, peaks = done.stdout.rpartition("PEAK ")
    if peaks:
        assert max(map(int, peaks.split())) < LIMIT_MIB
    return done.returncode, out, done.stderr


def damage(folder, data):
    """Add damage to a file of each kind."""
    for kind in ("traces", "metrics", "open"):
        (folder / f"{kind}-x-y-1.jsonl").write_bytes(data)
    with (folder / "events.jsonl").open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_damaged_lines_cost_these_lines(folder, call, kind):
    """Every command tells what it knows without them."""
    damage(folder, DAMAGE[kind])
    (folder / "run.json").write_bytes(DAMAGE[kind])
    for arguments in (
        ("report", folder),
        ("explain", folder),
        ("compare", folder, folder),
        ("report", folder, "--json"),
    ):
        assert call(*arguments).code == 0


@pytest.mark.full
def test_a_fifo_in_the_place_of_a_file_does_not_hang(folder):
    """A FIFO that is called like a file of each kind is told and passed over."""
    for kind in ("traces", "metrics", "open"):
        os.mkfifo(folder / f"{kind}-fifo-y-1.jsonl")
    for name in ("events.jsonl", "run.json"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    for arguments in (("report", folder), ("explain", folder), ("compare", folder, folder)):
        code, out, _ = command(*arguments)
        assert code == 0, out
    assert "traces-fifo-y-1.jsonl cannot be read" in command("report", folder)[1]


@pytest.mark.full
def test_a_line_of_a_gigabyte_is_not_read_into_memory(folder):
    """A sparse file of 1 GiB without a newline in the place of traces, shorter ones in that of metrics and events."""
    for name in ("traces-x-y-1.jsonl", "metrics-x-y-1.jsonl", "events.jsonl", "run.json"):
        with (folder / name).open("wb") as file:
            file.truncate(GIB if name.startswith("traces") else GIB >> 3)
    code, out, _ = command("report", folder)
    assert code == 0
    assert "traces-x-y-1.jsonl has a line of 1024 MiB" in out


@pytest.mark.full
def test_lines_around_a_long_one_are_read(folder):
    """What stands before and behind a line that is too long is used."""
    (path,) = folder.glob("traces-trainer-*")
    first, rest = path.read_bytes().split(b"\n", 1)
    whole = command("report", folder, "--json")[1]
    path.write_bytes(first + b"\n" + b"x" * (20 << 20) + b"\n" + rest)
    code, out, _ = command("report", folder, "--json")
    assert code == 0
    assert out.count('"number"') == whole.count('"number"')
    assert "has a line of 20 MiB" in out
