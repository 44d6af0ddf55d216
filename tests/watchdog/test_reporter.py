# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The reports of a finding: text and data, logs of dead processes, targets and frequency, and what the monitors of other nodes add."""

import json
import logging
import os
import signal
import threading
import time

import pytest

from tests.fakes.http_server import HttpServer
from tests.watchdog.snapshots import SnapshotBuilder
from verl_otel import config
from verl_otel.recording.duration_stats import DurationStats
from verl_otel.watchdog import cluster_backend, diagnosis, event_file, overdue
from verl_otel.watchdog import reporter as reporter_module
from verl_otel.watchdog.event_loops import LoopWatcher
from verl_otel.watchdog.process_table import ProcessStatus
from verl_otel.watchdog.reporter import Reporter


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
    settings = config.load_config({}, run_dir=tmp_path, run_id="r1")
    settings.run_path.mkdir(parents=True)
    return Reporter(settings, "here")


@pytest.fixture
def notifying(tmp_path):
    """A reporter that sends notifications."""

    def begin(target):
        settings = config.load_config({}, run_dir=tmp_path, run_id="r1", on_stall=target)
        settings.run_path.mkdir(parents=True)
        return Reporter(settings, "here")

    return begin


@pytest.fixture
def set_backend(monkeypatch):
    """Set the cluster backend."""

    def begin(cluster):
        monkeypatch.setattr(cluster_backend._Current, "backend", cluster)
        return cluster

    return begin


@pytest.fixture
def call():
    """A trainer that waits in a call whose ranks are on another node."""
    builder = SnapshotBuilder(100).process("trainer-0", "trainer")
    step = builder.open("trainer-0", "verl.step", 200)
    builder.open("trainer-0", "verl.call update_actor", 150, step, **{"verl.world_size": 2})
    snapshot = builder.build()
    (finding,) = diagnosis.find(snapshot)
    return snapshot, finding


