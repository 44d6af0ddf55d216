# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The best checkpoint: which of those that verl saves is kept, over attempts and runs, and what is never deleted."""

import json
import os
import shutil

import pytest

from verl_otel.guards.decisions import BestMetric
from verl_otel.integrations.verl import best_checkpoint, training

ACC = BestMetric("acc")


@pytest.fixture
def folder(tmp_path):
    """The checkpoint folder of a run."""
    training.begin()
    yield tmp_path
    training.begin()


def save(folder, step, *, completed=True, text=""):
    """Save a checkpoint as verl does."""
    shutil.rmtree(folder / f"global_step_{step}", ignore_errors=True)
    (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
    (folder / f"global_step_{step}" / "actor" / "model.pt").write_text(text or f"weights {step}")
    if completed:
        (folder / best_checkpoint.TRACKER).write_text(str(step))


def kept(folder):
    return {path.name: (path / "actor" / "model.pt").read_text() for path in (folder / "best").glob("global_step_*")}


def follow(folder, step, value, metric=ACC):
    best_checkpoint.follow(folder, metric, step, value)
    best_checkpoint.wait(60)


def values(folder):
    return json.loads((folder / "best" / "value.json").read_text())


def test_the_best_is_kept_when_verl_deletes_its_own(folder):
    save(folder, 2)
    follow(folder, 2, 0.5)
    assert kept(folder) == {"global_step_2": "weights 2"}
    first = folder / "global_step_2" / "actor" / "model.pt"
    second = folder / "best" / "global_step_2" / "actor" / "model.pt"
    assert first.samefile(second), "it takes no space of its own"
    shutil.rmtree(folder / "global_step_2")
    save(folder, 4)
    follow(folder, 4, 0.4)
    assert kept(folder) == {"global_step_2": "weights 2"}
    save(folder, 6)
    follow(folder, 6, 0.7)
    assert kept(folder) == {"global_step_6": "weights 6"}
    assert values(folder) == {"max:acc": {"step": 6, "value": 0.7}}
    assert (folder / best_checkpoint.TRACKER).read_text() == "6", "what verl resumes from is not changed"


def test_a_better_step_that_was_not_saved_does_not_hold_the_place_of_one_that_is(folder):
    """The best of those that verl saves: 0.8 at step 20, whatever step 15 had."""
    save(folder, 10)
    follow(folder, 10, 0.5)
    follow(folder, 15, 0.9)
    assert kept(folder) == {"global_step_10": "weights 10"}
    save(folder, 20)
    follow(folder, 20, 0.8)
    assert kept(folder) == {"global_step_20": "weights 20"}


def test_an_asynchronous_save_is_waited_for(folder):
    save(folder, 2, completed=False)
    follow(folder, 2, 0.5)
    assert not (folder / "best").exists()
    (folder / best_checkpoint.TRACKER).write_text("2")
    follow(folder, 3, 0.9)
    assert kept(folder) == {"global_step_2": "weights 2"}


def test_of_several_that_are_completed_together_the_best_is_kept(folder):
    for step, value in ((2, 0.5), (4, 0.9), (6, 0.7)):
        save(folder, step, completed=False)
        follow(folder, step, value)
    (folder / best_checkpoint.TRACKER).write_text("6")
    follow(folder, 7, None)
    assert kept(folder) == {"global_step_4": "weights 4"}


@pytest.mark.parametrize(("text", "first", "worse", "better"), [("acc", 0.74, 0.6, 0.8), ("min:kl", 0.1, 0.2, 0.05)])
def test_a_run_that_goes_on_compares_with_what_was_kept(folder, caplog, text, first, worse, better):
    """The same holds for a new run in the same folder."""
    metric = BestMetric(text)
    save(folder, 280)
    follow(folder, 280, first, metric)
    shutil.rmtree(folder / "global_step_280")
    training.begin()
    save(folder, 310)
    follow(folder, 310, worse, metric)
    assert kept(folder) == {"global_step_280": "weights 280"}
    assert f"{metric.name} {first} at step 280" in caplog.text
    save(folder, 320)
    follow(folder, 320, better, metric)
    assert kept(folder) == {"global_step_320": "weights 320"}


@pytest.mark.parametrize("other", ["score", "min:acc"])
def test_the_best_by_another_scalar_or_direction_stays(folder, caplog, other):
    save(folder, 2)
    follow(folder, 2, 0.5)
    training.begin()
    for step, value in ((4, 0.3), (6, 0.4), (8, 0.2)):
        save(folder, step)
        follow(folder, step, value, BestMetric(other))
    (newest,) = set(kept(folder)) - {"global_step_2"}
    assert "not compared" in caplog.text
    assert "global_step_2" in caplog.text
    assert values(folder)["max:acc"] == {"step": 2, "value": 0.5}
    assert values(folder)[BestMetric(other).name]["step"] == int(newest.rpartition("_")[2])


@pytest.mark.parametrize("text", [None, "", "[]", '{"max:acc": 1}', '{"max:acc": {"step": "2", "value": NaN}}'])
def test_what_has_no_readable_value_is_never_deleted(folder, swallow, text):
    """As a folder of a release that wrote no values, or a damaged file."""
    save(folder, 2)
    follow(folder, 2, 0.5)
    path = folder / "best" / "value.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    training.begin()
    for step, value in ((4, 0.3), (6, 0.4)):
        save(folder, step)
        follow(folder, step, value)
    assert set(kept(folder)) == {"global_step_2", "global_step_6"}


def test_a_value_whose_checkpoint_was_deleted_does_not_count(folder):
    save(folder, 2)
    follow(folder, 2, 0.9)
    shutil.rmtree(folder / "best" / "global_step_2")
    training.begin()
    save(folder, 4)
    follow(folder, 4, 0.1)
    assert kept(folder) == {"global_step_4": "weights 4"}


def test_a_step_that_is_trained_again_and_better_replaces_the_first_one(folder):
    save(folder, 2)
    follow(folder, 2, 0.5)
    training.begin()
    save(folder, 2, text="weights of the second attempt")
    follow(folder, 2, 0.6)
    assert kept(folder) == {"global_step_2": "weights of the second attempt"}


def test_a_folder_that_cannot_be_written_is_one_line(folder, swallow, caplog, monkeypatch):
    save(folder, 2)

    def refuse(*_args):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for step in (2, 3):
        follow(folder, step, 0.5)
    assert caplog.text.count("the best checkpoint cannot be kept") == 1


def test_what_waits_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(best_checkpoint, "MAX_WAITING", 20)
    for step in range(1, 100):
        follow(folder, step, float(step))
    assert len(training.current.undecided) <= best_checkpoint.MAX_WAITING
