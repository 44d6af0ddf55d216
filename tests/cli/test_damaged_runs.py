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
    "BOM": b"\xef\xbb\xbf{}\n",
    "CRLF": b"{}\r\n\r\n",
    "wrong": b'{"resourceSpans":{"a":[]},"resourceMetrics":7,"kind":[],"time_ns":{},"text":null}\n',
    "infinite": b'{"kind":"stall","time_ns":1e999,"text":"x","resourceSpans":[1e999]}\n',
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
def test_deep_json_is_no_traceback(folder):
    """Nested a hundred thousand times in every file of a run: told as damage."""
    damage(folder, DEEP + DEEP_OBJECT)
    (folder / "run.json").write_bytes(DEEP)
    code, out, _ = command("report", folder)
    assert code == 0
    assert "cannot be read" in out


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


@pytest.mark.full
@pytest.mark.parametrize("kind", [*sorted(DAMAGE), "fifo", "gigabyte", "wrong entries"])
def test_damaged_targets_are_passed_over(tmp_path, kind):
    """``discover`` reads the files of all runs: one that is damaged leaves the others listed."""
    targets = tmp_path / "targets"
    targets.mkdir()
    path = targets / "damaged.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "gigabyte":
        with path.open("wb") as file:
            file.truncate(GIB)
    elif kind == "wrong entries":
        pid = "9" * 5000
        path.write_text(
            f'[1, null, {{}}, {{"targets": 3}}, {{"targets": [], "labels": {{"__meta_verl_otel_pid": "{pid}"}}}}]'
        )
    else:
        path.write_bytes(DAMAGE[kind])
    (targets / "good.json").write_text(
        '[{"targets": ["127.0.0.1:9"], "labels": {"instance": "r/x-0", "verl_run_id": "r"}}]'
    )
    code, out, _ = command("discover", "--local", "--run-dir", tmp_path, "--timeout", "0.2")
    assert code == 1  # the good one does not answer
    assert "127.0.0.1:9" in out
