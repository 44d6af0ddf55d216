# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Findings as data and text: events that survive the monitor, logs of dead processes, and the causes in them."""

import json
import os

import pytest

from tests.watchdog.snapshots import SnapshotBuilder
from verl_otel.watchdog import diagnosis, messages


def test_an_event_is_one_line_and_is_read_by_the_next_monitor(tmp_path):
    """What was reported on this node and is not resolved; other nodes and damaged lines are passed over."""
    for kind, place, name in (
        ("stall", "here", "a"),
        ("crash", "here", "b"),
        ("stall", "there", "c"),
        ("stall", "here", "d"),
    ):
        messages.append_event(tmp_path, kind, "text\nof two lines", {"key": (kind, name, ""), "place": place})
    messages.append_event(tmp_path, "resolved", "", {"key": ("stall", "d", ""), "place": "here"})
    with (tmp_path / messages.EVENTS).open("ab") as file:
        file.write(b'{"kind": "stall"}\nhalf a li')
    lines = (tmp_path / messages.EVENTS).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines[:5]] == ["stall", "crash", "stall", "stall", "resolved"]
    assert messages.read_reported(tmp_path, "here") == [("stall", "a", ""), ("crash", "b", "")]
    assert messages.read_reported(tmp_path / "nowhere", "here") == []


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
    log = messages.read_log_tail([str(path), str(tmp_path / "missing")])
    assert len(log) == messages.LOG_LINES
    assert log[-1] == line
    assert messages.find_cause(log) == cause


def test_a_line_of_a_log_is_cut(tmp_path):
    """A log without an end of line does not make a line without an end."""
    path = tmp_path / "worker.err"
    path.write_bytes(b"\xff" * 100_000)
    (line,) = messages.read_log_tail([str(path)])
    assert len(line) == messages.MAX_LINE


def test_a_crash_names_some_of_many_trajectories():
    """Five by name and the number of all, in one line."""
    builder = SnapshotBuilder().process("agent-0", state="died")
    for index in range(9):
        builder.open(
            "agent-0", "verl.trajectory", 20 - index, **{"verl.sample.uid": "a" * 40, "verl.rollout.index": index}
        )
    snapshot = builder.build()
    text = messages.format_incident(snapshot, diagnosis.find(snapshot)[0], None, "out of memory")
    assert "died holding 9 trajectories" in text
    assert text.count("/") == 5
    assert text.endswith("…): out of memory")
    assert "\n" not in text


def test_a_uid_is_shown_short():
    """A UUID by its first eight digits."""
    builder = SnapshotBuilder().process("agent-0")
    uid = "0f3c2a11-aaaa-bbbb-cccc-0123456789ab"
    row = builder.open("agent-0", "verl.trajectory", 1, **{"verl.sample.uid": uid, "verl.rollout.index": 3})
    assert messages.trajectory_label(row) == "0f3c2a11/3"


def test_the_file_of_events_is_bounded(tmp_path, monkeypatch):
    """What would make it larger is left out."""
    monkeypatch.setattr(messages, "MAX_EVENTS", 1000)
    for _ in range(100):
        messages.append_event(tmp_path, "stall", "text", {"key": ("stall", "a", ""), "place": "here"})
    assert 800 < (tmp_path / messages.EVENTS).stat().st_size <= 1000


def test_the_last_lines_of_a_log_are_kept_without_secrets(tmp_path):
    """They are stored in events.jsonl: what is named or shaped like a secret is masked, a FIFO is not waited for."""
    (tmp_path / "log").write_text(
        "export HF_TOKEN=s3cret\nRuntimeError: CUDA error: x\nGET https://me:s3cret@host/a?sig=s3cret\n"
    )
    os.mkfifo(tmp_path / "fifo")
    lines = messages.read_log_tail([str(tmp_path / "fifo"), str(tmp_path / "log"), "a\0b"])
    assert "s3cret" not in " ".join(lines)
    assert lines[1] == "RuntimeError: CUDA error: x"
    assert messages.find_cause(lines)
