# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the monitor reports of a failing run and of incidents that end or get worse, and when it removes dead processes."""

import json
import os
import time
from types import SimpleNamespace

import pytest

from tests.watchdog.snapshots import SnapshotBuilder, make_report
from verl_otel import config, watchdog
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.session import lifecycle, run_manifest, run_record
from verl_otel.system import procfs
from verl_otel.system.leader_lock import LeaderLock
from verl_otel.system.procfs import Process
from verl_otel.watchdog import (
    cluster_backend,
    diagnosis,
    heartbeat,
    monitor,
    process_reports,
    stack_dumps,
)
from verl_otel.watchdog.cluster_backend import DeathInfo
from verl_otel.watchdog.monitor import Monitor
from verl_otel.watchdog.overdue import ALIVE, DIED, FROZEN, STOPPED
from verl_otel.watchdog.process_table import ProcessStatus


class Node:
    """A node with a monitor that checks when it is called."""

    def __init__(self, folder):
        self.config = config.load_config({}, run_dir=folder, run_id="r1")
        self.folder = self.config.run_path / process_reports.FOLDER
        self.folder.mkdir(parents=True)
        self.monitor = Monitor(self.config, self.folder, "here", time.time() - 60, LeaderLock(self.folder, "here"))

    def write(self, process_name, pid, beat=-1.0, held=3, **more):
        """Write the report of a process with this id, whose last heartbeat was ``-beat`` seconds ago."""
        process_reports.write(self.folder, make_report(process_name)._replace(process=Process(pid, 1), **more))
        path = self.folder / f"{process_reports.HEARTBEAT_PREFIX}{process_name}"
        path.write_text(f"{held} 7\n")
        os.utime(path, (time.time() + beat,) * 2)

    def look(self, times=1):
        for _ in range(times):
            self.monitor._checked_at = 0.0
            self.monitor._signature = None
            self.monitor._check()

    def settle(self, builder, *findings, **states):
        """Update the incidents of the monitor with the findings of a snapshot."""
        snapshot = builder.build()
        for process_name, report in snapshot.reports.items():
            status = self.monitor._processes.statuses.setdefault(process_name, ProcessStatus(report, (0, 0, 0)))
            status.state = states.get(process_name.replace("-", "_"), snapshot.states[process_name])
        self.monitor._update_incidents(snapshot, list(findings or diagnosis.find(snapshot)))

    def events(self):
        path = self.config.run_path / "events.jsonl"
        events = (
            [json.loads(line) for line in path.read_text("utf-8").rpartition("\n")[0].splitlines()]
            if path.exists()
            else []
        )
        return [(event["kind"], event["detail"]["key"][1]) for event in events]


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node whose deaths are confirmed at once."""
    monkeypatch.setattr(monitor, "CONFIRM_SECONDS", 0.0)
    monkeypatch.setattr(monitor, "STACK_WAIT_SECONDS", 0.0)
    return Node(tmp_path)


@pytest.fixture
def explain(monkeypatch):
    """Have a cluster that explains all deaths alike."""

    def begin(death):
        cluster = SimpleNamespace(explain=lambda actor: death, list_actors=list, publish=lambda *_: None)
        monkeypatch.setattr(cluster_backend._Current, "backend", cluster)

    return begin


@pytest.mark.full
@pytest.mark.parametrize(
    ("state", "expected"), [(process_reports.FAILED, [("crash", "rank-1")]), (process_reports.FINISHED, [])]
)
def test_a_death_that_fails_the_run_is_reported_and_one_after_its_end_is_not(node, dead_pid, state, expected):
    """The rank died before the trainer failed; the other rank lived on and was killed for that. Said once."""
    node.look()
    node.write("rank-1", dead_pid)
    process_reports.mark_run(node.config, state)
    node.write("rank-2", dead_pid, beat=1.0)
    node.look(3)
    assert node.events() == expected


@pytest.mark.full
def test_an_unconfirmed_death_is_reported_when_the_run_fails(node, dead_pid, monkeypatch):
    """It was found a moment before the trainer failed."""
    monkeypatch.setattr(monitor, "CONFIRM_SECONDS", 600.0)
    node.write("rank-1", dead_pid)
    node.look(2)
    assert node.events() == []
    process_reports.mark_run(node.config, process_reports.FAILED)
    node.look()
    assert node.events() == [("crash", "rank-1")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("death", "watched", "expected"),
    [
        (None, False, []),
        (DeathInfo(True, "killed with its job"), False, []),
        (DeathInfo(True, "killed with its job"), True, []),
        (DeathInfo(False, "gone"), False, [("crash", "rank-1")]),
    ],
)
def test_the_cluster_decides_whether_a_death_was_intended(node, dead_pid, explain, death, watched, expected):
    """A monitor that starts after the end relies on it alone: it cannot distinguish the process that died first from those that were killed after it."""
    explain(death)
    if watched:
        node.look()
    node.write("rank-1", dead_pid, actor="ab")
    process_reports.mark_run(node.config, process_reports.FAILED)
    node.look(2)
    assert node.events() == expected


@pytest.mark.full
def test_the_monitor_in_a_process_that_ends_with_the_run_checks_once_more(node, dead_pid, monkeypatch):
    """The trainer's process may be the one that watches."""
    monkeypatch.setattr(monitor, "POLL_SECONDS", 600.0)
    node.look()
    node.write("rank-1", dead_pid)
    process_reports.mark_run(node.config, process_reports.FAILED)
    node.monitor.start()
    node.monitor.stop(time.monotonic() + 10)
    node.monitor.join(10)
    assert node.events() == [("crash", "rank-1")]


