# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Values of a run become series: by name and labels, in the order of time, bounded."""

from itertools import pairwise

import pytest

from tests.builders import stories
from verl_otel.analysis import reader
from verl_otel.analysis.io.otlp_json import PointRecord
from verl_otel.analysis.scalars import Columns, Room, find_rewards, read_steps
from verl_otel.cli.page import data


def points(name, values, labels=(), begin=0):
    """Values at the times 0, 1, 2 and so on."""
    return [PointRecord(name, labels, begin + time, float(value)) for time, value in enumerate(values)]


def test_series_are_told_apart_and_sorted():
    """Each name with each set of labels is a series; its values are in the order of time, wherever they were written."""
    columns = Columns()
    columns.add(points("b", [1, 2], (("k", "x"),)), "trainer-0")
    columns.add(points("b", [3], (("k", "y"),)), "trainer-0")
    columns.add(points("a", [7, 8], begin=5), "trainer-0")
    columns.add(points("a", [1, 2]), "trainer-0")
    found = [(each.name, each.labels, tuple(each.times_ns), tuple(each.values)) for each in columns.series()]
    assert found == [
        ("a", (), (0, 1, 5, 6), (1.0, 2.0, 7.0, 8.0)),
        ("b", (("k", "x"),), (0, 1), (1.0, 2.0)),
        ("b", (("k", "y"),), (0,), (3.0,)),
    ]


def test_other_processes_have_their_name_as_a_label():
    """Values that every rank has are not mixed; those of the trainer are the run's own."""
    columns = Columns()
    for instance in ("trainer-0", "actor-0", "actor-1"):
        columns.add(points("x", [1]), instance)
    assert [each.labels for each in columns.series()] == [(), (("instance", "actor-0"),), (("instance", "actor-1"),)]


def test_series_of_the_same_times_share_them():
    """All scalars of one log carry one time: it is kept once."""
    columns = Columns()
    for name in "ab":
        columns.add(points(name, [1, 2, 3]), "trainer-0")
    first, second = columns.series()
    assert first.times_ns is second.times_ns


def test_a_long_series_is_thinned():
    """Of more values than are kept every second one goes, again and again; the first and the last stay."""
    columns = Columns(Room(1, 0, 0, 50))
    for begin in range(0, 1000, 10):
        columns.add(points("x", range(begin, begin + 10), begin=begin), "trainer-0")
    (series,) = columns.series()
    assert 50 <= len(series.values) <= 101
    assert (series.values[0], series.values[-1]) == (0.0, 999.0)
    assert list(series.times_ns) == sorted(series.times_ns) == list(map(int, series.values))


@pytest.mark.parametrize("steps", [60, 1000])
def test_a_long_gauge_of_an_own_loop_keeps_its_points_of_steps(steps):
    """It has a point where a drain came within the step, and one at its end: the latter stay, of as many steps as there is room for."""
    columns = Columns(Room(2, 0, 0, 50))
    for step in range(1, steps + 1):
        columns.add(points("verl.actor.pg_loss", [step], begin=10 * step - 5), "trainer-0")
        columns.add(points("verl.training.step", [step], begin=10 * step), "trainer-0")
        columns.add(points("verl.actor.pg_loss", [step], begin=10 * step), "trainer-0")
    found = {each.step: each.values["actor/pg_loss"] for each in read_steps(columns.series(), ["actor/pg_loss"])}
    assert all(step == value for step, value in found.items())
    assert len(found) >= 25
    assert max(found) == steps
    gaps = [after - before for before, after in pairwise(sorted(found))]
    assert max(gaps) <= 4 * steps / 50


def test_too_many_series_are_left_out_and_counted():
    """More series than are kept cost their values, which are counted."""
    columns = Columns(Room(2, 1, 1, 100))
    for name in "abc":
        columns.add(points(name, [1, 2]), "trainer-0")
    columns.add(points("d", [1]), "trainer-0")
    assert [each.name for each in columns.series()] == ["a", "b"]
    assert columns.left_out == 3


# -- Thousands of ranks beside the trainer: what it logs is kept, and what the analysis adds up --

NAMES = ("process.cpu.time", "process.memory.usage", "process.thread.count", "verl.worker.calls", "verl.a", "verl.b")


