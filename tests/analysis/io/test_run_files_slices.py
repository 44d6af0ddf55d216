# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run is cut by time: every line lies in one slice, slices follow each other, and each is small."""

import json
import math
import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.builders import stories
from verl_otel.analysis.io import run_files

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)


def line(time, filler=0):
    """A line that was written at a time; its second span ended later."""
    spans = [{"traceId": "1", "endTimeUnixNano": str(time + late), "name": "x" * filler} for late in (0, 3)]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}, separators=(",", ":")).encode() + b"\n"


def lines_of(piece):
    """The lines of a slice by file."""
    return [(extent.path, found) for extent, _, found in run_files.read_lines(piece.extents, [])]


@pytest.fixture
def small(monkeypatch):
    """Look into blocks of so few bytes that the edges of blocks matter."""
    monkeypatch.setattr(run_files, "BLOCK_BYTES", 500)


FILES = st.lists(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 300)), max_size=20), min_size=1, max_size=4)


@pytest.mark.full
@given(files=FILES, size=st.integers(1, 4000))
@example(files=[[(11, 0)], [(1, 0), (1, 0), (11, 242), (100, 0)]], size=1)  # a number that a block's end cuts in two
@FUZZ
def test_every_line_lies_in_the_slice_of_its_time(small, tmp_path_factory, files, size):
    """Each line is in one slice, that of the time when it was written, whatever the files and the size of a slice."""
    folder = tmp_path_factory.mktemp("run")
    written = {}
    for number, told in enumerate(files):
        path = folder / f"traces-{number}.jsonl"
        written[path] = sorted(told)
        path.write_bytes(b"".join(line(*each) for each in written[path]))
    pieces = run_files.cut(written, size)
    bounds = [piece.begin_ns for piece in pieces] + [pieces[-1].end_ns]
    assert bounds == [0, *(piece.end_ns for piece in pieces)]
    assert bounds == sorted(set(bounds))
    for path, told in written.items():
        found = [text for piece in pieces for where, text in lines_of(piece) if where == path]
        assert found == [line(*each) for each in told]
    for piece in pieces:
        for _, text in lines_of(piece):
            first = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
            assert piece.begin_ns <= int(first["endTimeUnixNano"]) < piece.end_ns


@pytest.mark.full
@given(data=st.lists(st.binary(max_size=900), min_size=1, max_size=3), size=st.integers(1, 400))
@FUZZ
def test_nothing_is_lost_of_files_that_are_none(small, tmp_path_factory, data, size):
    """Of whatever bytes every line is in some slice, once."""
    folder = tmp_path_factory.mktemp("run")
    paths = [folder / f"traces-{number}.jsonl" for number in range(len(data))]
    for path, content in zip(paths, data, strict=True):
        path.write_bytes(content)
    pieces = run_files.cut(paths, size)
    for path, content in zip(paths, data, strict=True):
        assert b"".join(text for piece in pieces for where, text in lines_of(piece) if where == path) == content
    assert b"".join(
        text for part in run_files.split(paths, size) for _, _, text in run_files.read_lines(part, [])
    ) == b"".join(data)


def test_a_long_run_is_cut_into_slices_of_about_one_size(small, tmp_path):
    """Of many lines in several files no slice is much larger than was asked for."""
    for number in range(3):
        told = [line(time * 10 + number, 100) for time in range(1000)]
        (tmp_path / f"traces-{number}.jsonl").write_bytes(b"".join(told))
    pieces = run_files.cut(sorted(tmp_path.iterdir()), 50_000)
    total = sum(piece.size for piece in pieces)
    assert total == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert len(pieces) >= total // 60_000
    assert max(piece.size for piece in pieces) < 60_000