REMOTE_FINDING = {
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


def test_the_culprit_of_another_node_is_named_with_who_waits_here(reporter, set_backend, call, caplog):
    """The trainer's node knows who waits, the other one why: one line has both."""
    snapshot, finding = call
    set_backend(Cluster([{"place": "there", "time": time.time(), "findings": [REMOTE_FINDING]}]))
    assert not reporter.awaits_cluster(finding, snapshot, 0.0)
    reporter.report(snapshot, finding, None, {})
    (event,) = events(reporter)
    assert event["detail"]["culprit"] == REMOTE_FINDING["culprit"]
    assert [row["span"] for row in event["detail"]["waiting"]] == ["verl.call update_actor", "verl.step"]
    (line,) = caplog.messages
    assert line.startswith("verl-otel: STALL rank-9 (pid 7, node2) is frozen")
    assert "trainer-0 waits in verl.call update_actor for 150 s" in line


FORGED = "verl.step\nverl-otel: CRASH trainer-1 died\x1b[2J\u202e" + "x" * 5_000


def test_names_cannot_forge_lines_of_the_log(reporter, set_backend, call, caplog):
    """Names of spans and hosts, of this node and of others, stand in one bounded line of the log, without what a terminal obeys."""
    builder = SnapshotBuilder(100).process("trainer-0\n\x1b[1m", "trainer")
    builder.open("trainer-0\n\x1b[1m", FORGED, 200, **{"verl.step_number": 1})
    snapshot = builder.build()
    (_, remote_finding) = call
    (row,) = snapshot.rows.values()
    for finding in (
        remote_finding._replace(row=row, process_name=row.process_name, waiting=(row,)),
        remote_finding._replace(reason="died", row=row),
    ):
        reporter.report(snapshot, finding, None, {})
        reporter.repeat(snapshot, finding, None)
        reporter.resolve(finding, 1.0)
    set_backend(Cluster([{"place": "there", "time": time.time(), "findings": [{**REMOTE_FINDING, "text": FORGED}]}]))
    assert not reporter.awaits_cluster(remote_finding, call[0], 0.0)
    reporter.report(call[0], remote_finding, None, {})
    assert len(caplog.messages) >= 5
    for text in (*caplog.messages, *(event["text"] for event in events(reporter))):
        assert not {"\n", "\x1b", "\u202e"} & set(text)
        assert len(text) < 5_000


def test_a_report_waits_for_other_nodes_but_not_for_ever(reporter, set_backend, call):
    """Nobody has spoken yet: a few seconds; an old note is no answer; without a cluster at once."""
    snapshot, finding = call
    assert not reporter.awaits_cluster(finding, snapshot, 0.0)
    set_backend(Cluster([{"place": "there", "time": time.time() - 600, "findings": [REMOTE_FINDING]}]))
    assert reporter.awaits_cluster(finding, snapshot, 0.0)
    assert not reporter.awaits_cluster(finding, snapshot, reporter_module.CLUSTER_SECONDS)


def test_a_note_is_put_while_something_hangs_and_taken_away_after(reporter, set_backend, call):
    """Other nodes read what hangs here, until it is resolved."""
    snapshot, finding = call
    cluster = set_backend(Cluster())
    reporter.publish()
    assert not cluster.notes
    reporter.report(snapshot, finding, None, {})
    reporter.publish()
    (note,) = cluster.notes["here"]["findings"]
    assert note["culprit"]["span"] == "verl.call update_actor"
    reporter.resolve(finding, 12.0)
    reporter.publish()
    assert cluster.notes["here"] is None
    assert [event["kind"] for event in events(reporter)] == ["stall", "resolved"]


def test_a_node_that_dies_does_not_fill_the_log(reporter, call, caplog):
    """Many findings at once: all of them in the file, a few lines in the log."""
    snapshot, finding = call
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            reporter.report(snapshot, finding, None, {})
    assert len(events(reporter)) == 40
    assert len(caplog.messages) == reporter_module.MAX_LINES


def test_what_several_ranks_find_is_one_line_of_the_log(reporter, caplog):
    """All ranks wait in the same phase, two tools hang in processes that are no ranks: each is an event, the ranks get one line."""
    builder = SnapshotBuilder(100)
    for number in range(3):
        builder.process(f"process-{number}", "process", rank=number)
        builder.open(f"process-{number}", "verl.phase.update", 200)
    for number in range(2):
        builder.process(f"agent_loop-{number}")
        builder.open(f"agent_loop-{number}", "execute_tool search", 200)
    snapshot = builder.build()
    found = diagnosis.find(snapshot)
    for finding in found:
        reporter.report(snapshot, finding, None, {})
    for finding in found:
        reporter.resolve(finding, 10.0)
    groups = [event["detail"].get("group") for event in events(reporter) if event["kind"] == "stall"]
    assert sorted(groups) == ["", "", *["overdue process verl.phase.update"] * 3]
    assert sum("verl.phase.update has been open" in line for line in caplog.messages) == 1
    assert sum("execute_tool search of" in line or "execute_tool search has" in line for line in caplog.messages) == 2
    assert sum("resolved" in line for line in caplog.messages) == 3


def test_a_folder_that_cannot_be_written_costs_the_events_and_no_line(reporter, call, caplog):
    """The line of the log comes all the same, and says once that the file does not."""
    snapshot, finding = call
    reporter._run_path.rmdir()
    reporter.report(snapshot, finding, None, {})
    reporter.report(snapshot, finding, None, {})
    assert len([line for line in caplog.messages if "STALL" in line]) == 2
    assert len([line for line in caplog.messages if "cannot write" in line]) == 1


def test_a_web_address_gets_a_stall_and_its_end(notifying, call, wait_for):
    """It gets the line of the log, what is meant, and the next command; no log lines and no stacks."""
    calls = []
    with HttpServer(lambda request: calls.append(request) or 200) as server:
        reporter = notifying(f"http://{server.address}/hook")
        reporter.report(*call, None, {"1": "stacks.txt"})
        wait_for(lambda: calls)
        reporter.resolve(call[1], 3.0)
        wait_for(lambda: len(calls) == 2)
    stall, resolved = (json.loads(request.body) for request in calls)
    assert (calls[0].path, calls[0].headers["content-type"]) == ("/hook", "application/json")
    assert (stall["kind"], resolved["kind"]) == ("stall", "resolved")
    assert stall["text"].startswith("verl-otel: STALL")
    assert stall.keys() == {"kind", "text", "time", "run_id", "folder", "next", "culprit"}
    assert (stall["run_id"], stall["next"]) == ("r1", "verl-otel explain r1 --events")


@pytest.mark.full
def test_a_command_gets_the_event(notifying, call, tmp_path, wait_for):
    """As JSON on its standard input."""
    reporter = notifying(f"sh -c 'cat > {tmp_path}/event'")
    reporter.report(*call, None, {})
    wait_for(lambda: (tmp_path / "event").exists() and (tmp_path / "event").read_text().endswith("}"))
    assert json.loads((tmp_path / "event").read_text())["kind"] == "stall"


@pytest.mark.parametrize(
    "target",
    ["no-such-command-of-mine", "http://127.0.0.1:1/s3cret", "http://a:s3cret@127.0.0.1:x/", "http://h/a s3cret", "'"],
)
def test_a_notification_that_fails_costs_a_line(notifying, call, target, caplog, wait_for):
    """The report is made; the line does not hold the address."""
    notifying(target).report(*call, None, {})
    wait_for(lambda: any("VERL_OTEL_ON_STALL failed" in line for line in caplog.messages))
    assert "s3cret" not in caplog.text


def test_few_are_sent(notifying, call, wait_for):
    """With a node all its processes die: a notification is sent of the first ones."""
    calls = []
    with HttpServer(lambda request: calls.append(request) or 200) as server:
        reporter = notifying(f"http://{server.address}/")
        for _ in range(20):
            reporter.report(*call, None, {})
        wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "verl-otel-notify"])
    assert len(calls) == reporter_module.MAX_SENT


