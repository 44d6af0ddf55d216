# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The watchdog in real processes: stalled, stopped, frozen and dead processes are reported, and healthy work is not."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).with_name("watchdog_runs.py")
SECONDS = 40.0


class Run:
    """A small run: processes that were started, and what was found about them."""

    def __init__(self, folder, environ):
        self.folder = folder / "runs" / "r1"
        self._environ = environ
        self._logs = folder / "logs"
        self._logs.mkdir()
        self.processes = []

    def start(self, role, number=0, what="wait", overdue="600", silent="600", **variables):
        """Start a process; returns it when it has worked for a while and waits for `go`.

        Work is overdue after ``overdue`` seconds, a process without a heartbeat frozen after ``silent`` ones. Both are long where a test is
        not about them: a busy machine holds processes up.
        """
        log = self._logs / f"{len(self.processes)}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, SCRIPT, role, str(number), what],
                env={
                    **self._environ,
                    "VERL_OTEL_DRAIN_INTERVAL": "0.2",
                    "WATCHDOG_SLACK": overdue,
                    "WATCHDOG_SILENT": silent,
                    **variables,
                },
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self.processes.append(process)
        assert process.stdout.readline() == "ready\n", log.read_text()
        return process

    def go(self, *processes):
        """Have processes do what they were started for: all of them, unless some are named."""
        for process in processes or self.processes:
            send(process, "go")

    def events(self, kind=None):
        path = self.folder / "events.jsonl"
        events = (
            [json.loads(line) for line in path.read_text("utf-8").rpartition("\n")[0].splitlines()]
            if path.exists()
            else []
        )
        return [event for event in events if kind in (None, event["kind"])]

    def log_lines(self):
        text = "".join(path.read_text("utf-8") for path in self._logs.iterdir())
        return [line for line in text.splitlines() if line.startswith("verl-otel:")]

    def stacks(self, event, process):
        return (self.folder / event["detail"]["stacks"][str(process.pid)]).read_text("utf-8")

    def has_open(self, process):
        """Whether the file of its open spans is there."""
        return bool(list(self.folder.glob(f"open-*-{process.pid}.jsonl")))

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()


def send(process, word):
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


@pytest.fixture
def training(tmp_path, environ):
    """A run in the folder of the test; its processes are killed at the end."""
    training = Run(tmp_path, environ)
    yield training
    training.end()


def wait_for_event(training, wait_for, kind, process=None):
    """The only event of a kind, once it is there; the only one of a process, where others may be called silent as well."""
    tail = f"-{process.pid}" if process is not None else ""
    (event,) = wait_for(
        lambda: [event for event in training.events(kind) if event["detail"]["key"][1].endswith(tail)], SECONDS
    )
    return event


def wait_for_heartbeat(training, wait_for, process):
    """Wait for a further heartbeat: a process without one since the monitor has started is taken for one of an earlier run."""
    now = time.time()
    wait_for(lambda: next(training.folder.glob(f"black-box/beat-*-{process.pid}")).stat().st_mtime > now)


def names(rows):
    return [(row["instance"], row["span"]) for row in rows]


WAITING = [("trainer-0", "verl.phase.gen"), ("trainer-0", "verl.step")]


def test_a_hanging_tool_is_named_with_who_waits_for_it(training, wait_for, files):
    """A tool that hangs in a live process: its trajectory, the trainer that waits, stacks of both, one line, one span."""
    trainer = training.start("trainer", overdue="2")
    loop = training.start("agent_loop", 3, "hang", overdue="2")
    training.go()
    event = wait_for_event(training, wait_for, "stall")
    culprit = event["detail"]["culprit"]
    assert event["detail"]["reason"] == "overdue"
    assert (culprit["instance"], culprit["pid"], culprit["span"]) == ("agent_loop-3", loop.pid, "execute_tool python")
    assert (culprit["uid"], culprit["index"], culprit["phase"]) == ("uid-3", 7, "gen")
    assert names(event["detail"]["waiting"])[-2:] == WAITING
    assert "in hang_here" in training.stacks(event, loop)
    assert "in train" in training.stacks(event, trainer)
    (line,) = wait_for(training.log_lines)
    assert line.startswith(f"verl-otel: STALL in agent_loop-3 (pid {loop.pid}, ")
    assert all(part in line for part in ("execute_tool python", "uid-3/7", "trainer-0 waits in verl.phase.gen"))
    assert str(training.folder / "events.jsonl") in line
    spans = files(training.folder)
    wait_for(lambda: "verl.stall" in spans.names())
    (span,) = [span for span in spans.spans() if span.name == "verl.stall"]
    assert span.attributes["verl.stall.instance"] == "agent_loop-3"
    assert spans.last("verl.stalls", reason="overdue") == 1


