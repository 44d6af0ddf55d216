# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The process table of a node: which processes are listed or removed, and their states."""

import os
import time
from types import SimpleNamespace

import pytest

from tests.watchdog.snapshots import make_report
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.system import procfs
from verl_otel.system.procfs import Process
from verl_otel.watchdog import cluster_backend, process_pauses, process_reports, process_table
from verl_otel.watchdog.cluster_backend import ActorProcess
from verl_otel.watchdog.overdue import ALIVE, DIED
from verl_otel.watchdog.process_table import ProcessTable


@pytest.fixture
def folder(tmp_path):
    """The folder of the watchdog in a run."""
    path = tmp_path / process_reports.FOLDER
    path.mkdir()
    return path


def write_process(folder, process_name, process=None, heartbeat=None, **fields):
    """Write the report of a process: this one, unless another is given."""
    report = make_report(process_name)._replace(process=process or procfs.find_process(os.getpid()), **fields)
    process_reports.write(folder, report)
    path = folder / f"{process_reports.HEARTBEAT_PREFIX}{process_name}"
    path.write_bytes(b"       3                7\n")
    if heartbeat is not None:
        os.utime(path, (heartbeat, heartbeat))
    return report


def read_table(folder, since=None):
    table = ProcessTable(folder.parent, "here", time.time() - 1 if since is None else since)
    table.refresh()
    return table


def test_what_is_written_is_read(folder):
    """A record survives the way through its file, whatever characters are in the name of its host."""
    report = write_process(folder, "agent_loop-node.example.org-17")
    assert read_table(folder).statuses["agent_loop-node.example.org-17"].report == report


@pytest.mark.full
def test_a_process_that_died_in_an_earlier_attempt_is_removed(folder, dead_pid):
    """It is no crash of this attempt, and its files go."""
    write_process(folder, "old", Process(dead_pid, 1), heartbeat=time.time() - 3600)
    assert not read_table(folder).statuses
    assert not list(folder.iterdir())


@pytest.mark.full
def test_a_process_that_died_before_the_monitor_started_is_dead(folder, dead_pid):
    """A monitor that takes over finds the processes that died with the former one."""
    write_process(folder, "young", Process(dead_pid, 1))
    status = read_table(folder).statuses["young"]
    assert (status.state, status.open_count) == (DIED, 3)


def test_a_process_whose_id_was_reused_is_dead(folder):
    """This process has the id, but not the start."""
    own_process = procfs.find_process(os.getpid())
    write_process(folder, "reused", own_process._replace(start=own_process.start - 1))
    assert read_table(folder).statuses["reused"].state == DIED


def test_processes_of_other_nodes_and_damaged_files_are_passed_over(folder):
    """A shared folder, and a file that is no record."""
    write_process(folder, "far", node="there")
    (folder / "process-half.json").write_text('{"node": "half"')
    assert not read_table(folder).statuses


def test_a_process_that_exits_normally_is_removed(folder):
    """Its report is gone."""
    write_process(folder, "one")
    table = read_table(folder)
    assert table.statuses["one"].state == ALIVE
    process_reports.remove(folder, "one")
    table.refresh()
    assert not table.statuses


def test_reports_are_looked_at_when_their_folder_has_changed(folder, monkeypatch):
    """Two looks at an unchanged folder are enough; what is added later is found, as is what is removed."""
    write_process(folder, "first")
    looks = []
    list_paths = process_reports.list_paths
    monkeypatch.setattr(process_reports, "list_paths", lambda path: looks.append(path) or list_paths(path))
    table = read_table(folder)
    for _ in range(5):
        table.refresh()
    assert len(looks) == 2
    os.utime(
        folder, (1, 1)
    )  # another time than that of the next change, however coarse the clock of the file system is
    table.refresh()
    table.refresh()
    write_process(folder, "second")
    table.refresh()
    assert set(table.statuses) == {"first", "second"}
    process_reports.remove(folder, "first")
    table.refresh()
    assert set(table.statuses) == {"second"}


def test_activity_is_read_while_work_is_open(folder, monkeypatch):
    """Where nothing is open, nothing hangs."""
    write_process(folder, "here")
    table = read_table(folder)
    sampled = []
    monkeypatch.setattr(table._stillness, "sample", lambda pids, _: sampled.append(list(pids)))
    for count in (1, 0):
        beat = folder / f"{process_reports.HEARTBEAT_PREFIX}here"
        beat.write_bytes(b"%8d %16d\n" % (count, 7))
        os.utime(beat, (time.time() + count, time.time() + count))
        table.refresh()
    assert sampled == [[os.getpid()], []]


def test_silence_is_measured_since_the_last_heartbeat(folder):
    """Also by a monitor that has just started; reset when the monitor itself was stopped."""
    write_process(folder, "quiet", heartbeat=time.time() - 100)
    table = read_table(folder, since=0)
    assert table.statuses["quiet"].silent_seconds >= 99
    assert table.statuses["quiet"].state == "frozen"
    table.reset_timeouts()
    table.refresh()
    assert table.statuses["quiet"].state == ALIVE
    os.utime(folder / f"{process_reports.HEARTBEAT_PREFIX}quiet")
    table.refresh()
    assert table.statuses["quiet"].silent_seconds < 10


def test_memory_is_kept_for_ten_minutes(folder, monkeypatch):
    """A ring of bytes, whose oldest values go."""
    monkeypatch.setattr(process_table, "MEMORY_SECONDS", 0)
    write_process(folder, "one")
    table = read_table(folder)
    for _ in range(2 * process_table.MEMORY_SAMPLES):
        table.refresh()
    memory = table.statuses["one"].memory
    assert len(memory) == process_table.MEMORY_SAMPLES == 10 * 60 / 5
    assert memory[-1][1] > 1 << 20


