# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel runs --prune``: which runs are deleted, and what never is."""

import json
import os
import shutil
import time

import pytest

from tests.builders import stories
from tests.builders.run_ages import DAY, report_of, set_age
from verl_otel.cli.runs import delete
from verl_otel.session import run_manifest
from verl_otel.system import procfs


def names(runs):
    return sorted(path.name for path in runs.iterdir())


def test_nothing_is_deleted_without_yes(call, make_run, runs):
    """A dry run says what would be deleted, why and how much."""
    make_run("old", 40 * DAY)
    make_run("new", 2 * DAY)
    result = call("runs", "--prune", "--older-than", "30d")
    first, last = result.out.splitlines()
    assert result.code == 0
    assert first.startswith("old  ")
    assert first.endswith("40 d old  would be deleted: older than 30 d")
    assert last.startswith("1 run, ")
    assert last.endswith("KiB would be deleted; --yes deletes them")
    assert names(runs) == ["new", "old"]
    assert call("runs", "--prune", "--older-than", "30d", "--yes").out.splitlines()[-1].endswith("KiB deleted")
    assert names(runs) == ["new"]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (("--keep", "2"), ["a", "b"]),
        (("--keep", "9"), ["a", "b", "c", "d", "e"]),
        (("--older-than", "60h"), ["a", "b"]),
        (("--older-than", "2w"), ["a", "b", "c", "d", "e"]),
        (("--older-than", "1d", "--keep", "3"), ["a", "b", "c"]),
        (("--max-size", "300KiB"), ["a", "b"]),
        (("--max-size", "1GB"), ["a", "b", "c", "d", "e"]),
        (("--max-size", "0", "--keep", "1"), ["a"]),
        (("--max-size", "300KiB", "--older-than", "36h"), ["a"]),
        (("--max-size", "300KiB", "--older-than", "100h"), ["a", "b"]),
    ],
)
def test_what_the_limits_keep(call, make_run, runs, options, kept):
    """The newest, the young ones, or as much as fits; --keep protects from the other two."""
    for days, name in enumerate("abcde", 1):
        make_run(name, days * DAY)
    assert call("runs", "--prune", "--yes", *options).code == 0
    assert names(runs) == kept


def test_a_running_or_recent_run_is_never_deleted(call, make_run, runs, story):
    """They are named with the reason; a run that is older than an hour is deleted."""
    make_run("recent", 3000)
    make_run("past", 4000)
    running = make_run("running", 9 * DAY)
    for path in running.glob("metrics-trainer-*"):
        path.unlink()  # otherwise it has ended
    report_of(running, procfs.find_process(os.getpid()))
    set_age(running, 9 * DAY)
    result = call("runs", "--prune", "--keep", "0", "--yes")
    assert result.code == 0
    assert "kept: written 5" in result.out
    assert "kept: running" in result.out
    assert names(runs) == ["recent", "running"]


def test_a_file_of_any_depth_makes_a_run_recent(call, make_run, runs):
    """A heartbeat, two folders below, is a sign of life."""
    folder = make_run("r1", DAY)
    (folder / "black-box" / "x").mkdir(parents=True)
    (folder / "black-box" / "x" / "beat").write_text("")
    moment = time.time() - DAY
    for path in (folder, folder / "black-box", folder / "black-box" / "x"):
        os.utime(path, (moment, moment))
    assert "kept: written" in call("runs", "--prune", "--keep", "0", "--yes").out
    assert names(runs) == ["r1"]


def test_what_is_no_run_stays(call, make_run, runs):
    """Folders without run.json and traces, and files, are not looked at."""
    make_run("r1", DAY)
    (runs / "targets").mkdir()
    (runs / "targets" / "r1.json").write_text("[]")
    (runs / "data").mkdir()
    (runs / "data" / "metrics-x-y-1.jsonl").write_text("{}\n")
    (runs / "notes.txt").write_text("")
    for path in runs.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    call("runs", "--prune", "--keep", "0", "--yes")
    assert names(runs) == ["data", "notes.txt", "targets"]


def test_links_are_not_followed(call, make_run, runs, tmp_path):
    """A link to a run elsewhere stays, and so does what a run links to."""
    elsewhere = stories.training(tmp_path / "elsewhere").write()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "model.bin").write_text("x")
    set_age(elsewhere, 9 * DAY)
    folder = make_run("r1", 9 * DAY)
    (folder / "checkpoints").symlink_to(precious)
    (folder / "model").symlink_to(precious / "model.bin")
    set_age(folder, 9 * DAY)
    for link in (folder / "checkpoints", folder / "model"):
        os.utime(link, (1_000_000, 1_000_000), follow_symlinks=False)
    (runs / "linked").symlink_to(elsewhere)
    result = call("runs", "--prune", "--keep", "0", "--yes")
    assert "linked" in result.out
    assert "kept: a symbolic link" in result.out
    assert names(runs) == ["linked"]
    assert (elsewhere / "run.json").exists()
    assert (precious / "model.bin").read_text() == "x"


def test_a_run_that_is_continued_meanwhile_stays(make_run):
    """Between the list and its deletion a run may be resumed: it is looked at again."""
    folder = make_run("r1", DAY)
    run_manifest.begin_attempt(folder)
    assert delete(folder).startswith("written ")
    shutil.rmtree(folder)
    assert delete(folder) == "not a run any more"


def test_a_run_that_cannot_be_deleted(call, make_run, runs, monkeypatch):
    """Exit code 1 and the reason; the others are deleted, and the rest of this one is still a run."""
    make_run("a", DAY)
    bad = make_run("b", DAY)
    (bad / "hardware").mkdir()
    set_age(bad, DAY)

    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    result = call("runs", "--prune", "--keep", "0", "--yes")
    assert result.code == 1
    assert f"kept: {bad / 'hardware'}: Permission denied" in result.out
    assert names(runs) == ["b"]
    assert (bad / "run.json").exists()


def test_json_of_a_prune(call, make_run):
    """For scripts: what is deleted and why, what is kept and why."""
    make_run("old", 40 * DAY)
    make_run("new")
    dry, done = (json.loads(call("runs", "--prune", "--keep", "0", "--json", *more).out) for more in ((), ("--yes",)))
    assert [(row["run"], row["deleted"]) for row in dry] == [("new", False), ("old", False)]
    assert [(row["run"], row["deleted"]) for row in done] == [("new", False), ("old", True)]
    assert done[0]["kept"].startswith("written ")
    assert (done[1]["kept"], done[1]["reason"]) == (None, "not one of the newest 0")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--prune",), "give --older-than, --keep or --max-size"),
        (("--prune", "--yes"), "give --older-than, --keep or --max-size"),
        (("--yes",), "belong to --prune"),
        (("--older-than", "3d"), "belong to --prune"),
        (("--prune", "--older-than", "month"), "is no duration: give a number with s, m, h, d or w, e.g. 30d"),
        (("--prune", "--older-than", "30"), "is no duration"),
        (("--prune", "--max-size", "ten"), "is no size: give a number with KiB, MiB, GiB or TiB, e.g. 10GiB"),
        (("--prune", "--keep", "-1"), "give an integer of 0 or more"),
    ],
)
def test_wrong_usage(call, make_run, runs, options, text):
    """Exit code 2, what is allowed, and nothing is deleted."""
    make_run("r1", DAY)
    result = call("runs", *options)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert names(runs) == ["r1"]