def test_a_stopped_process_is_named_while_it_is_stopped_and_when_it_goes_on(training, wait_for):
    """SIGSTOP: reported while it lasts, without a pending signal; SIGCONT: reported as well."""
    training.start("trainer")
    loop = training.start("agent_loop", 1, "wait")
    training.go()
    wait_for(lambda: training.has_open(loop))
    os.kill(loop.pid, signal.SIGSTOP)
    event = wait_for_event(training, wait_for, "stall")
    assert (event["detail"]["reason"], event["detail"]["state"]) == ("stopped", "stopped")
    assert event["detail"]["culprit"]["span"] == "execute_tool python"
    assert str(loop.pid) not in event["detail"]["stacks"]
    assert pending_signals(loop.pid) == 0
    os.kill(loop.pid, signal.SIGCONT)
    wait_for(lambda: training.events("resolved") or len(training.events("stall")) > 1, SECONDS)


PY_SPY = """#!/bin/sh
echo "Process $4: stacks by $1"
"""


def test_py_spy_shows_where_a_stopped_process_stands(training, wait_for, tmp_path):
    """Where that program is installed: it needs nothing of the process, which cannot write its own stack."""
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text(PY_SPY)
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    training.start("trainer", PATH=path)
    loop = training.start("agent_loop", 1, "wait", PATH=path)
    training.go()
    wait_for(lambda: training.has_open(loop))
    os.kill(loop.pid, signal.SIGSTOP)
    event = wait_for_event(training, wait_for, "stall")
    stack = training.folder / event["detail"]["stacks"][str(loop.pid)]
    assert stack.read_text() == f"Process {loop.pid}: stacks by dump\n"
    os.kill(loop.pid, signal.SIGCONT)


def pending_signals(pid):
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^ShdPnd:\s*(\w+)", text, re.MULTILINE)[1], 16)


def test_a_process_whose_interpreter_is_held_inside_of_c_shows_its_stack(training, wait_for):
    """A regular expression that backtracks for ever holds the interpreter: frozen, and its stack names the line."""
    training.start("trainer", silent="3")
    loop = training.start("agent_loop", 1, "hold", silent="3")
    training.go()

    def find():  # on a busy machine a process may also be silent before it hangs
        events = [event for event in training.events("stall") if str(loop.pid) in event["detail"]["stacks"]]
        return [event for event in events if "in hold_the_interpreter" in training.stacks(event, loop)]

    event = wait_for(find, SECONDS)[0]
    assert event["detail"]["reason"] == "frozen"
    assert event["detail"]["culprit"]["pid"] == loop.pid
    assert loop.poll() is None


def test_a_blocked_event_loop_is_one_stall_with_the_line_that_blocks_it(training, wait_for):
    """Three trajectories hang because a callback of their loop does: one report, the line, and where the other tasks wait."""
    training.start("trainer", overdue="2")
    loop = training.start("agent_loop", 0, "block", overdue="2")
    training.go()
    event = wait_for_event(training, wait_for, "stall")
    assert event["detail"]["culprit"]["pid"] == loop.pid
    assert "its event loop is blocked at" in event["text"]
    stacks = training.stacks(event, loop)
    assert "Tasks of asyncio: 4" in stacks
    assert "2 tasks" in stacks
    wait_for(lambda: len(training.log_lines()) == 1)


def test_a_killed_process_is_a_crash_with_the_trajectories_it_held(training, wait_for):
    """SIGKILL: who died, what it held, who waits, how its memory went."""
    trainer = training.start("trainer")
    loop = training.start("agent_loop", 1, "wait")
    training.go()
    wait_for(lambda: training.has_open(loop) and training.has_open(trainer))
    loop.kill()
    event = wait_for_event(training, wait_for, "crash")
    detail = event["detail"]
    assert (detail["culprit"]["instance"], detail["culprit"]["pid"]) == ("agent_loop-1", loop.pid)
    assert [(row["uid"], row["index"]) for row in detail["held_trajectories"]] == [("uid-1", 7)]
    assert names(detail["waiting"])[-2:] == WAITING
    assert detail["rss"][-1][1] > 1 << 20
    (line,) = wait_for(training.log_lines)
    assert "CRASH agent_loop-1" in line
    assert "uid-1/7" in line


