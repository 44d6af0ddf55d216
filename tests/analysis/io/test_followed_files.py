# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are followed while they are rotated, and times that are damaged."""

import time

import pytest

from verl_otel._internal import rotated_files, safe_files
from verl_otel.analysis.io import followed_files
from verl_otel.analysis.io.followed_files import FollowedFiles
from verl_otel.exporting import line_file
from verl_otel.exporting.line_file import LineFile

SECOND = 1_000_000_000
DAMAGED_NS = (1 << 63) - 1


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Read few lines at a time, and give up early a line that does not end."""
    monkeypatch.setattr(followed_files, "CHUNK_BYTES", 256)
    monkeypatch.setattr(safe_files, "MAX_LINE", 1024)


def make_lines(first_ns, count):
    """Return lines of spans that end one second after the other."""
    return b"".join(b'{"endTimeUnixNano":"%d"}\n' % (first_ns + number * SECOND) for number in range(count))


def take_all(followed):
    """Return the content of all unread lines, in the order in which they are returned."""
    data = b""
    while followed.is_behind:
        for path, begin, end in followed.take(1).extents:
            with rotated_files.open_lines(path) as file:
                file.seek(begin)
                data += file.read(end - begin)
    return data


@pytest.mark.parametrize("new_lines", [0, 500])
def test_a_file_that_is_rotated_after_the_look_is_read_after_the_next_one(tmp_path, new_lines):
    """Nothing of it counts as read meanwhile, whether its path is free or another file has it."""
    begin_ns = time.time_ns() - 3600 * SECOND
    old, new = make_lines(begin_ns, 200), make_lines(begin_ns + 200 * SECOND, new_lines)
    path = tmp_path / "traces-x.jsonl"
    path.write_bytes(old)
    followed = FollowedFiles([tmp_path], "traces")
    followed.look()
    path.rename(tmp_path / "traces-x.1.jsonl")
    if new:
        path.write_bytes(new)
    assert take_all(followed) == b""
    assert followed.progress()[0] == 0
    followed.look()
    assert sorted(take_all(followed).splitlines()) == sorted((old + new).splitlines())


@pytest.mark.parametrize("pause", [1, 5, 12, 25, 60])
def test_a_file_is_followed_while_its_parts_are_compressed(tmp_path, monkeypatch, pause):
    """Each line is returned once, however many rotations and compressions are between two looks."""
    monkeypatch.setattr(line_file, "BLOCK_BYTES", 100)
    begin_ns = time.time_ns() - 3600 * SECOND
    file = LineFile(tmp_path / "traces-x.jsonl", 2000, 1000)
    same = b'{"resource":"%s",' % (b"x" * 600)  # all files of a process begin with it
    lines = [same + line[1:] for line in make_lines(begin_ns, 180).splitlines(keepends=True)]
    followed, taken = FollowedFiles([tmp_path], "traces"), b""
    for number, line in enumerate(lines, 1):
        file.write(line)
        if number % pause == 0:
            followed.look()
            taken += take_all(followed)
    followed.look()
    taken += take_all(followed)
    assert sorted(taken.splitlines(keepends=True)) == lines
    assert len(list(tmp_path.glob("*.gz"))) > 10


def test_a_damaged_time_in_the_first_line_does_not_move_the_watermark(tmp_path):
    """Spans that ended before now have not been returned as long as the watermark is before them."""
    now_ns = time.time_ns()
    begin_ns = now_ns - 3600 * SECOND
    (tmp_path / "traces-x.jsonl").write_bytes(make_lines(DAMAGED_NS, 1) + make_lines(begin_ns, 200))
    followed = FollowedFiles([tmp_path], "traces")
    followed.look()
    marks = []
    while followed.is_behind:
        marks.append(followed.take(1).watermark_ns)
    assert begin_ns < marks[-1] < now_ns


def test_a_file_of_one_damaged_line_does_not_move_the_watermark(tmp_path):
    """Its time is no time of the run, neither as the first nor as the last one of a chunk."""
    (tmp_path / "traces-x.jsonl").write_bytes(make_lines(DAMAGED_NS, 1))
    followed = FollowedFiles([tmp_path], "traces")
    followed.look()
    assert followed.take(1).watermark_ns == 0
