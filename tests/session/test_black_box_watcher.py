# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a watcher says of a run that fails, of processes that go on or get worse, and when it forgets the dead."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_otel import config
from verl_otel.session import black_box as black_box_module
from verl_otel.session import lifecycle
from verl_otel.session.black_box import box, culprits, members, neighbours, run_end, watcher
from verl_otel.session.black_box.neighbours import Death
from verl_otel.session.black_box.post import Post
from verl_otel.session.black_box.processes import Process
from verl_otel.session.black_box.roll import Sight
from verl_otel.session.black_box.scene import ALIVE, DIED, FROZEN
from verl_otel.session.black_box.watcher import Watcher

sys.path.insert(0, str(Path(__file__).parent))
from black_box_scenes import Story, member


class Node:
    """A node with a watcher that looks when it is told to."""

    def __init__(self, folder):
        self.config = config.load({}, run_dir=folder, run_id="r1")
        self.folder = self.config.run_path / members.FOLDER
        self.folder.mkdir(parents=True)
        self.watcher = Watcher(self.config, self.folder, "here", time.time() - 60, Post(self.folder, "here"))

    def write(self, who, pid, beat=-1.0, held=3, **more):
        """Have a process with this id tell of itself, whose last sign of life was ``-beat`` seconds ago."""
        members.write(self.folder, member(who)._replace(process=Process(pid, 1), **more))
        path = self.folder / f"{members.BEAT}{who}"
        path.write_text(f"{held} 7\n")
        os.utime(path, (time.time() + beat,) * 2)

    def look(self, times=1):
        for _ in range(times):
            self.watcher._looked = 0.0
            self.watcher._signature = None
            self.watcher._look()

    def settle(self, story, *findings, **states):
        """Have the watcher settle findings of a told scene."""
        scene = story.scene()
        for who, each in scene.members.items():
            sight = self.watcher._roll.sights.setdefault(who, Sight(each, (0, 0, 0)))
            sight.state = states.get(who.replace("-", "_"), scene.states[who])
        self.watcher._settle(scene, list(findings or culprits.find(scene)))

    def events(self):
        path = self.config.run_path / "events.jsonl"
        found = (
            [json.loads(line) for line in path.read_text("utf-8").rpartition("\n")[0].splitlines()]
            if path.exists()
            else []
        )
        return [(each["kind"], each["detail"]["key"][1]) for each in found]


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node whose deaths are confirmed at once."""
    monkeypatch.setattr(watcher, "CONFIRM", 0.0)
    monkeypatch.setattr(watcher, "GATHER", 0.0)
    return Node(tmp_path)


@pytest.fixture
def explain(monkeypatch):
    """Have a cluster that explains all deaths alike."""

    def begin(death):
        cluster = SimpleNamespace(explain=lambda actor: death, publish=lambda *_: None)
        monkeypatch.setattr(neighbours._Known, "neighbourhood", cluster)

    return begin


@pytest.mark.parametrize(("state", "said"), [(run_end.FAILED, [("crash", "rank-1")]), (run_end.FINISHED, [])])
def test_a_death_that_fails_the_run_is_said_and_one_after_its_end_is_not(node, dead_pid, state, said):
    """The rank died before the trainer failed; the other rank lived on and was killed for that. Said once."""
    node.look()
    node.write("rank-1", dead_pid)
    run_end.mark(node.config, state)
    node.write("rank-2", dead_pid, beat=1.0)
    node.look(3)
    assert node.events() == said


def test_a_death_that_waits_to_be_confirmed_is_said_when_the_run_fails(node, dead_pid, monkeypatch):
    """It was found a moment before the trainer was told."""
    monkeypatch.setattr(watcher, "CONFIRM", 600.0)
    node.write("rank-1", dead_pid)
    node.look(2)
    assert node.events() == []
    run_end.mark(node.config, run_end.FAILED)
    node.look()
    assert node.events() == [("crash", "rank-1")]


@pytest.mark.parametrize(
    ("death", "said"),
    [(None, []), (Death(True, "killed with its job"), []), (Death(False, "gone"), [("crash", "rank-1")])],
)
def test_a_watcher_that_comes_after_the_end_believes_the_cluster_alone(node, dead_pid, explain, death, said):
    """It cannot tell who died first from who was killed for that."""
    explain(death)
    node.write("rank-1", dead_pid, actor="ab")
    run_end.mark(node.config, run_end.FAILED)
    node.look(2)
    assert node.events() == said


def test_a_death_that_somebody_wanted_is_none_although_the_run_fails(node, dead_pid, explain):
    """Ray killed it."""
    explain(Death(True, "killed"))
    node.look()
    node.write("rank-1", dead_pid, actor="ab")
    run_end.mark(node.config, run_end.FAILED)
    node.look(2)
    assert node.events() == []


def test_the_watcher_of_a_process_that_ends_with_the_run_looks_once_more(node, dead_pid):
    """The trainer's process may be the one that watches."""
    node.look()
    node.write("rank-1", dead_pid)
    run_end.mark(node.config, run_end.FAILED)
    node.watcher.start()
    node.watcher.stop(time.monotonic() + 10)
    node.watcher.join(10)
    assert node.events() == [("crash", "rank-1")]


