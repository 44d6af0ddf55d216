# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How far the rollouts of a step are: groups as metrics, and a line of the log once a minute while the trainer waits."""

import json
from types import SimpleNamespace

import pytest

from verl_otel.integrations.verl import lineage, rollout_progress
from verl_otel.integrations.verl.rollout_progress import RolloutProgress
from verl_otel.recording.state import RECORDER
from verl_otel.watchdog.overdue import OpenSpanRow


class Buffer:
    """verl's replay buffer: polls until enough groups have finished. ``polls`` are pending, running and finished groups at each poll."""

    def __init__(self, *polls):
        self.polls = list(polls)
        self.pending_keys, self.running_keys, self.finished_keys, self.failure_keys = ({"train": ()} for _ in range(4))

    def _sync_metadata_from_transfer_queue(self):
        counts = self.polls.pop(0)
        for keys, count in zip((self.pending_keys, self.running_keys, self.finished_keys), counts, strict=True):
            keys["train"] = set(range(count))

    def sample(self, global_steps, partition_id, batch_size):
        while True:
            self._sync_metadata_from_transfer_queue()
            if len(self.finished_keys["train"]) >= batch_size:
                return SimpleNamespace(tags=[]), {}


@pytest.fixture
def lines(monkeypatch, caplog):
    """What was logged."""
    monkeypatch.setattr(rollout_progress, "_read_open_spans", lambda _folder: [])
    return lambda: [record.getMessage() for record in caplog.records if record.name == "verl_otel"]


def wait(progress, clock, *polls, step=1):
    """Wait for 8 groups; every poll is 30 s after the one before."""
    progress.begin(step, 8)
    buffer = Buffer(*polls)
    for _ in polls:
        for _ in progress.count(buffer, (), {}):
            buffer._sync_metadata_from_transfer_queue()
        clock[0] += 30
    progress.end()


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def progress(clock):
    return RolloutProgress(now=lambda: clock[0], run_later=lambda function: function())


def test_groups_are_counted_at_every_poll(recorded):
    """The gauges have the last poll, and what the trainer waits for."""
    buffer = Buffer((4, 4, 0), (0, 3, 5), (0, 0, 8))
    lineage.watch(buffer)
    buffer.sample(3, "train", 8)
    values = {state: recorded.value("verl.rollout.groups", verl_group_state=state) for state in rollout_progress.STATES}
    assert values == {"pending": 0, "running": 0, "finished": 8, "failure": 0}
    assert recorded.value("verl.rollout.groups.wanted") == 8


def test_a_line_a_minute_after_the_first(progress, clock, lines, recorded):
    """Nothing in the first minute, then a line each minute; without earlier steps the rest is estimated by the rate so far."""
    wait(progress, clock, (4, 4, 0), (2, 4, 2), (0, 4, 4), (0, 3, 5), (0, 2, 6))
    assert lines() == [
        "verl-otel: step 1 has waited 1 m 00 s for rollouts: 4 of 8 prompts finished, 4 running; about 1 m 00 s left at the rate so far",
        "verl-otel: step 1 has waited 2 m 00 s for rollouts: 6 of 8 prompts finished, 2 running; about 40.00 s left at the rate so far",
    ]


def test_running_prompts_without_a_trajectory_are_abandoned(progress, clock, lines, recorded, monkeypatch):
    """No process works on them any more."""
    monkeypatch.setattr(
        rollout_progress, "current_session", lambda: SimpleNamespace(config=SimpleNamespace(run_path=None))
    )
    wait(progress, clock, (0, 1, 7), (0, 1, 7), (0, 1, 7))
    assert lines()[0].endswith("no process works on the running prompts any more")


def test_the_steps_before_say_how_long_it_takes(progress, clock, lines, recorded):
    """With the median of earlier waits; a step that is over it is estimated by its rate, without the groups that were there before."""
    wait(progress, clock, (0, 0, 8), (0, 0, 8), (0, 0, 8))
    wait(progress, clock, (0, 8, 0), (0, 8, 0), (0, 8, 0), step=2)
    wait(progress, clock, *[(0, 4, 4)] * 3, (0, 2, 6), (0, 2, 6), step=3)
    left = [line.partition("; ")[2] for line in lines()]
    before = "about 30.00 s left, if it takes as long as the steps before"
    assert left == ["", before, before, "about 2 m 00 s left at the rate so far"]


def test_switched_off_there_is_no_line(progress, clock, lines, recorded, monkeypatch):
    monkeypatch.setattr(RECORDER, "verdict_lines", False)
    wait(progress, clock, *[(0, 4, 4)] * 9)
    assert lines() == []


def row(name, start, trace="t1", **attributes):
    return OpenSpanRow("agent_loop-3", trace, name, "", name, start, "", attributes, ())


def test_the_oldest_trajectory_is_named_with_what_it_does():
    """The trajectory that began first, whatever else began before it, and its innermost open span."""
    oldest, inner = rollout_progress.find_oldest(
        [
            row("verl.step", 1, "t0"),
            row("verl.trajectory", 7, "t2"),
            row("verl.trajectory", 5),
            row("verl.turn", 5),
            row("execute_tool search", 9),
            row("chat", 8, "t2"),
        ]
    )
    assert (oldest.start_ns, inner.name) == (5, "execute_tool search")
    assert rollout_progress.find_oldest([row("verl.step", 1)]) is None


def test_open_spans_are_read_from_the_files_of_the_run(tmp_path):
    """Of every process of this node; damaged files are left out."""
    span = {"traceId": "t", "spanId": "s", "name": "verl.trajectory", "startTimeUnixNano": "5"}
    (tmp_path / "open-agent_loop-node-7.jsonl").write_text(
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    )
    (tmp_path / "open-b-node-8.jsonl").write_text("{")
    assert [(one.process_name, one.name) for one in rollout_progress._read_open_spans(tmp_path)] == [
        ("agent_loop-node-7", "verl.trajectory")
    ]
