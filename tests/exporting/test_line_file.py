# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A file grows by whole lines, is rotated by size, and survives writes that fail part-way."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.exporting_records import steady
from tests.exporting.exporting_files import FullDisk
from verl_otel.exporting.line_file import LineFile


def parts_of(path):
    """Return the file and its rotated ones, the oldest first."""
    rotated = sorted(path.parent.glob("f.*.jsonl"), key=lambda each: -int(each.name.split(".")[1]))
    return [*rotated, *([path] if path.exists() else [])]


def kept_lines(path):
    return [line for part in parts_of(path) for line in part.read_bytes().splitlines(keepends=True)]


def make_lines(sizes):
    return [f"{number:06d}".encode() + b"x" * size + b"\n" for number, size in enumerate(sizes)]


def test_one_file_keeps_the_newest_line(tmp_path):
    """With a single file, the newest line is in it, whatever its size."""
    path = tmp_path / "f.jsonl"
    file, lines = LineFile(path, 20, 1), make_lines([30, 30])
    for line in lines:
        file.write(line)
        assert kept_lines(path)[-1:] == [line]
    file.close()


def test_a_file_that_exists_is_continued(tmp_path):
    """A file that is there already, for example after a second start, grows, and its size counts for rotation."""
    path = tmp_path / "f.jsonl"
    for number in range(4):
        file = LineFile(path, 25, 3)
        file.write(b"%09d\n" % number)
        file.close()
    assert kept_lines(path) == [b"%09d\n" % number for number in range(4)]
    assert [part.stat().st_size for part in parts_of(path)] == [30, 10]


def test_the_folder_appears_with_the_first_line(tmp_path):
    """Neither folder nor file exists before the first line, then both do, and closing in between does no harm."""
    path = tmp_path / "deep" / "er" / "f.jsonl"
    file = LineFile(path, 1000, 2)
    file.close()
    assert not path.parent.exists()
    file.write(b"1\n")
    file.close()
    file.write(b"2\n")
    file.close()
    assert path.read_bytes() == b"1\n2\n"


@steady
@given(st.integers(1, 9))
def test_short_writes_are_continued(tmp_path_factory, piece):
    """A system that takes only a few bytes at a time gets every byte of every line."""
    path = tmp_path_factory.mktemp("lines") / "f.jsonl"
    lines = make_lines([0, 30, 5])
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, piece=piece)
        file = LineFile(path, 1 << 20, 2)
        for line in lines:
            file.write(line)
        file.close()
    assert kept_lines(path) == lines


@steady
@given(st.integers(0, 11))
def test_a_torn_write_breaks_one_line_only(tmp_path_factory, room):
    """A disk that fills up in the middle of a line leaves one broken line; the line after it is whole."""
    path = tmp_path_factory.mktemp("lines") / "f.jsonl"
    first, torn, last = make_lines([5, 5, 5])
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch)
        file = LineFile(path, 1 << 20, 2)
        file.write(first)
        disk.room = room
        with pytest.raises(OSError, match="No space left"):
            file.write(torn)
        disk.room = 1 << 20
        file.write(last)
        file.close()
    kept = [line for line in kept_lines(path) if line != b"\n"]
    assert kept == [first, *([torn[:room] + b"\n"] if room else []), last]


def test_a_line_cut_by_a_kill_stays_alone(tmp_path):
    """A file whose last line was cut by a kill, continued by a process of the same id, loses that line only."""
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"whole":1}\n{"cut')
    file = LineFile(path, 1 << 20, 2)
    file.write(b'{"new":1}\n')
    file.close()
    assert b'{"new":1}\n' in kept_lines(path)


def test_a_rotation_that_fails_is_no_failed_write(tmp_path):
    """When a file cannot be renamed, the lines that were written count as written, and the file goes on growing."""
    path = tmp_path / "f.jsonl"
    (tmp_path / "f.1.jsonl").mkdir()  # a file cannot replace a folder
    file = LineFile(path, 10, 2)
    try:
        file.write(b"0123456789\n")
        file.write(b"more\n")
    finally:
        file.close()
    assert path.read_bytes() == b"0123456789\nmore\n"


def test_a_descriptor_that_was_closed_and_reused_is_not_written_to(tmp_path):
    """Code that closes all descriptors of its process gets the number for a file of its own: the lines go to ours, theirs stays."""
    file, other = LineFile(tmp_path / "lines.jsonl", 1000, 2), tmp_path / "checkpoint"
    file.write(b"1\n")
    number = file._handle
    os.close(number)
    handle = os.open(other, os.O_RDWR | os.O_CREAT)
    assert handle == number
    file.write(b"2\n")
    assert (file.path.read_text(), other.read_text()) == ("1\n2\n", "")
    os.dup2(handle, file._handle)
    file.close()
    os.write(handle, b"theirs")
    os.close(handle)
    assert other.read_text() == "theirs"