def test_an_event_is_one_line_and_is_read_by_the_next_monitor(tmp_path):
    """What was reported on this node and is not resolved; other nodes and damaged lines are passed over."""
    for kind, place, name in (
        ("stall", "here", "a"),
        ("crash", "here", "b"),
        ("stall", "there", "c"),
        ("stall", "here", "d"),
    ):
        event_file.append_event(tmp_path, kind, "text\nof two lines", {"key": (kind, name, ""), "place": place})
    event_file.append_event(tmp_path, "resolved", "", {"key": ("stall", "d", ""), "place": "here"})
    with (tmp_path / event_file.NAME).open("ab") as file:
        file.write(b'{"kind": "stall"}\nhalf a li')
    lines = (tmp_path / event_file.NAME).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines[:5]] == ["stall", "crash", "stall", "stall", "resolved"]
    assert event_file.read_reported(tmp_path, "here") == [("stall", "a", ""), ("crash", "b", "")]
    assert event_file.read_reported(tmp_path / "nowhere", "here") == []


def test_a_monitor_that_takes_over_knows_what_hung(tmp_path):
    """Of this node, with what was usual then: the first report of a name holds, and what is damaged is left out."""
    for place, culprit in (
        ("here", {"span": "chat", "age": 13.0, "longest_peer": 2.0}),
        ("here", {"span": "verl.generate", "age": 9.0, "longest_peer": 20.0}),
        ("here", {"span": "chat", "age": 40.0}),
        ("there", {"span": "verl.reward", "age": 13.0}),
        ("here", {"span": "verl.step"}),
    ):
        event_file.append_event(tmp_path, "stall", "", {"place": place, "key": ["stall", "a", ""], "culprit": culprit})
    hung = overdue.HungWork()
    hung.restore(event_file.read_hung(tmp_path, "here"))
    hung.restore({"chat": 99.0})
    peers = {name: DurationStats(2, (25.0, 15.0)) for name in ("chat", "verl.generate", "verl.reward")}
    found = {name: stats.top for name, stats in hung.leave_out(peers).items()}
    assert found == {"verl.generate": (15.0,), "verl.reward": (25.0, 15.0)}


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91)", "NCCL time-out"),
        ("RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms", "gloo time-out"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of GPU memory"),
        ("Fatal Python error: Segmentation fault", "segmentation fault"),
        ("step 3 done", ""),
    ],
)
def test_the_last_lines_of_a_log_may_name_the_cause(tmp_path, line, cause):
    """The words that libraries use for their end."""
    path = tmp_path / "worker.err"
    path.write_text("x" * 100_000 + "\n" + "line\n" * 50 + line + "\n")
    log = reporter_module.read_log_tail([str(path), str(tmp_path / "missing")])
    assert len(log) == reporter_module.LOG_LINES
    assert log[-1] == line
    assert reporter_module.find_cause(log) == cause


