# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that are read for the live page."""

import shutil

import pytest

from tests.analysis.test_reader import long_training
from tests.builders import stories
from verl_otel.analysis import reader
from verl_otel.cli.demo.command import RECORDED
from verl_otel.cli.view import watching
from verl_otel.cli.view.watching import Catalogue

pytestmark = pytest.mark.full


def test_the_share_that_was_read_is_that_of_the_answer(runs, monkeypatch):
    """An answer that is some seconds old does not claim more because more was read since; when all is read, it is made again at once."""
    monkeypatch.setattr(watching.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(reader.RunReader.read, "__defaults__", (1,))
    monkeypatch.setattr("verl_otel.analysis.io.followed_files.CHUNK_BYTES", 4096)
    folder = long_training(runs / "r1", steps=200).write()
    watcher = watching.Watcher(Catalogue([folder.parent]))
    first, share = watcher.ask("r1")
    assert 0 < share < 1
    live = watcher._runs["r1"].live
    live.read(1)
    assert live.is_behind
    assert watcher.ask("r1") == (first, share)
    while live.is_behind:
        live.read(1 << 30)
    complete, share = watcher.ask("r1")
    assert (len(complete.steps), share) == (200, pytest.approx(1.0))


def test_a_killed_run_that_is_continued_is_read_with_its_attempts(runs, monkeypatch):
    """Its reading had not ended: without the second attempt, the pause would count for the last step of the first."""
    monkeypatch.setattr(watching, "FRESH_SECONDS", 0.0)
    story = long_training(runs / "r1", steps=4)
    story.manifest(attempts=[{"started": stories.T0}])
    watcher = watching.Watcher(Catalogue([story.write().parent]))
    watcher.ask("r1")
    trainer = story.process("trainer")
    stories.step(trainer, 5, 1010, 1019)
    stories.step(trainer, 6, 1020, 1029)
    stories.step(trainer, 7, 1030, 1039)
    story.write()
    story.manifest(attempts=[{"started": stories.T0}, {"started": stories.T0 + 1000}])
    watcher._look()
    live = watcher._runs["r1"].live
    while live.is_behind:
        live.read(1 << 30)
    live.finish()
    steps = live.explain().steps
    assert [(step.number, step.attempt) for step in steps] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 2)]
    assert steps[3].between == 0


def test_a_run_that_a_command_has_read_is_known_at_once(runs, monkeypatch, tmp_path):
    """The page goes on where an earlier command has ended."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(reader.RunReader.read, "__defaults__", (1,))
    folder = shutil.copytree(RECORDED / "slow-tool", runs / "slow-tool")
    found = reader.read([folder], keep_after=0)[0]
    explanation, share = watching.Watcher(watching.Catalogue([runs])).ask("slow-tool")
    assert (explanation.steps[:-1], share) == (found.steps[:-1], 1.0)


def test_a_request_gets_what_was_written_a_second_before_it(runs, monkeypatch):
    """Whenever the files were looked at for others: a viewer is behind by its own turns only."""
    now = 0.0
    monkeypatch.setattr(watching.time, "monotonic", lambda: now)
    story = long_training(runs / "r1", steps=4)
    watcher = watching.Watcher(Catalogue([story.write().parent]))
    watcher.ask("r1")
    stories.step(story.processes[0], 5, 60, 69)
    story.processes[0].span("later", 69, 71.5)
    story.write()
    now = watching.FRESH_SECONDS + 1
    assert [step.number for step in watcher.ask("r1")[0].steps] == [1, 2, 3, 4, 5]


def test_a_run_whose_page_was_closed_is_not_read_again(runs, monkeypatch, tmp_path):
    """What was read of it is kept when others take its place, if reading it took long."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(watching.reader, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(reader.RunReader.read, "__defaults__", (1 << 16,))
    now = 0.0
    monkeypatch.setattr(watching.time, "monotonic", lambda: now)
    names = [f"r{number}" for number in range(watching.MAX_WATCHED + 1)]
    for name in names:
        long_training(runs / name, steps=100).write()
    watcher = watching.Watcher(Catalogue([runs]))
    watcher.ask("r0")
    while watcher._read_once():
        pass
    now += watching.LOOK_SECONDS
    steps = len(watcher.ask("r0")[0].steps)
    for name in names[1:]:
        now += 1
        watcher.ask(name)
    assert watcher.peek("r0") is None
    again, share = watcher.ask("r0")
    assert (len(again.steps), share) == (steps, 1.0)
