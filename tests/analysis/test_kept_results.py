# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run that has not changed is not read again, and what was kept of it is what reading it gives."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from verl_otel import cli
from verl_otel.analysis import kept_results, summary
from verl_otel.cli.demo.command import RECORDED, RECORDINGS

WITHOUT_OPEN_SPANS = [name for name in RECORDINGS if name != "crash"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder in which results are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "verl-otel" / "results"


@pytest.fixture
def run(cache, tmp_path):
    """A run whose result was kept."""
    folder = shutil.copytree(RECORDED / "slow-tool", tmp_path / "slow-tool")
    summary.explain([folder], keep_after=0)
    return folder


@pytest.fixture
def is_read(monkeypatch):
    """Whether a call reads the files of a run."""
    read = []
    explain = summary._explain
    monkeypatch.setattr(summary, "_explain", lambda *values: read.append(values) or explain(*values))

    def ask(folder, **asked):
        read.clear()
        summary.explain([folder], **asked)
        return bool(read)

    return ask


@pytest.mark.parametrize("name", WITHOUT_OPEN_SPANS)
def test_what_was_kept_is_what_reading_gives(cache, name):
    """In every field."""
    run = summary.explain([RECORDED / name], keep_after=0)
    kept = kept_results.load([RECORDED / name], None)
    for field in run._fields:
        if field != "series":
            assert getattr(kept, field) == getattr(run, field), field
    for one, other in zip(kept.series, run.series, strict=True):
        assert (one.name, one.labels, one.times_ns) == (other.name, other.labels, other.times_ns)
        assert one.values == pytest.approx(other.values, rel=0, abs=0, nan_ok=True)


def test_a_run_that_has_not_changed_is_not_read_again(run, is_read, cache):
    """Nor for the detail of one of its steps. Only its user can read what was kept."""
    assert not is_read(run)
    assert not is_read(run, steps=frozenset({4}))
    (path,) = cache.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_run_that_has_changed_is_read_again(run, is_read):
    """A line more in one file is enough."""
    with (run / "events.jsonl").open("a") as file:
        file.write("\n")
    assert is_read(run)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"steps": 1}', b"[" * 100_000])
def test_a_damaged_result_is_found_again(run, is_read, cache, content):
    """Whatever stands in the file."""
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert is_read(run)


def test_another_analysis_finds_again(run, is_read, monkeypatch):
    """What an older version found may be wrong."""
    monkeypatch.setattr(kept_results, "__version__", "0.0.1")
    assert is_read(run)


def test_code_that_python_compiles_meanwhile_does_not_count(run, is_read):
    """A command imports modules that the one before did not need."""
    compiled = Path(kept_results.__file__).parent / "__pycache__" / f"of_a_test_{os.getpid()}.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.touch()
    try:
        assert not is_read(run)
    finally:
        compiled.unlink()


def test_a_run_with_open_spans_is_not_kept(cache):
    """What it has open may go on."""
    summary.explain([RECORDED / "crash"], keep_after=0)
    assert not cache.exists() or not list(cache.iterdir())


def test_what_was_found_at_once_is_not_kept(cache):
    """It is found again as fast."""
    summary.explain([RECORDED / "healthy"])
    assert not cache.exists()


def test_the_oldest_results_are_removed(cache, tmp_path, monkeypatch):
    """At most `MAX_RESULTS` are kept."""
    monkeypatch.setattr(kept_results, "MAX_RESULTS", 2)
    for number in range(3):
        folder = shutil.copytree(RECORDED / "healthy", tmp_path / f"run-{number}")
        summary.explain([folder], keep_after=0)
    assert len(list(cache.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_no_error(run, cache, is_read, monkeypatch, tmp_path):
    """The answer comes from the files of the run."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert is_read(run, keep_after=0)


def test_a_run_that_is_deleted_leaves_nothing(cache, tmp_path):
    """Its result is derived from it."""
    run = shutil.copytree(RECORDED / "slow-tool", tmp_path / "runs" / "slow-tool")
    summary.explain([run], keep_after=0)
    for path in (*run.iterdir(), run):
        os.utime(path, (0, 0))
    assert cli.main(["runs", str(run.parent), "--prune", "--keep", "0", "--yes"]) == 0
    assert not run.exists()
    assert not list(cache.iterdir())