def test_a_line_of_a_log_is_cut(tmp_path):
    """A log without an end of line does not make a line without an end."""
    path = tmp_path / "worker.err"
    path.write_bytes(b"\xff" * 100_000)
    (line,) = reporter_module.read_log_tail([str(path)])
    assert len(line) == reporter_module.MAX_LOG_LINE


def test_a_crash_names_some_of_many_trajectories():
    """Five by name, a UUID by its first eight digits, and the number of all, in one line."""
    builder = SnapshotBuilder().process("agent-0", state="died")
    uid = "0f3c2a11-aaaa-bbbb-cccc-0123456789ab"
    for index in range(9):
        builder.open("agent-0", "verl.trajectory", 20 - index, **{"verl.sample.uid": uid, "verl.rollout.index": index})
    snapshot = builder.build()
    text = reporter_module.format_incident(snapshot, diagnosis.find(snapshot)[0], None, "out of memory")
    assert "died holding 9 trajectories" in text
    assert text.count("0f3c2a11/") == text.count("/") == 5
    assert text.endswith("…): out of memory")
    assert "\n" not in text


def test_the_file_of_events_is_bounded(tmp_path, monkeypatch):
    """What would make it larger is left out."""
    monkeypatch.setattr(event_file, "MAX_BYTES", 1000)
    for _ in range(100):
        event_file.append_event(tmp_path, "stall", "text", {"key": ("stall", "a", ""), "place": "here"})
    assert 800 < (tmp_path / event_file.NAME).stat().st_size <= 1000


TRACEBACK = """[prompt] SECRET What is 2 + 2?
WARNING:root:SECRET
Traceback (most recent call last):
  File "/opt/job/train.py", line 7, in <module>
    main("SECRET")
    ~~~~^^^^^^^^^^
  File "/opt/job/reward.py", line 31, in Judge.score
    raise ValueError(f"no answer in {text}")
my.errors.ScoreError: SECRET
SECRET: second line
  File "SECRET text", line 1, in x
Stack (most recent call last):
  File "/opt/job/train.py", line 8, in log
SECRET: what logging.warning(stack_info=True) is followed by

During handling of the above exception, another exception occurred:

  + Exception Group Traceback (most recent call last):
  |   File "/opt/job/train.py", line 9, in run
  | ExceptionGroup: SECRET (1 sub-exception)
KeyboardInterrupt SECRET
Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/opt/job/train.py", line 12 in wait
SECRET
"""


