# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Findings as data and words: events that survive the watcher, logs of dead processes, what of them names a cause."""

import json
import sys
from pathlib import Path

import pytest

from verl_otel.session.black_box import culprits, records

sys.path.insert(0, str(Path(__file__).parent))
from black_box_scenes import Story


def test_an_event_is_one_line_and_is_read_by_the_next_watcher(tmp_path):
    """What was reported on this node and is not resolved; other nodes and damaged lines are passed over."""
    for kind, place, name in (
        ("stall", "here", "a"),
        ("crash", "here", "b"),
        ("stall", "there", "c"),
        ("stall", "here", "d"),
    ):
        records.append(tmp_path, kind, "text\nof two lines", {"key": (kind, name, ""), "place": place})
    records.append(tmp_path, "resolved", "", {"key": ("stall", "d", ""), "place": "here"})
    with (tmp_path / records.EVENTS).open("ab") as file:
        file.write(b'{"kind": "stall"}\nhalf a li')
    lines = (tmp_path / records.EVENTS).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines[:5]] == ["stall", "crash", "stall", "stall", "resolved"]
    assert records.read_reported(tmp_path, "here") == [("stall", "a", ""), ("crash", "b", "")]
    assert records.read_reported(tmp_path / "nowhere", "here") == []


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
    log = records.read_log([str(path), str(tmp_path / "missing")])
    assert len(log) == records.LOG_LINES
    assert log[-1] == line
    assert records.find_cause(log) == cause


def test_a_line_of_a_log_is_cut(tmp_path):
    """A log without an end of line does not make a line without an end."""
    path = tmp_path / "worker.err"
    path.write_bytes(b"\xff" * 100_000)
    (line,) = records.read_log([str(path)])
    assert len(line) == records.MAX_LINE


def test_a_crash_names_some_of_many_trajectories():
    """Five by name and the number of all, in one line."""
    story = Story().process("agent-0", state="died")
    for index in range(9):
        story.open(
            "agent-0", "verl.trajectory", 20 - index, **{"verl.sample.uid": "a" * 40, "verl.rollout.index": index}
        )
    scene = story.scene()
    text = records.tell(scene, culprits.find(scene)[0], None, "out of memory")
    assert "died holding 9 trajectories" in text
    assert text.count("/") == 5
    assert text.endswith("…): out of memory")
    assert "\n" not in text


def test_a_uid_is_shown_short():
    """A UUID by its first eight digits."""
    story = Story().process("agent-0")
    uid = "0f3c2a11-aaaa-bbbb-cccc-0123456789ab"
    row = story.open("agent-0", "verl.trajectory", 1, **{"verl.sample.uid": uid, "verl.rollout.index": 3})
    assert records.label(row) == "0f3c2a11/3"


def test_the_file_of_events_is_bounded(tmp_path, monkeypatch):
    """What would make it larger is left out."""
    monkeypatch.setattr(records, "MAX_EVENTS", 1000)
    for _ in range(100):
        records.append(tmp_path, "stall", "text", {"key": ("stall", "a", ""), "place": "here"})
    assert 800 < (tmp_path / records.EVENTS).stat().st_size <= 1000
