# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rotated files are compressed while lines are written: nothing is lost, whatever happens meanwhile."""

import gzip
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.exporting_records import steady
from verl_otel._internal import rotated_files
from verl_otel.exporting import line_file
from verl_otel.exporting.line_file import LineFile

WRITER = """
import sys, pathlib
from verl_otel.exporting import line_file
from verl_otel.exporting import line_file
line_file.BLOCK_BYTES = line_file.BLOCK_BYTES = 300
file = line_file.LineFile(pathlib.Path(sys.argv[1]), 3000, 40)
number = 0
while True:
    file.write(b"%08d%s\\n" % (number, b"x" * 90))
    number += 1
    if number % 100 == 0:
        print(number, flush=True)
"""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(line_file, "BLOCK_BYTES", 64)


def read_lines(path):
    """Return all lines of a file and its parts, as readers find them."""
    lines = []
    for part in rotated_files.find(path.parent, path.stem):
        with rotated_files.open_lines(part) as file:
            lines += list(file)
    return lines


def names(path):
    return sorted(each.name for each in path.parent.iterdir())


@steady
@given(st.lists(st.integers(0, 250), max_size=80), st.integers(50, 400), st.integers(2, 6))
def test_the_newest_lines_are_kept_without_a_gap(tmp_path_factory, sizes, max_bytes, max_files):
    """Whatever is written, the lines of all parts together are the newest ones, each once; more of them than without compression."""
    path = tmp_path_factory.mktemp("lines") / "f.jsonl"
    file, lines = LineFile(path, max_bytes, max_files), []
    for number, size in enumerate(sizes):
        lines.append(b"%06d" % number + b"x" * size + b"\n")
        file.write(lines[-1])
        assert read_lines(path) == lines[len(lines) - len(read_lines(path)) :]
    file.close()
    kept = sum(map(len, read_lines(path)))
    assert kept >= min(sum(map(len, lines)), max_bytes * (max_files - 1))
    used = sum(each.stat().st_size for each in path.parent.iterdir())
    assert used <= (max_files + 1) * (
        max_bytes + max(map(len, lines), default=0)
    )  # a part is as large as its last line makes it
    assert not list(path.parent.glob("*.part"))


def test_parts_from_the_second_on_are_compressed(tmp_path):
    """The current file and the part before it are not compressed; `gzip` reads the others, which keep mode and time."""
    path = tmp_path / "f.jsonl"
    file = LineFile(path, 1000, 20)
    lines = [b"%04d%s\n" % (number, b"x" * 95) for number in range(49)]
    for line in lines:
        file.write(line)
    file.close()
    assert names(path) == ["f.1.jsonl", "f.2.jsonl.gz", "f.3.jsonl.gz", "f.4.jsonl.gz", "f.jsonl"]
    assert gzip.decompress((tmp_path / "f.4.jsonl.gz").read_bytes()) == b"".join(lines[:10])
    assert stat.S_IMODE((tmp_path / "f.4.jsonl.gz").stat().st_mode) == 0o600
    assert read_lines(path) == lines


def test_a_disk_that_is_full_costs_the_compression_only(tmp_path, monkeypatch, caplog):
    """A part that cannot be compressed stays as it is, nothing unfinished is left, and a later rotation tries again."""
    path = tmp_path / "f.jsonl"
    file = LineFile(path, 1000, 20)
    lines = [b"%04d%s\n" % (number, b"x" * 95) for number in range(88)]
    encode = line_file.encode_block
    full = OSError(28, "No space left on device")
    for number, line in enumerate(lines):

        def fail(*_, **__):
            raise full

        monkeypatch.setattr(line_file, "encode_block", fail if number < 40 else encode)
        file.write(line)
        if number == 39:
            assert names(path) == ["f.1.jsonl", "f.2.jsonl", "f.3.jsonl", "f.jsonl"]
    file.close()
    assert read_lines(path) == lines
    assert [name for name in names(path) if not name.endswith(".gz")] == ["f.1.jsonl", "f.jsonl"]
    assert [record.message for record in caplog.records if "No space left" in record.message]


@pytest.mark.full
def test_a_forked_child_leaves_the_unfinished_file_of_its_parent(tmp_path):
    """A child that closes what it inherited does not touch the file that its parent is compressing."""
    path = tmp_path / "f.jsonl"
    file = LineFile(path, 1000, 20)
    lines = [b"%04d%s\n" % (number, b"x" * 95) for number in range(21)]
    for line in lines:
        file.write(line)
    (unfinished,) = tmp_path.glob("*.part")
    child = os.fork()
    if not child:
        file.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert unfinished.exists()
    for line in lines:
        file.write(line)
    file.close()
    assert read_lines(path) == lines * 2
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.full
@pytest.mark.parametrize("lines", [300, 700, 1500])
def test_a_kill_loses_no_line(tmp_path, lines):
    """A writer that is killed at any time leaves each line once, and one that continues removes what was unfinished."""
    path = tmp_path / "f.jsonl"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    while int(process.stdout.readline()) < lines:
        pass
    time.sleep(0.001 * (lines % 7))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    found = [int(line[:8]) for line in read_lines(path) if len(line) == 99]
    assert found == list(range(found[0], found[0] + len(found)))
    assert len(found) >= lines
    assert any(name.endswith(".gz") for name in names(path))
    file = LineFile(path, 3000, 40)
    for _ in range(100):
        file.write(b"y" * 98 + b"\n")
    file.close()
    assert not list(tmp_path.glob("*.part"))


def test_a_part_that_exists_in_both_forms_is_read_once(tmp_path):
    """After a kill between the two steps of the replacement, the part counts once, and is compressed again later."""
    path = tmp_path / "f.jsonl"
    file = LineFile(path, 1000, 20)
    lines = [b"%04d%s\n" % (number, b"x" * 95) for number in range(31)]
    for line in lines:
        file.write(line)
    file.close()
    (tmp_path / "f.2.jsonl.gz").write_bytes(b"half")
    assert read_lines(path)[-1] == lines[-1]
    (tmp_path / "f.2.jsonl").write_bytes(b"".join(lines[10:20]))
    (tmp_path / "f.3.jsonl").write_bytes(b"".join(lines[:10]))
    assert read_lines(path) == lines
    for line in lines * 3:
        file.write(line)
    file.close()
    assert read_lines(path) == lines * 4
    assert [name for name in names(path) if not name.endswith(".gz")] == ["f.1.jsonl", "f.jsonl"]