def test_no_text_of_a_log_is_kept_without_content(tmp_path):
    """Frames, with short names of files, and types of exceptions remain; prints, messages and lines of source code do not."""
    (tmp_path / "log").write_text(TRACEBACK)
    note, *lines = reporter_module.read_frames([str(tmp_path / "log"), str(tmp_path / "missing")])
    assert "VERL_OTEL_CAPTURE_CONTENT=1" in note
    assert lines == [
        '  File "job/train.py", line 7, in <module>',
        '  File "job/reward.py", line 31, in Judge.score',
        "my.errors.ScoreError",
        '  File "job/train.py", line 8, in log',
        '  File "job/train.py", line 9, in run',
        "ExceptionGroup",
        "Fatal Python error: Segmentation fault",
        '  File "job/train.py", line 12 in wait',
    ]
    (tmp_path / "empty").touch()
    assert reporter_module.read_frames([str(tmp_path / "empty")]) == []


@pytest.mark.parametrize("content", [False, True])
def test_an_event_has_the_text_of_a_log_only_when_asked_for(tmp_path, content):
    """The cause is found in the whole text in both cases."""
    builder = SnapshotBuilder().process("agent-0", state="died")
    builder.open("agent-0", "verl.trajectory", 20)
    snapshot = builder.build()
    (tmp_path / "log").write_text("[prompt] SECRET\nRuntimeError: CUDA error: SECRET\n")
    report = snapshot.reports["agent-0"]._replace(outputs=(str(tmp_path / "log"),))
    settings = config.load_config({}, run_dir=tmp_path, run_id="r1", capture_content=content)
    settings.run_path.mkdir(parents=True)
    reporter = Reporter(settings, "here")
    reporter.report(snapshot, diagnosis.find(snapshot)[0], ProcessStatus(report, (0, 0, 0)), {})
    text = (settings.run_path / event_file.NAME).read_text()
    assert ("SECRET" in text) == content
    assert json.loads(text)["detail"]["cause"] == "CUDA error"


def test_the_last_lines_of_a_log_are_kept_without_secrets(tmp_path):
    """With content they are stored in events.jsonl: what is named or shaped like a secret is masked, a FIFO is not waited for."""
    (tmp_path / "log").write_text(
        "export HF_TOKEN=s3cret\nRuntimeError: CUDA error: x\nGET https://me:s3cret@host/a?sig=s3cret\n"
    )
    os.mkfifo(tmp_path / "fifo")
    lines = reporter_module.read_log_tail([str(tmp_path / "fifo"), str(tmp_path / "log"), "a\0b"])
    assert "s3cret" not in " ".join(lines)
    assert lines[1] == "RuntimeError: CUDA error: x"
    assert reporter_module.find_cause(lines)


class Child:
    """A child of `multiprocessing`, and its own handle."""

    def __init__(self, name, pid):
        self.name, self.pid, self.returncode, self._popen = name, pid, None, self


def test_a_worker_of_a_pool_that_died_is_a_crash(recorded, tmp_path, reporter, monkeypatch, caplog):
    """A pool forgets it at once. What the pool ends by SIGTERM, and other children, are none; only the first three are reported."""
    killed, ended, other = Child("ForkPoolWorker-1", 11), Child("ForkPoolWorker-2", 12), Child("Process-3", 13)
    children = {killed, ended, other}
    monkeypatch.setattr("multiprocessing.process._children", children)
    watcher = LoopWatcher(lambda: False, note_death=lambda pid, end: reporter.report_worker("trainer-0", pid, end))
    watcher.check(0.0, 0.0)
    killed.returncode, ended.returncode, other.returncode = -signal.SIGKILL, -signal.SIGTERM, -signal.SIGKILL
    children.clear()
    for seconds in (0.25, 0.5):
        watcher.check(seconds, 0.0)
    path = tmp_path / "r1" / event_file.NAME
    (event,) = map(json.loads, path.read_text().splitlines())
    text = "CRASH process 11, a worker of a pool of trainer-0, was killed by SIGKILL: its pool never returns what it worked on"
    assert (event["kind"], event["text"], event["detail"]["culprit"]["pid"]) == ("crash", text, 11)
    assert text in caplog.text
    for number in range(5):
        reporter.report_worker("trainer-0", number, "was killed by SIGKILL")
    assert len(path.read_text().splitlines()) == 3