def test_what_failed_has_not_finished(node):
    """The first word of a failure holds until the run begins again."""
    for state, expected in (
        (run_end.FINISHED, run_end.FINISHED),
        (run_end.FAILED, run_end.FAILED),
        (run_end.FINISHED, run_end.FAILED),
    ):
        run_end.mark(node.config, state)
        assert run_end.read(node.folder).state == expected
    run_end.mark(node.config, run_end.RUNNING)
    assert run_end.read(node.folder) is None


@pytest.fixture
def hang():
    """A tool that hangs in an agent loop for which a trainer waits."""
    story = Story(100).process("trainer-0", "trainer").process("agent-0")
    gen = story.open("trainer-0", "verl.phase.gen", 150)
    story.open("agent-0", "execute_tool python", 140, story.open("agent-0", "verl.trajectory", 145, links=[gen]))
    return story


@pytest.mark.parametrize(("state", "text"), [(ALIVE, "goes on"), (FROZEN, "superseded"), (DIED, "superseded")])
def test_only_who_lives_goes_on(node, hang, state, text, caplog):
    """A hang that becomes a freeze or a death is not over."""
    for _ in range(2):
        node.settle(hang)
    (finding,) = culprits.find(hang.scene())
    worse = [] if state == ALIVE else [finding._replace(reason=state)]
    caplog.clear()
    scene = hang.scene()
    node.watcher._roll.sights["agent-0"].state = state
    node.watcher._settle(scene, worse)
    last = (node.config.run_path / "events.jsonl").read_text("utf-8").splitlines()[-1]
    assert json.loads(last)["kind"] == "resolved"
    assert text in json.loads(last)["text"]
    assert any("goes on" in line for line in caplog.messages) == (state == ALIVE)


def test_what_hangs_again_is_said_again_after_a_while_only(node, hang, monkeypatch):
    """Every few seconds the same would fill the file."""
    for _ in range(3):
        node.settle(hang)
        node.settle(hang)
        node.watcher._settle(hang.scene(), [])
    assert node.events() == [("stall", "agent-0"), ("resolved", "agent-0")]
    monkeypatch.setattr(watcher, "REPEAT", 0.0)
    node.settle(hang)
    node.settle(hang)
    assert node.events()[2:] == [("stall", "agent-0")]


