# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run that was read is not read again: what was kept of it, and what was added since, is what reading all of it gives."""

import functools
import os
import pwd
import random
import re
import shutil
import stat
from pathlib import Path

import pytest

from tests.analysis.test_reader import long_training
from tests.builders import stories
from verl_otel import cli
from verl_otel.analysis import reader, saved_state
from verl_otel.analysis.bounded_steps import Limits
from verl_otel.analysis.io import followed_files
from verl_otel.cli.demo.command import RECORDED, RECORDINGS

NEVER = float("inf")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder in which states are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "verl-otel" / "states"


@pytest.fixture
def run(cache, tmp_path):
    """A run of which a state was kept."""
    folder = shutil.copytree(RECORDED / "slow-tool", tmp_path / "slow-tool")
    reader.read([folder], keep_after=0)
    return folder


@pytest.fixture
def read(monkeypatch):
    """Return how many bytes of lines a call reads."""
    taken = []
    take = followed_files.FollowedFiles.take

    def count(files, budget):
        piece = take(files, budget)
        taken.append(sum(extent.end - extent.begin for extent in piece.extents))
        return piece

    monkeypatch.setattr(followed_files.FollowedFiles, "take", count)

    def ask(folder, **asked):
        taken.clear()
        reader.read([folder], **asked)
        return sum(taken)

    return ask


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_was_kept_is_what_reading_gives(cache, name):
    """In every field."""
    assert reader.read([RECORDED / name], keep_after=0)[0] == reader.read([RECORDED / name])[0]
    assert len(list(cache.iterdir())) == 1


def test_clocks_without_a_bound_are_kept(cache, tmp_path, story, read):
    """JSON has no infinity: the uncertainty of the clock of a host that nothing relates to another one."""
    trainer, worker = story.process(), story.process("actor", host="node-2")
    trainer.span("verl.step", 0, 10, verl__step__number=1)
    worker.span("verl.worker.update", 2, 3)
    run = story.write()
    first = reader.read([run], keep_after=0)[0]
    assert any("the offset of 1 host (node-2) from the trainer's is not known" in problem for problem in first.problems)
    assert any(uncertainty == float("inf") for _, _, uncertainty in first.offsets)
    assert read(run, keep_after=0) == 0
    assert reader.read([run])[0] == first


