# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A long run is explained a second time from where it was read before, with the same result, or from its beginning if anything is in doubt."""

import functools
import re

import pytest

from tests.analysis import big_run
from verl_otel.analysis import result_cache, slice_summary, summary
from verl_otel.analysis.io import slices
from verl_otel.exporting import line_file
from verl_otel.exporting.line_file import LineFile

TIME = re.compile(rb'"endTimeUnixNano":"(\d+)"')


@pytest.fixture(scope="module", params=[1, 2], ids=["one host", "two hosts"])
def lines(request, tmp_path_factory):
    """The lines of a run by the name of their file, with their times, in the order of time; and its manifest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(big_run, "LINE_SPANS", 4)
        folder = big_run.write(tmp_path_factory.mktemp("whole"), 60, 16, request.param)
    found = []
    for path in folder.glob("traces-*.jsonl"):
        latest = 0
        for line in path.read_bytes().splitlines(keepends=True):
            latest = max(latest, int(TIME.search(line)[1]))
            found.append((latest, path.name, line))
    return sorted(found), (folder / "run.json").read_text()


@pytest.fixture
def run(lines, tmp_path, monkeypatch):
    """A run that grows: `write` writes it up to a share of its time, `explain` explains it and notes how many bytes were read."""
    monkeypatch.setattr(result_cache, "LEAST_BYTES", 1)
    monkeypatch.setattr(slices, "cut", functools.partial(slices.cut, size=300_000))
    summarise = slice_summary.summarise_spans

    class Run:
        folder = tmp_path / "run"
        cache = tmp_path / "cache"
        files = {}
        done = 0
        read = 0

        def write(self, share):
            self.folder.mkdir(exist_ok=True)
            (self.folder / "run.json").write_text(lines[1])
            end = round(share * len(lines[0]))
            for _, name, line in lines[0][self.done : end]:
                if name not in self.files:
                    self.files[name] = LineFile(self.folder / name, 40_000, 1000)
                self.files[name].write(line)
            self.done = end

        def explain(self, **more):
            self.read = 0
            found = summary.explain([self.folder], processes=0, **{"cache": self.cache, **more})
            return found._replace(recent_steps=())

    made = Run()

    def note(piece, context):
        made.read += piece.size
        return summarise(piece, context)

    monkeypatch.setattr(slice_summary, "summarise_spans", note)
    yield made
    for file in made.files.values():
        file.close()


@pytest.mark.full
@pytest.mark.parametrize("compressed", [False, True])
def test_the_explanation_is_that_of_the_whole_run(run, monkeypatch, compressed):
    """Explained at any time of a run that grows, is rotated and compressed, the result is what reading all of it gives."""
    if compressed:
        monkeypatch.setattr(line_file, "BLOCK_BYTES", 5000)
    for share in (0.3, 0.31, 0.7, 1.0, 1.0):
        run.write(share)
        seen, read = run.explain(), run.read
        assert seen == run.explain(cache=None)
        whole = run.read
    assert read < 0.4 * whole
    assert bool(list(run.folder.glob("*.gz"))) is compressed


@pytest.mark.full
def test_what_was_deleted_since_stays_in_the_explanation(run):
    """Parts that were read and removed by the rotation are still known."""
    run.write(0.6)
    run.explain()
    whole = run.explain(cache=None)
    for path in run.folder.glob("traces-agent_loop*.3.jsonl"):
        path.unlink()
    assert run.explain().counts == whole.counts
    assert run.explain(cache=None).counts.spans < whole.counts.spans


def truncate(run):
    path = max(run.folder.glob("traces-trainer*.jsonl"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:2000])


def add_old_lines(run):
    path = min(run.folder.glob("traces-agent_loop*.jsonl"))
    path.with_name("traces-agent_loop-node-9-9.jsonl").write_bytes(path.read_bytes())


def damage(run):
    (path,) = run.cache.iterdir()
    path.write_bytes(path.read_bytes()[:-9])


def let_others_write(run):
    (path,) = run.cache.iterdir()
    path.chmod(0o666)


def change_the_code(run):
    run.monkeypatch.setattr(result_cache.sys, "version", "another")


@pytest.mark.full
@pytest.mark.parametrize("change", [truncate, add_old_lines, damage, let_others_write, change_the_code])
def test_what_is_in_doubt_is_read_again(run, monkeypatch, change):
    """A checkpoint of other files, of another version, or that another user may have written is not used."""
    run.monkeypatch = monkeypatch
    run.write(0.8)
    run.explain()
    change(run)
    assert run.explain() == run.explain(cache=None)
    whole = run.read
    for path in run.cache.iterdir():
        path.unlink()
    run.explain()
    assert run.read == whole


@pytest.mark.full
def test_other_steps_have_a_checkpoint_of_their_own(run):
    """The detail of a step that is asked for is there, although it was not kept the first time."""
    run.write(0.8)
    run.explain()
    run.explain(steps=frozenset({3}))
    assert len(list(run.cache.iterdir())) == 2


@pytest.mark.full
def test_a_cache_that_cannot_be_written_does_no_harm(run):
    """Without a place for checkpoints the run is read as a whole."""
    run.cache.write_text("a file")
    run.write(0.8)
    assert run.explain() == run.explain(cache=None)


@pytest.mark.full
def test_few_checkpoints_are_kept(run, monkeypatch):
    """The oldest are removed, and none is written for a short run."""
    monkeypatch.setattr(result_cache, "MAX_FILES", 2)
    run.write(0.8)
    for number in range(4):
        run.explain(steps=frozenset({number}))
    assert len(list(run.cache.iterdir())) == 2
    monkeypatch.setattr(result_cache, "LEAST_BYTES", 1 << 40)
    run.explain(steps=frozenset({9}))
    assert len(list(run.cache.iterdir())) == 2