def test_the_dead_are_forgotten_once_nobody_waits_for_them(node, dead_pid):
    """As long as the trainer's phase is open it is they who hold it up; what hangs later hangs for another reason."""
    node.write("agent-0", dead_pid)
    story = Story(100).process("trainer-0", "trainer").process("agent-0", state=DIED)
    gen = story.open("trainer-0", "verl.phase.gen", 50)
    story.open("agent-0", "verl.trajectory", 45, links=[gen])
    for _ in range(3):
        node.settle(story)
    assert node.events() == [("crash", "agent-0")]
    assert "agent-0" in node.watcher._roll.sights
    story._rows.remove(gen)
    node.settle(story)
    assert "agent-0" not in node.watcher._roll.sights
    assert not list(node.folder.glob("*agent-0*"))
    node.watcher._settle(Story().scene(), [])
    assert node.events() == [("crash", "agent-0")]


@pytest.mark.parametrize("expected", [True, False])
def test_the_dead_whom_nobody_misses_are_forgotten(node, dead_pid, monkeypatch, explain, expected):
    """Because somebody wanted it, or because they held nothing for a minute."""
    explain(Death(True, "killed") if expected else None)
    node.write("rank-1", dead_pid, held=3 if expected else 0, actor="ab")
    node.look(3)
    if not expected:
        assert "rank-1" in node.watcher._roll.sights
        monkeypatch.setattr(watcher, "FORGET", -1.0)
        node.look()
    assert node.watcher._roll.sights == {}
    assert not list(node.folder.glob("*rank-1*"))
    assert node.events() == []


def test_a_stuck_disk_hides_what_a_process_has_told_before(node, monkeypatch):
    """Its suspects may be over long since."""
    story = Story()
    story.process("agent-0")
    story.open("agent-0", "execute_tool python", 5000)
    told = story.scene().members["agent-0"]
    sight = Sight(told, (0, 0, 0))
    node.watcher._roll.sights["agent-0"] = sight
    assert node.watcher._make_scene(time.monotonic()).suspects
    sight.heard -= 20
    assert not node.watcher._make_scene(time.monotonic()).suspects
    assert not node.watcher._is_suspicious(sight)


def test_an_interpreter_that_ends_asks_nobody(monkeypatch, explain):
    """Python 3.12 starts no threads then."""
    explain(Death(False, "gone"))
    assert neighbours.ask(lambda cluster: cluster.explain("")) is not None

    def fail(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert neighbours.ask(lambda cluster: cluster.explain("")) is None


def test_the_manifest_is_ended_before_the_black_box_and_whatever_becomes_of_that(tmp_path, monkeypatch):
    """What fails there must not leave a run that looks unfinished."""
    monkeypatch.setenv("VERL_OTEL_SWALLOW", "1")
    calls = []

    def fail(config):
        calls.append("black box")
        raise RuntimeError("no thread")

    monkeypatch.setattr(black_box_module, "end_run", fail)
    monkeypatch.setattr(lifecycle.manifest, "end_attempt", lambda path: calls.append("manifest"))
    session = lifecycle.Session(config.load({}, run_dir=tmp_path, run_id="r1", exporters="file"))
    session._began_run = True
    session.end_run()
    assert calls == ["manifest", "black box"]


def test_the_question_is_taken_away_when_the_answer_is_there(start, wait_for, monkeypatch):
    """Who asked must not read a record of before."""
    monkeypatch.setattr(box, "BEAT_SECONDS", 0.1)
    run = start()
    lifecycle.Current.session.open_now()
    (record,) = wait_for(lambda: list(run.folder.glob("black-box/process-*.json")))
    question = record.with_name(record.stem.replace(members.RECORD, members.ASK, 1))
    asked, write = [], members.write
    monkeypatch.setattr(members, "write", lambda *said: (asked.append(question.exists()), write(*said)))
    question.touch()
    wait_for(lambda: not question.exists())
    assert asked[-1:] == [True]


def test_a_folder_without_locks_is_said(start, wait_for, monkeypatch, caplog):
    """Otherwise nobody watches, and nobody knows."""

    def fail(post):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(Post, "take", fail)
    start()
    lifecycle.Current.session.open_now()
    wait_for(lambda: any("stalls and crashes will not be seen: no lock" in line for line in caplog.messages))