def test_a_frozen_monitor_is_reported_by_its_successor(training, wait_for):
    """The first process watches; stopped, it keeps the lock, and another one watches in its place."""
    first = training.start("agent_loop", 0, "wait")
    training.go()
    wait_for(lambda: training.has_open(first) and list(training.folder.glob("black-box/watcher-*-0.lock")))
    training.start("trainer")
    os.kill(first.pid, signal.SIGSTOP)
    assert wait_for_event(training, wait_for, "stall", first)["detail"]["culprit"]["pid"] == first.pid


def test_it_works_without_the_file_exporter(training, wait_for):
    """With Prometheus alone the open spans are written for the monitor, and nothing else."""
    only = {"VERL_OTEL_EXPORTERS": "prometheus"}
    training.start("trainer", **only)
    loop = training.start("agent_loop", 1, "wait", **only)
    training.go()
    wait_for(lambda: training.has_open(loop))
    loop.kill()
    event = wait_for_event(training, wait_for, "crash")
    assert [row["uid"] for row in event["detail"]["held_trajectories"]] == ["uid-1"]
    assert not list(training.folder.glob("traces-*"))


@pytest.mark.parametrize("off", [{"VERL_OTEL_STALLS": "0"}, {"VERL_OTEL_EXPORTERS": "none"}])
def test_it_can_be_switched_off(training, wait_for, off):
    """Without stalls, and where nothing is exported, there is no folder, no thread and no signal handler."""
    process = training.start("trainer", **off)
    caught = int(re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)[1], 16)
    wait_for(
        lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) <= 3, SECONDS
    )  # main, drain and hardware, after those of the start
    assert not caught >> 34
    assert not (training.folder / "black-box").exists()


def read_handles(pid):
    """What a process has open; what it closes meanwhile is left out."""
    paths = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            paths.append(str(path.readlink()))
    return paths


def test_a_forked_child_holds_neither_the_lock_nor_the_files(training, wait_for):
    """A child of the monitor that outlives it does not keep the lock."""
    first = training.start("trainer")
    wait_for(lambda: list(training.folder.glob("black-box/watcher-*-0.lock")))
    send(first, "go")
    send(first, "fork")
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
    wait_for(children.read_text)
    child = int(children.read_text())
    try:
        wait_for(lambda: not any("black-box" in handle for handle in read_handles(child)))
        training.start("agent_loop", 1, "wait")
        wait_for(lambda: training.has_open(first))
        wait_for_heartbeat(training, wait_for, first)
        first.kill()
        assert wait_for_event(training, wait_for, "crash")["detail"]["culprit"]["pid"] == first.pid
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_its_parent_kills_at_work_is_no_crash(training, wait_for):
    """A reward function that is given up: the process is removed, with its report and its file of open spans. One event names it, and no line."""
    parent = training.start("trainer")
    training.go()
    send(parent, "fork_busy")
    (record,) = wait_for(lambda: [path for path in records(training) if not path.stem.endswith(f"-{parent.pid}")])
    assert json.loads(record.read_text("utf-8"))["is_child"]
    (opened,) = wait_for(
        lambda: [path for path in training.folder.glob("open-*.jsonl") if f"-{parent.pid}." not in path.name]
    )
    child = int(record.stem.rpartition("-")[2])
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not record.exists() and not opened.exists(), SECONDS)
    (event,) = wait_for(training.events)
    assert (event["kind"], event["detail"]["culprit"]["pid"]) == ("child", child)
    assert re.search(
        rf"\(pid {child}, .*\) died holding one trajectory \(uid/0\), in execute_tool python, open for .* s; its parent may have killed it",
        event["text"],
    )


def records(training):
    return list(training.folder.glob("black-box/process-*.json"))


def test_a_report_names_the_thread_that_writes_the_heartbeats(training, wait_for):
    """So that one that waits for a disk is not called frozen."""
    process = training.start("trainer")
    reports = wait_for(
        lambda: [
            report for path in records(training) if (report := json.loads(path.read_text("utf-8")))["drain_thread"]
        ]
    )
    drain = reports[0]["drain_thread"]
    assert drain != process.pid
    assert Path(f"/proc/{process.pid}/task/{drain}").exists()
    assert not reports[0]["is_child"]