def test_what_failed_has_not_finished(node):
    """The first word of a failure holds until the run begins again."""
    for state, expected in (
        (process_reports.FINISHED, process_reports.FINISHED),
        (process_reports.FAILED, process_reports.FAILED),
        (process_reports.FINISHED, process_reports.FAILED),
    ):
        process_reports.mark_run(node.config, state)
        assert process_reports.read_run_end(node.folder).state == expected
    process_reports.mark_run(node.config, process_reports.RUNNING)
    assert process_reports.read_run_end(node.folder) is None


@pytest.fixture
def hang():
    """A tool that hangs in an agent loop for which a trainer waits."""
    builder = SnapshotBuilder(100).process("trainer-0", "trainer").process("agent-0")
    gen = builder.open("trainer-0", "verl.phase.gen", 150)
    builder.open("agent-0", "execute_tool python", 140, builder.open("agent-0", "verl.trajectory", 145, links=[gen]))
    return builder


@pytest.mark.parametrize(("state", "text"), [(ALIVE, "goes on"), (FROZEN, "superseded"), (DIED, "superseded")])
def test_only_who_lives_goes_on(node, hang, state, text, caplog):
    """A hang that becomes a freeze or a death is not over."""
    for _ in range(2):
        node.settle(hang)
    (finding,) = diagnosis.find(hang.build())
    worse = [] if state == ALIVE else [finding._replace(reason=state)]
    caplog.clear()
    snapshot = hang.build()
    node.monitor._processes.statuses["agent-0"].state = state
    node.monitor._update_incidents(snapshot, worse)
    last = (node.config.run_path / "events.jsonl").read_text("utf-8").splitlines()[-1]
    assert json.loads(last)["kind"] == "resolved"
    assert text in json.loads(last)["text"]
    assert any("goes on" in line for line in caplog.messages) == (state == ALIVE)


def test_a_frozen_process_is_looked_at_until_it_has_written_its_stacks(node, monkeypatch):
    """On a busy machine one look at its threads may prove nothing: the report waits for the stacks, and each check looks again."""
    monkeypatch.setattr(monitor, "STACK_WAIT_SECONDS", 600.0)
    looks = []

    def request(*_):
        looks.append(1)
        if len(looks) == 3:
            (node.folder / f"{process_reports.STACKS_PREFIX}agent-0.txt").write_text("in hold_the_interpreter")
        return len(looks) == 3

    monkeypatch.setattr(stack_dumps, "request_by_signal", request)
    monkeypatch.setattr(monitor, "start_py_spy", lambda *_: None)
    builder = SnapshotBuilder(100).process("trainer-0", "trainer").process("agent-0", state=FROZEN)
    gen = builder.open("trainer-0", "verl.phase.gen", 150)
    builder.open("agent-0", "verl.trajectory", 145, links=[gen])
    for _ in range(2):
        node.settle(builder)
    assert node.events() == []
    (node.folder / f"{process_reports.REQUEST_PREFIX}trainer-0").unlink()  # it has answered
    for _ in range(3):
        node.settle(builder)
    assert node.events() == [("stall", "agent-0")]
    (line,) = (node.config.run_path / "events.jsonl").read_text("utf-8").splitlines()
    assert any("agent-0" in path for path in json.loads(line)["detail"]["stacks"].values())
    assert len(looks) == 3