def grow(source, target, seconds):
    """Write what a run had written after some seconds; of the next line of each file the first half."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        lines = path.read_bytes().splitlines(keepends=True)
        times = [re.search(rb'"(?:endT|t)imeUnixNano":"(\d+)"', line) for line in lines]
        count = sum(time is None or int(time[1]) <= stories.at(seconds) for time in times)
        half = lines[count][: len(lines[count]) // 2] if count < len(lines) else b""
        (target / path.name).write_bytes(b"".join(lines[:count]) + half)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_has_grown_is_what_reading_all_of_it_gives(cache, tmp_path, monkeypatch, seed):
    """Wherever it was read up to, in the middle of a line, too; with open spans, two attempts and rotated files."""
    monkeypatch.setattr(followed_files, "CHUNK_BYTES", 4096)
    times = sorted(random.Random(seed).uniform(0, 1150) for _ in range(3))
    story = long_training(tmp_path / "source", steps=40)
    story.manifest(attempts=[{"started": stories.T0}, {"started": stories.T0 + 600}])
    trainer, agent = story.process("trainer", pid=77), story.process("agent_loop", pid=78)
    for number in range(38, 45):
        begin = 700.0 + 10 * number
        member = stories.trajectory(agent, begin, begin + 3, uid=f"v{number}", step=number)
        stories.step(trainer, number, begin, begin + 9, [("gen", begin, begin + 3)], [member])
    trainer.still_open("verl.step", 1141, 1145, verl__step__number=45)
    source = story.write()
    for seconds in times:
        grow(source, tmp_path / "r1", seconds)
        reader.read([tmp_path / "r1"], keep_after=0)
    for path in list((tmp_path / "r1").glob("traces-*.jsonl")):
        path.rename(path.with_suffix(".1.jsonl"))
        path.write_bytes((source / path.name).read_bytes()[path.with_suffix(".1.jsonl").stat().st_size :])
    for path in (tmp_path / "r1").glob("metrics-*"):
        path.write_bytes((source / path.name).read_bytes())
    grown = reader.read([tmp_path / "r1"], keep_after=NEVER)[0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    whole = reader.read([tmp_path / "r1"], keep_after=NEVER)[0]
    assert len(whole.steps) > 40
    assert grown == whole


def test_a_run_that_has_not_changed_is_not_read_again(run, read, cache):
    """Nor for the detail of one of its steps. Only its user can read what was kept."""
    assert read(run) == 0
    assert read(run, steps=frozenset({4})) == 0
    (path,) = cache.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("packed", [1 << 20, 0])
def test_the_detail_of_each_step_of_a_long_run_is_what_reading_all_of_it_gives(
    cache, tmp_path, monkeypatch, read, packed
):
    """It is kept beside the summary, up to a limit; a step beyond this is read again."""
    folder = long_training(tmp_path / "r1", steps=20).write()
    whole = reader.read([folder], keep_after=NEVER)[0]
    limits = Limits(detailed=6, slowest=2, packed=packed)
    monkeypatch.setattr(reader, "begin", functools.partial(reader.begin, limits=limits))
    short = reader.read([folder], keep_after=0)[0]
    dropped = [step.number for step in short.steps if not step.path]
    assert len(dropped) > 10
    for number in (3, *dropped[::4]):
        found = reader.read([folder], steps=frozenset({number}), keep_after=NEVER)[0]
        assert found._replace(steps=()) == whole._replace(steps=())
        assert [step for step in found.steps if step.number == number] == [whole.steps[number - 1]]
        assert len([step for step in found.steps if not step.path]) >= len(dropped) - 1
    assert bool(read(folder, steps=frozenset(dropped), keep_after=NEVER)) == (not packed)


def test_a_copy_that_replaces_a_file_is_known(run, read):
    """As `collect` and rsync replace files of other nodes by longer ones."""
    for path in run.iterdir():
        shutil.copy2(path, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
    assert read(run) == 0


def remove(run):
    next(run.glob("traces-trainer*")).unlink()


def replace(run):
    for path in run.iterdir():
        path.unlink()
    for path in (RECORDED / "slower-tools").iterdir():
        shutil.copy(path, run)


@pytest.mark.parametrize("change", [remove, replace])
def test_a_run_that_lost_what_was_read_is_read_again(run, read, change):
    """Or that is another one at the same place."""
    change(run)
    assert read(run) > 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"steps": 1}', b"[" * 100_000])
def test_a_damaged_state_is_none(run, read, cache, content):
    """Whatever stands in the file."""
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert read(run) > 0


def test_another_analysis_reads_again(run, read, monkeypatch):
    """What an older version found may be wrong."""
    monkeypatch.setattr(saved_state, "__version__", "0.0.1")
    saved_state.sign_code.cache_clear()
    assert read(run) > 0
    saved_state.sign_code.cache_clear()


def test_code_that_python_compiles_meanwhile_does_not_count(run, read):
    """A command imports modules that the one before did not need."""
    compiled = Path(saved_state.__file__).parent / "__pycache__" / f"of_a_test_{os.getpid()}.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.touch()
    saved_state.sign_code.cache_clear()
    try:
        assert read(run) == 0
    finally:
        compiled.unlink()


def test_what_was_read_at_once_is_not_kept(cache):
    """It is read again as fast."""
    reader.read([RECORDED / "healthy"], keep_after=NEVER)
    assert not cache.exists()


def test_the_oldest_states_are_removed(cache, tmp_path, monkeypatch):
    """At most `MAX_STATES` are kept."""
    monkeypatch.setattr(saved_state, "MAX_STATES", 2)
    for number in range(3):
        folder = shutil.copytree(RECORDED / "healthy", tmp_path / f"run-{number}")
        reader.read([folder], keep_after=0)
    assert len(list(cache.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_no_error(run, read, monkeypatch, tmp_path):
    """The answer comes from the files of the run."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert read(run, keep_after=0) > 0


def test_a_user_without_a_home_folder_keeps_it_in_the_temporary_one(run, read, monkeypatch, tmp_path):
    """As the random user of a container, who has no entry in the password file."""

    def no_entry(_number):
        raise KeyError

    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert read(run, keep_after=0) > 0
    assert read(run, keep_after=0) == 0


def test_a_run_that_is_deleted_leaves_nothing(cache, tmp_path):
    """Its state is derived from it."""
    run = shutil.copytree(RECORDED / "slow-tool", tmp_path / "runs" / "slow-tool")
    reader.read([run], keep_after=0)
    for path in (*run.iterdir(), run):
        os.utime(path, (0, 0))
    assert cli.main(["runs", str(run.parent), "--prune", "--keep", "0", "--yes"]) == 0
    assert not run.exists()
    assert not list(cache.iterdir())
