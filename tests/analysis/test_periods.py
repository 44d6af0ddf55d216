# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The spans of a period are those of the whole run that lie in it, in the same order; few other lines are read."""

import random

import pytest

from tests.analysis.test_reader import long_training
from tests.analysis.test_summary import long_story
from tests.builders import stories
from tests.builders.compressed_run import compress
from verl_otel._internal import rotated_files
from verl_otel.analysis import Run, reader
from verl_otel.analysis.io import followed_files, run_files
from verl_otel.cli.demo.command import RECORDED, RECORDINGS


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """A run of seconds is read in as many pieces as one of hours."""
    monkeypatch.setattr(followed_files, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(reader, "PIECE_BYTES", 20_000)


def resumed(folder):
    """A run of two attempts, in parts of files, with spans that were written long after their end, and half a line."""
    story = long_training(folder, steps=20)
    story.manifest(attempts=[{"started": stories.T0}, {"started": stories.T0 + 300}])
    trainer, agent = story.process("trainer", pid=77), story.process("agent_loop", pid=78)
    for number in range(18, 30):
        begin = 150.0 + 10 * number
        member = stories.trajectory(agent, begin - 25, begin + 3, uid=f"v{number}", step=number)
        stories.step(trainer, number, begin, begin + 9, [("gen", begin, begin + 3)], [member])
    for process in story.processes:
        process.spans.append(process.spans.pop(len(process.spans) // 3))
    story.write()
    for path in list(folder.glob("traces-*")):
        lines = path.read_bytes().splitlines(keepends=True)
        path.with_suffix(".1.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
        path.write_bytes(b"".join(lines[len(lines) // 2 :]) + lines[0][:40])
    return folder


def two_hosts(folder):
    """The clock of the second host is 40 seconds ahead."""
    return long_story(folder, hosts=("node-1", "node-2"), shift=40.0)


def compressed(folder):
    """Parts of 20 kB, of which all but the newest two of each file are compressed."""
    with pytest.MonkeyPatch.context() as patch:
        return compress(long_story(folder.with_name("plain")), folder, patch, 20_000, 5_000)


def count_lines(folder):
    """Whole lines; the builder writes one span a line."""
    count = 0
    for path in rotated_files.find(folder, "traces-"):
        with rotated_files.open_lines(path) as file:
            count += sum(line.rstrip()[-1:] == b"}" for line in file)
    return count


def list_ids(spans):
    return [(process.label, span.span_id, span.start_ns, span.end_ns) for process, span in spans]


@pytest.mark.parametrize("make", [resumed, two_hosts, compressed])
def test_the_spans_of_a_period(tmp_path, make):
    """Whatever the period is."""
    folder = make(tmp_path / "r1")
    run = Run.open(folder)
    whole = list(run.spans())
    assert len(whole) == count_lines(folder)
    chance = random.Random(7)
    limits = run.explanation.start_ns, run.explanation.end_ns
    periods = [(step.start_ns, step.end_ns) for step in run.steps()]
    periods += [sorted((chance.randrange(*limits), chance.randrange(*limits))) for _ in range(10)]
    for begin, end in periods:
        expected = [one for one in whole if one[1].end_ns >= begin and one[1].start_ns < end]
        assert list_ids(run.spans(begin, end)) == list_ids(expected)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_spans_of_a_period_of_a_recorded_run(name):
    run = Run.open(RECORDED / name)
    whole = list(run.spans())
    for step in run.steps():
        expected = [one for one in whole if one[1].end_ns >= step.start_ns and one[1].start_ns < step.end_ns]
        assert list_ids(run.spans(step.start_ns, step.end_ns)) == list_ids(expected)


def test_files_are_found_again_after_they_were_rotated(tmp_path):
    """While a run goes on they get other names."""
    folder = long_training(tmp_path / "r1", steps=40).write()
    run = Run.open(folder)
    step = run.steps()[20]
    expected = list_ids(run.spans(step.start_ns, step.end_ns))
    for path in list(folder.glob("traces-*")):
        path.rename(path.with_suffix(".1.jsonl"))
        path.write_bytes(b'{"resourceSpans": []}\n')
    assert list_ids(run.spans(step.start_ns, step.end_ns)) == expected


def test_few_other_lines_are_read(tmp_path, monkeypatch):
    """Also when there are more parts than are kept, so that some are joined."""
    folder = long_training(tmp_path / "r1", steps=100).write()
    taken = []
    read = run_files.read_lines

    def note(*arguments):
        for line in read(*arguments):
            taken.append(line)
            yield line

    monkeypatch.setattr(run_files, "read_lines", note)

    def count(most):
        monkeypatch.setattr(followed_files, "MAX_PARTS", most)
        run = Run.open(folder)
        step = run.steps()[50]
        taken.clear()
        return sorted(list_ids(run.spans(step.start_ns, step.end_ns))), len(taken)

    (fine, lines_of_many), (coarse, lines_of_few) = count(50_000), count(40)
    lines = sum(len(path.read_bytes().splitlines()) for path in folder.glob("traces-*"))
    assert fine == coarse
    assert len(fine) <= lines_of_many < lines_of_few < lines / 3