@pytest.fixture(scope="module")
def thousand_ranks(tmp_path_factory):
    """A training of twelve steps with 1,024 ranks of six series each, whose files come before those of the trainer."""
    story = stories.Story(tmp_path_factory.mktemp("runs") / "r1")
    for rank in range(1024):
        worker = story.process("actor_rollout_ref", rank, verl__rank=rank)
        for name in NAMES:
            worker.scalar(name, 1, rank)
        worker.scalar("verl.rollout.tokens", 150, 10, verl__token__type="response")
    trainer = story.process()
    for number in range(1, 13):
        stories.step(trainer, number, 10 * number, 10 * number + 9)
        trainer.scalar("verl.training.step", 10 * number + 9, number)
        trainer.scalar("verl.average_reward", 10 * number + 9, number / 12)
    trainer.scalar("verl.run.state", 130, 2)
    return story.write()


def explain_live(folder):
    """What a viewer sees of a run that was read to its end."""
    live = reader.begin_page([folder])
    live.look()
    while live.is_behind:
        live.read(1 << 30)
    live.finish()
    return live.explain()


@pytest.mark.full
@pytest.mark.parametrize("read", [lambda folder: reader.read([folder])[0], explain_live], ids=["report", "view"])
def test_a_thousand_ranks_do_not_displace_the_trainer(thousand_ranks, read):
    """Its rewards, its state, and its scalars on the page are there; of the ranks as many as there is room for, and the rest is counted."""
    run = read(thousand_ranks)
    assert run.state == "finished"
    assert list(find_rewards(run.series)) == list(range(1, 13))
    shown = [(line["name"], line["labels"]) for line in data.list_scalars(run)]
    assert ("verl.average_reward", {}) in shown
    assert any("more series than are kept" in text for text in run.missing)


@pytest.mark.full
def test_a_thousand_ranks_count_in_sums(thousand_ranks):
    """Tokens of all processes are added up, whatever else the processes have."""
    run = reader.read([thousand_ranks])[0]
    assert sum(one.name == "verl.rollout.tokens" for one in run.series) == 1024


def test_series_of_one_kind_do_not_take_the_room_of_another():
    """Of the trainer, of what the analysis adds up, and of the others each as many as allowed."""
    columns = Columns(Room(2, 2, 2, 100))
    for name in ("process.cpu.time", "verl.rollout.tokens"):
        for rank in range(3):
            columns.add(points(name, [1]), f"agent_loop-{rank}")
    for name in "abc":
        columns.add(points(name, [1]), "trainer-0")
    names = [each.name for each in columns.series()]
    assert names == ["a", "b", *2 * ["process.cpu.time"], *2 * ["verl.rollout.tokens"]]
    assert columns.left_out == 3


def test_the_process_with_the_training_loop_is_the_trainer_whatever_its_role():
    """A main program of one's own is an actor of no known role: its scalars are those of the run, in each attempt."""
    columns = Columns(Room(8, 0, 3, 100))
    for begin, instance in ((0, "actor-17"), (100, "actor-23")):
        columns.add(points("process.cpu.time", [1], begin=begin), instance)
        columns.add(points("verl.run.state", [1], begin=begin), instance)
        for name in ("verl.training.step", "verl.average_reward"):
            columns.add(points(name, [begin + 1, begin + 2], begin=begin), instance)
        columns.add(points("process.cpu.time", [2], begin=begin + 50), instance)
    columns.add(points("process.cpu.time", [9]), "agent_loop-0")
    found = {(each.name, each.labels): (tuple(each.times_ns), tuple(each.values)) for each in columns.series()}
    assert found["verl.average_reward", ()] == ((0, 1, 100, 101), (1.0, 2.0, 101.0, 102.0))
    assert found["process.cpu.time", ()] == ((0, 50, 100, 150), (1.0, 2.0, 1.0, 2.0))
    assert found["process.cpu.time", (("instance", "agent_loop-0"),)] == ((0,), (9.0,))


def test_ranks_that_log_the_same_steps_are_not_mixed():
    """Of the ranks of an own loop one is the run's, as is a trainer beside a loop of another role."""
    columns = Columns()
    for rank in range(2):
        columns.add(points("verl.training.step", [1, 2]), f"process-{rank}")
    assert [each.labels for each in columns.series()] == [(), (("instance", "process-1"),)]
    columns.add(points("verl.training.step", [1, 2]), "trainer-0")
    assert len(columns.series()) == 3
