# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The roll of a node: who counts, who is forgotten, who is silent."""

import os
import sys
import time
from pathlib import Path

import pytest

from verl_otel.recording.progress import Peers
from verl_otel.session.black_box import members, processes, roll
from verl_otel.session.black_box.processes import Process
from verl_otel.session.black_box.roll import Roll
from verl_otel.session.black_box.scene import ALIVE, DIED

sys.path.insert(0, str(Path(__file__).parent))
from black_box_scenes import member


@pytest.fixture
def folder(tmp_path):
    """The folder of the black box of a run."""
    made = tmp_path / members.FOLDER
    made.mkdir()
    return made


def write(folder, who, process=None, beat=None, **more):
    """A process that has told of itself: this one, unless another is given."""
    made = member(who)._replace(process=process or processes.find(os.getpid()), **more)
    members.write(folder, made)
    path = folder / f"{members.BEAT}{who}"
    path.write_bytes(b"       3                7\n")
    if beat is not None:
        os.utime(path, (beat, beat))
    return made


def call(folder, since=None):
    made = Roll(folder.parent, "here", time.time() - 1 if since is None else since)
    made.refresh()
    return made


def test_what_is_written_is_read(folder):
    """A record survives the way through its file, whatever characters are in the name of its host."""
    made = write(folder, "agent_loop-node.example.org-17")
    assert call(folder).sights["agent_loop-node.example.org-17"].member == made


def test_who_died_in_an_earlier_attempt_is_forgotten(folder, dead_pid):
    """It is no crash of this attempt, and its files go."""
    write(folder, "old", Process(dead_pid, 1), beat=time.time() - 3600)
    assert not call(folder).sights
    assert not list(folder.iterdir())


def test_who_died_in_this_attempt_before_the_watch_was_taken_is_a_death(folder, dead_pid):
    """A watcher that takes over finds those that died with the one before."""
    write(folder, "young", Process(dead_pid, 1))
    found = call(folder).sights["young"]
    assert (found.state, found.held) == (DIED, 3)


def test_a_process_id_that_was_given_to_somebody_else_is_a_death(folder):
    """This process has the id, but not the start."""
    mine = processes.find(os.getpid())
    write(folder, "reused", mine._replace(start=mine.start - 1))
    assert call(folder).sights["reused"].state == DIED


def test_processes_of_other_nodes_and_damaged_files_are_passed_over(folder):
    """A shared folder, and a file that is no record."""
    write(folder, "far", place="there")
    (folder / "process-half.json").write_text('{"who": "half"')
    assert not call(folder).sights


def test_who_says_goodbye_is_not_missed(folder):
    """Its record is gone, and so is it."""
    write(folder, "one")
    made = call(folder)
    assert made.sights["one"].state == ALIVE
    members.remove(folder, "one")
    made.refresh()
    assert not made.sights


def test_silence_is_measured_since_the_last_sign_of_life(folder):
    """Also by a watcher that has just come; forgiven when the watcher itself was away."""
    write(folder, "quiet", beat=time.time() - 100)
    made = call(folder, since=0)
    assert made.sights["quiet"].silent >= 99
    assert made.sights["quiet"].state == "frozen"
    made.forgive()
    made.refresh()
    assert made.sights["quiet"].state == ALIVE
    os.utime(folder / f"{members.BEAT}quiet")
    made.refresh()
    assert made.sights["quiet"].silent < 10


def test_memory_is_kept_for_ten_minutes(folder, monkeypatch):
    """A ring of bytes, whose oldest values go."""
    monkeypatch.setattr(roll, "MEMORY_SECONDS", 0)
    write(folder, "one")
    made = call(folder)
    for _ in range(2 * roll.MEMORY_LENGTH):
        made.refresh()
    memory = made.sights["one"].memory
    assert len(memory) == roll.MEMORY_LENGTH == 10 * 60 / 5
    assert memory[-1][1] > 1 << 20


def test_a_process_whose_disk_does_not_answer_is_alive(folder, monkeypatch):
    """Its thread waits in the kernel: not frozen, and doubtful only for a while. Without that it is frozen."""
    monkeypatch.setattr(processes, "waits_for_device", lambda process, thread: thread == 17)
    write(folder, "slow", beat=time.time() - 20, drain=17)
    write(folder, "slower", beat=time.time() - 100, drain=17)
    write(folder, "quiet", beat=time.time() - 20, drain=18)
    found = call(folder, since=0).sights
    assert {who: (each.state, each.is_stuck, each.is_doubtful) for who, each in found.items()} == {
        "slow": (ALIVE, True, True), "slower": (ALIVE, True, False), "quiet": ("frozen", False, False),
    }  # fmt: skip


def test_a_forked_child_that_died_is_forgotten(folder, dead_pid):
    """Its parent may have wanted it; its record and its open spans go."""
    write(folder, "child", Process(dead_pid, 1), child=True, peers={"verl.reward": Peers(2, (3.0, 1.0))})
    opened = folder.parent / "open-child.jsonl"
    opened.touch()
    made = call(folder)
    assert not made.sights
    assert made.left == {"verl.reward": Peers(2, (3.0, 1.0))}
    assert not opened.exists()
    assert not list(folder.iterdir())