def test_a_repeated_stall_is_reported_again_after_a_while_only(node, hang, monkeypatch):
    """Every few seconds the same would fill the file."""
    for _ in range(3):
        node.settle(hang)
        node.settle(hang)
        node.monitor._update_incidents(hang.build(), [])
    assert node.events() == [("stall", "agent-0"), ("resolved", "agent-0")]
    monkeypatch.setattr(monitor, "REPEAT_SECONDS", 0.0)
    node.settle(hang)
    node.settle(hang)
    assert node.events()[2:] == [("stall", "agent-0")]


def test_a_hang_that_was_reported_leaves_the_limits_as_they_were(node, hang):
    """Neither what hung nor what waited for it makes the next one usual."""
    for _ in range(2):
        node.settle(hang)
    known = dict.fromkeys(
        ("execute_tool python", "verl.trajectory", "verl.phase.gen"), DurationStats(9, (160.0, *[2.0] * 8))
    )
    node.write("agent-1", os.getpid(), peers=known)
    node.look()
    assert {name: peers.longest for name, peers in node.monitor._peers.items()} == dict.fromkeys(known, 2.0)


@pytest.mark.parametrize(("state", "longest"), [(STOPPED, 2.0), (ALIVE, 25.0)])
def test_what_a_stopped_process_was_doing_leaves_the_limits_as_they_were(node, state, longest):
    """It takes as long as the process stands, and its file does not have it where the process stood before it could write that."""
    before, after = (DurationStats(9, (*top, *[2.0] * 8)) for top in ((2.0,), (25.0,)))
    builder = SnapshotBuilder().process("server-0", "llm_server").peers("verl.generate", peers=before)
    snapshot = builder.build()
    report = snapshot.reports["server-0"]._replace(peers={"verl.generate": before})
    status = ProcessStatus(report, (0, 0, 0))
    node.monitor._report(snapshot, monitor.Incident(diagnosis.Finding(state, "server-0", None, ()), 0.0), status, 0.0)
    node.write("server-0", os.getpid(), peers={"verl.generate": after})
    node.look()
    assert node.monitor._peers["verl.generate"].longest == longest


@pytest.mark.full
def test_dead_processes_are_removed_once_no_span_waits_for_them(node, dead_pid):
    """As long as the trainer's phase is open it is they who hold it up; what hangs later hangs for another reason."""
    node.write("agent-0", dead_pid)
    builder = SnapshotBuilder(100).process("trainer-0", "trainer").process("agent-0", state=DIED)
    gen = builder.open("trainer-0", "verl.phase.gen", 50)
    builder.open("agent-0", "verl.trajectory", 45, links=[gen])
    for _ in range(3):
        node.settle(builder)
    assert node.events() == [("crash", "agent-0")]
    assert "agent-0" in node.monitor._processes.statuses
    builder._rows.remove(gen)
    node.settle(builder)
    assert "agent-0" not in node.monitor._processes.statuses
    assert not list(node.folder.glob("*agent-0*"))
    node.monitor._update_incidents(SnapshotBuilder().build(), [])
    assert node.events() == [("crash", "agent-0")]


@pytest.mark.full
@pytest.mark.parametrize("expected", [True, False])
def test_dead_processes_without_work_are_removed(node, dead_pid, monkeypatch, explain, expected):
    """Because the death was intended, or because they had no open span for a minute."""
    explain(DeathInfo(True, "killed") if expected else None)
    node.write("rank-1", dead_pid, held=3 if expected else 0, actor="ab")
    node.look(3)
    if not expected:
        assert "rank-1" in node.monitor._processes.statuses
        monkeypatch.setattr(monitor, "KEEP_DEAD_SECONDS", -1.0)
        node.look()
    assert node.monitor._processes.statuses == {}
    assert not list(node.folder.glob("*rank-1*"))
    assert node.events() == []


