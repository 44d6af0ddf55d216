# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is said of a finding, to whom, how often; and what watchers of other nodes add."""

import json
import logging
import sys
import time
from pathlib import Path

import pytest

from verl_otel import config
from verl_otel.session.black_box import culprits, neighbours, report
from verl_otel.session.black_box.report import Reporter

sys.path.insert(0, str(Path(__file__).parent))
from black_box_scenes import Story


class Cluster:
    """A cluster in memory."""

    def __init__(self, notes=()):
        self.notes = {note["place"]: note for note in notes}

    def explain(self, actor):
        return None

    def publish(self, run_id, place, note):
        self.notes[place] = note

    def forget(self, run_id):
        self.notes.clear()

    def read(self, run_id):
        return [note for note in self.notes.values() if note]


@pytest.fixture
def reporter(tmp_path):
    """The reporter of node ``here``."""
    made = config.load({}, run_dir=tmp_path, run_id="r1")
    made.run_path.mkdir(parents=True)
    return Reporter(made, "here")


@pytest.fixture
def join(monkeypatch):
    """Make a cluster the neighbourhood."""

    def begin(cluster):
        monkeypatch.setattr(neighbours._Known, "neighbourhood", cluster)
        return cluster

    return begin


@pytest.fixture
def call():
    """A trainer that waits in a call whose ranks are on another node."""
    story = Story(100).process("trainer-0", "trainer")
    step = story.open("trainer-0", "verl.step", 200)
    story.open("trainer-0", "verl.call update_actor", 150, step, **{"verl.world_size": 2})
    scene = story.scene()
    (finding,) = culprits.find(scene)
    return scene, finding


THEIRS = {
    "text": "STALL rank-9 (pid 7, node2) is frozen for 9 s",
    "culprit": {
        "instance": "rank-9",
        "pid": 7,
        "host": "node2",
        "span": "verl.worker W.update_actor",
        "trace_id": "ab",
        "span_id": "cd",
    },
    "reason": "frozen",
}


def events(reporter):
    return [json.loads(line) for line in (reporter._run_path / "events.jsonl").read_text("utf-8").splitlines()]


def test_the_culprit_of_another_node_is_named_with_who_waits_here(reporter, join, call, caplog):
    """The trainer's node knows who waits, the other one why: one line has both."""
    scene, finding = call
    join(Cluster([{"place": "there", "time": time.time(), "findings": [THEIRS]}]))
    assert not reporter.awaits_neighbours(finding, scene, 0.0)
    reporter.report(scene, finding, None, {})
    (event,) = events(reporter)
    assert event["detail"]["culprit"] == THEIRS["culprit"]
    assert [row["span"] for row in event["detail"]["waiting"]] == ["verl.call update_actor", "verl.step"]
    (line,) = caplog.messages
    assert line.startswith("verl-otel: STALL rank-9 (pid 7, node2) is frozen")
    assert "trainer-0 waits in verl.call update_actor for 150 s" in line


def test_a_report_waits_for_other_nodes_but_not_for_ever(reporter, join, call):
    """Nobody has spoken yet: a few seconds; an old note is no answer; without a cluster at once."""
    scene, finding = call
    assert not reporter.awaits_neighbours(finding, scene, 0.0)
    join(Cluster([{"place": "there", "time": time.time() - 600, "findings": [THEIRS]}]))
    assert reporter.awaits_neighbours(finding, scene, 0.0)
    assert not reporter.awaits_neighbours(finding, scene, report.NEIGHBOURS_SECONDS)


def test_a_note_is_put_while_something_hangs_and_taken_away_after(reporter, join, call):
    """Other nodes read what hangs here, until it is resolved."""
    scene, finding = call
    cluster = join(Cluster())
    reporter.publish()
    assert not cluster.notes
    reporter.report(scene, finding, None, {})
    reporter.publish()
    (told,) = cluster.notes["here"]["findings"]
    assert told["culprit"]["span"] == "verl.call update_actor"
    reporter.resolve(finding, 12.0)
    reporter.publish()
    assert cluster.notes["here"] is None
    assert [event["kind"] for event in events(reporter)] == ["stall", "resolved"]


def test_a_node_that_dies_does_not_fill_the_log(reporter, call, caplog):
    """Many findings at once: all of them in the file, a few lines in the log."""
    scene, finding = call
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            reporter.report(scene, finding, None, {})
    assert len(events(reporter)) == 40
    assert len(caplog.messages) == report.MAX_LINES


def test_a_folder_that_cannot_be_written_costs_the_events_and_no_line(reporter, call, caplog):
    """The line of the log comes all the same, and says once that the file does not."""
    scene, finding = call
    reporter._run_path.rmdir()
    reporter.report(scene, finding, None, {})
    reporter.report(scene, finding, None, {})
    assert len([line for line in caplog.messages if "STALL" in line]) == 2
    assert len([line for line in caplog.messages if "cannot write" in line]) == 1