def test_a_process_whose_disk_does_not_answer_is_alive(folder, monkeypatch):
    """Its thread waits in the kernel: not frozen, and doubtful only for a while. Without that it is frozen."""
    monkeypatch.setattr(procfs, "waits_for_device", lambda process, thread: thread == 17)
    write_process(folder, "slow", heartbeat=time.time() - 20, drain_thread=17)
    write_process(folder, "slower", heartbeat=time.time() - 100, drain_thread=17)
    write_process(folder, "quiet", heartbeat=time.time() - 20, drain_thread=18)
    statuses = read_table(folder, since=0).statuses
    assert {process_name: (status.state, status.is_report_stale, status.is_late) for process_name, status in statuses.items()} == {
        "slow": (ALIVE, True, True), "slower": (ALIVE, True, False), "quiet": ("frozen", False, False),
    }  # fmt: skip


@pytest.mark.full
def test_a_forked_child_that_died_is_removed(folder, dead_pid):
    """Its parent may have wanted it; its record and its open spans go."""
    write_process(
        folder, "child", Process(dead_pid, 1), is_child=True, peers={"verl.reward": DurationStats(2, (3.0, 1.0))}
    )
    opened = folder.parent / "open-child.jsonl"
    opened.touch()
    table = read_table(folder)
    assert not table.statuses
    assert table.departed_peers == {"verl.reward": DurationStats(2, (3.0, 1.0))}
    assert not opened.exists()
    assert not list(folder.iterdir())


def test_processes_of_other_nodes_take_no_place_and_are_seldom_read(folder, monkeypatch):
    """On a shared file system all own processes are watched, and the reports of others are read again only after a while."""
    monkeypatch.setattr(process_table, "MAX_PROCESSES", 3)
    for number in range(20):
        write_process(folder, f"far-{number}", node="elsewhere")
    for number in range(3):
        write_process(folder, f"own-{number}")
    table = read_table(folder)
    assert set(table.statuses) == {"own-0", "own-1", "own-2"}
    reads = []
    read = process_reports.read
    monkeypatch.setattr(process_reports, "read", lambda path: reads.append(path) or read(path))
    table.refresh()
    assert reads == []
    (folder / f"{process_reports.REPORT_PREFIX}own-0.json").unlink()
    write_process(folder, "far-0")  # its name was used again on this node
    now = time.monotonic()
    monkeypatch.setattr(process_table.time, "monotonic", lambda: now + process_table.FOREIGN_SECONDS + 1)
    table.refresh()
    assert set(table.statuses) == {"own-1", "own-2"}
    now += 2 * process_table.FOREIGN_SECONDS
    table.refresh()
    assert set(table.statuses) == {"far-0", "own-1", "own-2"}


# -- processes without telemetry --


@pytest.fixture
def states(monkeypatch):
    """A raylet, 70, and an actor in process 71, which have no telemetry, beside others; and what the kernel says of both."""
    states, find, read = {70: "sleeping", 71: "sleeping"}, procfs.find_process, procfs.read_state
    monkeypatch.setattr(procfs, "find_process", lambda pid: Process(pid, 1) if pid in (70, 71) else find(pid))
    monkeypatch.setattr(procfs, "read_state", lambda process: states.get(process.pid) or read(process))
    titles = {71: "ray::SimpleStorageUnit", 72: "ray::IDLE", 73: "ray::OfAnotherJob", 74: "ray/agent.py"}
    monkeypatch.setattr(procfs, "read_parent", lambda pid: 70)
    monkeypatch.setattr(procfs, "read_program", {70: "raylet"}.get)
    monkeypatch.setattr(procfs, "list_children", lambda parents: [*titles, os.getpid()] if 70 in parents else [])
    monkeypatch.setattr(procfs, "read_command", lambda pid: titles.get(pid, "ray::Trainer"))
    actors = [ActorProcess(71, "transfer_queue", "ab"), ActorProcess(os.getpid(), "trainer", "cd")]
    cluster = SimpleNamespace(list_actors=lambda: actors)
    monkeypatch.setattr(cluster_backend._Current, "backend", cluster)
    return states


def test_an_actor_without_telemetry_is_watched(folder, states):
    """The cluster knows its process. Those with telemetry report for themselves."""
    write_process(folder, "trainer")
    table = read_table(folder)
    raylet, helper = (status for status in table.statuses.values() if status.report.is_helper)
    assert (raylet.report.instance, raylet.report.actor, raylet.state) == ("raylet-70", "", ALIVE)
    assert (helper.report.instance, helper.report.actor, helper.state) == ("transfer_queue-71", "ab", ALIVE)
    states[71] = procfs.GONE
    table.refresh()
    assert helper.state == DIED


def test_a_helper_that_begins_to_report_is_one_process(folder, states):
    """It had no telemetry yet when the cluster was asked."""
    write_process(folder, "trainer")
    table = read_table(folder)
    write_process(folder, "late", Process(71, 1))
    table.refresh()
    assert set(table.statuses) == {"trainer", "late", "raylet-here-70"}


def test_a_helper_that_was_stopped_is_recorded(folder, states, recorded, monkeypatch):
    """How long, and which process; it is looked at once a second."""
    monkeypatch.setattr(process_pauses, "PAUSED_SECONDS", 0.2)
    now = [100.0]
    monkeypatch.setattr(process_table, "clock", lambda: now[0])
    write_process(folder, "trainer")
    table = read_table(folder)
    for state in ("sleeping", "stopped", "stopped", "stopped", "sleeping", "sleeping"):
        states[71] = state
        now[0] += 1.0
        table.refresh()
    span = recorded.span("verl.process.paused")
    assert span.attributes == {"reason": "process", "verl.stall.instance": "transfer_queue-71"}
    assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(3.0, abs=0.01)