@pytest.mark.parametrize(
    ("death", "expected"),
    [(DeathInfo(False, "killed"), [("crash", "storage")]), (DeathInfo(True, "not needed"), []), (None, [])],
)
def test_the_death_of_a_process_without_telemetry_is_a_crash_if_the_cluster_says_so(
    node, explain, monkeypatch, death, expected
):
    """Whether it was intended is not known: it has no open work."""
    explain(death)
    report = make_report("storage", "transfer_queue", is_helper=True)._replace(actor="ab")
    node.monitor._processes.statuses["storage"] = ProcessStatus(report, (0, 0, 0))
    read = procfs.read_state
    monkeypatch.setattr(
        procfs, "read_state", lambda process: procfs.GONE if process == report.process else read(process)
    )
    node.look(2)
    assert node.events() == expected
    if expected:
        text = (node.config.run_path / "events.jsonl").read_text("utf-8")
        assert f"(pid {report.process.pid}, {report.host})" in text
    assert (
        "storage" not in node.monitor._take_snapshot(time.monotonic()).reports
    )  # what hangs later does not wait for it


@pytest.mark.parametrize(
    ("role", "phase", "moving", "is_found"),
    [
        ("raylet", "verl.phase.adv", False, True),
        ("raylet", "verl.phase.adv", True, False),
        ("agent_loop", "verl.phase.gen", False, True),
        ("llm_server", "verl.phase.gen", False, True),
        ("agent_loop", "verl.phase.gen", True, False),
        ("agent_loop", "verl.phase.update_actor", False, False),
        ("actor", "verl.phase.gen", False, False),
    ],
)
def test_a_stopped_process_without_known_work_is_named_if_nothing_goes_on(node, role, phase, moving, is_found):
    """What waits for Ray's raylet is not known, and a rollout may have begun since the last heartbeat: then the trainer waits for rollouts."""
    builder = SnapshotBuilder().process("trainer-0", "trainer")
    builder.process("other", role, STOPPED, is_helper=role == "raylet")
    builder.open("trainer-0", phase, 9)
    if moving:
        builder.moving("trainer-0")
    snapshot = builder.build()
    status = ProcessStatus(snapshot.reports["other"], (0, 0, 0))
    status.state, status.last_heartbeat = STOPPED, time.monotonic() - 9
    node.monitor._processes.statuses["other"] = status
    found = [(each.reason, each.process_name) for each in node.monitor._diagnose(snapshot)]
    assert found == ([(STOPPED, "other")] if is_found else [])


@pytest.mark.full
def test_the_report_of_a_process_with_a_stuck_disk_is_ignored(node, monkeypatch):
    """Its suspects may be over long since."""
    builder = SnapshotBuilder()
    builder.process("agent-0")
    builder.open("agent-0", "execute_tool python", 5000)
    report = builder.build().reports["agent-0"]
    status = ProcessStatus(report, (0, 0, 0))
    node.monitor._processes.statuses["agent-0"] = status
    assert node.monitor._take_snapshot(time.monotonic()).suspects
    status.last_heartbeat -= 20
    assert not node.monitor._take_snapshot(time.monotonic()).suspects
    assert not node.monitor._is_suspicious(status)


def test_the_manifest_is_ended_before_the_watchdog_even_if_that_fails(tmp_path, monkeypatch, swallow):
    """What fails there must not leave a run that looks unfinished."""
    calls = []

    def fail(config):
        calls.append("watchdog")
        raise RuntimeError("no thread")

    monkeypatch.setattr(watchdog, "end_run", fail)
    monkeypatch.setattr(run_manifest, "end_attempt", lambda path: calls.append("manifest"))
    record = run_record.RunRecord(config.load_config({}, run_dir=tmp_path, run_id="r1", exporters="file"))
    record._has_begun = True
    record.end()
    assert calls == ["manifest", "watchdog"]


def test_the_question_is_taken_away_when_the_answer_is_there(start, wait_for, monkeypatch):
    """Who asked must not read a record of before."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.1)
    run = start()
    lifecycle.Current.session.open_now()
    (report_path,) = wait_for(lambda: list(run.folder.glob("black-box/process-*.json")))
    request = report_path.with_name(
        report_path.stem.replace(process_reports.REPORT_PREFIX, process_reports.REQUEST_PREFIX, 1)
    )
    requested, write = [], process_reports.write
    monkeypatch.setattr(
        process_reports, "write", lambda *arguments: (requested.append(request.exists()), write(*arguments))
    )
    request.touch()
    wait_for(lambda: not request.exists())
    assert requested[-1:] == [True]


def test_a_folder_without_locks_is_logged(start, wait_for, monkeypatch, caplog):
    """Otherwise a run without a monitor would go unnoticed."""

    def fail(lock):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(LeaderLock, "acquire", fail)
    start()
    lifecycle.Current.session.open_now()
    wait_for(lambda: any("stalls and crashes will not be seen: no lock" in line for line in caplog.messages))
