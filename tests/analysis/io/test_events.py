# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the black box has written down of a run."""

import json

from tests.builders import stories
from verl_otel.analysis import summary
from verl_otel.analysis.io import run_files


def explain(folder):
    return summary.explain([folder])


def test_events_of_the_run_are_read(story):
    """Stalls and crashes that were found while it ran are there in the order of time; damaged lines are named."""
    stories.step(story.process(), 1, 0, 10)
    folder = story.write()
    lines = [
        json.dumps({"kind": kind, "time_ns": stories.at(when), "text": f"{kind}!", "detail": {"pid": 7}})
        for kind, when in (("crash", 9), ("stall", 5))
    ]
    (folder / "events.jsonl").write_text("\n".join([*lines, "garbage", '{"kind": "stall"}', ""]))
    run = explain(folder)
    assert [(event.kind, event.text, event.detail) for event in run.events] == [
        ("stall", "stall!", {"pid": 7}),
        ("crash", "crash!", {"pid": 7}),
    ]
    assert [problem.partition(" (")[0] for problem in run.problems if ".jsonl" in problem] == [
        "events.jsonl line 3 cannot be read",
        "events.jsonl line 4 cannot be read",
    ]


def test_what_went_on_says_so(tmp_path):
    """A stall that was over is told as one thing; the same hangs again, which is another; what began before the file is left out."""
    lines = [
        {"kind": "resolved", "time_ns": 0, "text": "resolved: x", "detail": {"key": ["stall", "other"]}},
        {"kind": "stall", "time_ns": 10**9, "text": "STALL in tool", "detail": {"key": ["stall", "a"]}},
        {"kind": "crash", "time_ns": 2 * 10**9, "text": "CRASH worker died", "detail": {"key": ["crash", "b"]}},
        {"kind": "resolved", "time_ns": 35 * 10**9, "text": "resolved: goes on", "detail": {"key": ["stall", "a"]}},
        {"kind": "stall", "time_ns": 60 * 10**9, "text": "STALL in tool", "detail": {"key": ["stall", "a"]}},
        {"kind": "resolved", "time_ns": 70 * 10**9, "text": "superseded", "detail": {"key": ["stall", "a"]}},
    ]
    (tmp_path / run_files.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    problems = []
    assert [event.text for event in run_files.read_events([tmp_path], problems)] == [
        "in tool; it went on 34 s later",
        "worker died",
        "in tool",
    ]
    assert not problems