@pytest.mark.parametrize("wrong", [10**18, 1])
@pytest.mark.parametrize("where", [300, *range(495, 505)])
def test_one_damaged_time_does_not_move_what_comes_after_it(small, tmp_path, wrong, where):
    """A line with a time from far away does not make one slice of all lines around it, wherever it stands."""
    times = [wrong if number == where else number * 10 for number in range(1000)]
    path = tmp_path / "traces-x.jsonl"
    path.write_bytes(b"".join(line(time, 100) for time in times))
    assert max(piece.size for piece in run_files.cut([path], 20_000)) < 40_000


def test_a_small_run_is_one_slice_of_all_time(tmp_path):
    """A small run is not cut: nothing lies near an edge."""
    folder = stories.training(tmp_path / "r1").write()
    (piece,) = run_files.cut(run_files.find_files([folder], "traces"))
    assert (piece.begin_ns, piece.end_ns, len(piece.extents)) == (run_files.BEGINNING, run_files.END, 4)


def test_no_file_is_one_slice_of_nothing():
    """A run without any span can be read, too."""
    (piece,) = run_files.cut([])
    assert piece.extents == ()
    assert run_files.split([]) == ()


def test_a_file_that_cannot_be_read_is_left_to_the_reader(tmp_path):
    """A file that vanished stays in the plan, so that its reading says what is wrong."""
    (piece,) = run_files.cut([tmp_path / "traces-gone.jsonl"])
    problems = []
    assert not list(run_files.read_lines(piece.extents, problems))
    assert problems == ["traces-gone.jsonl cannot be read (No such file or directory)"]


@pytest.mark.parametrize(
    ("content", "first", "last"),
    [
        (b"", [], []),
        (b"one\n", [b"one\n"], []),
        (b"one\ntwo\n", [b"one\n"], [b"two\n"]),
        (b"one\n" * 50_000 + b"last", [b"one\n"], [b"last"]),
        (b"one\n" + b"x" * 500_000 + b"\n", [b"one\n"], [b"x" * 500_000 + b"\n"]),
    ],
)
def test_the_first_and_the_last_line_of_a_file_are_found(tmp_path, content, first, last):
    """What a process says of itself stands in any line; its first and last one tell all of it."""
    path = tmp_path / "traces-x.jsonl"
    path.write_bytes(content)
    assert [text for _, _, text in run_files.read_lines(run_files.find_ends(path), [])] == first + last


# -- Work in several processes comes back complete and in order; what fails is said, and who dies is replaced by this process --


@pytest.mark.parametrize("processes", [0, 2])
def test_results_come_in_the_order_of_the_tasks(processes):
    """Every result is there once, in order, with or without other processes."""
    assert list(run_files.map_ordered(math.factorial, range(20), processes)) == [
        math.factorial(number) for number in range(20)
    ]


@pytest.mark.parametrize("processes", [0, 1])
def test_what_fails_is_raised(processes):
    """An error in another process is an error here."""
    with pytest.raises(ValueError, match="negative"):
        list(run_files.map_ordered(math.factorial, [3, -1], processes))


def test_no_more_is_begun_than_can_wait():
    """Tasks are asked for when there is room: what is done and not taken yet stays bounded."""
    begun = []

    def tasks():
        for number in range(100):
            begun.append(number)
            yield number

    found = run_files.map_ordered(math.factorial, tasks(), 1)
    for expected in range(10):
        next(found)
        assert len(begun) <= expected + 1 + 2
    found.close()


def test_a_dead_worker_costs_nothing_but_time():
    """A process that is killed, by the kernel for its memory say, is done without: this one goes on."""
    task = f"(p := __import__('os').getpid()) == {os.getpid()} or __import__('os').kill(p, 9)"
    assert list(run_files.map_ordered(eval, [task] * 5, 1)) == [True] * 5


def test_one_core_needs_no_worker(monkeypatch):
    """With one core, or an unknown number of cores, the numbers are sensible."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert run_files.count_workers() == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert run_files.count_workers() == run_files.MAX_WORKERS
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert run_files.count_workers() == 0
