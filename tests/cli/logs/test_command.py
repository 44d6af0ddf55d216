# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel logs``: selection, output, following, wrong usage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECORDS = [
    {"level": "INFO", "scope": "rollout", "step": 1, "reward_mean": 0.25, "role": "trainer"},
    {"level": "INFO", "scope": "ppo", "step": 1, "kl_div": 0.3, "role": "trainer"},
    {"level": "WARNING", "scope": "log", "logger": "x", "message": "a b", "role": "worker", "rank": 3},
    {"level": "DEBUG", "scope": "sample", "step": 2, "score": 1.0},
]


def lines(records, begin=0):
    return "".join(
        json.dumps({"timestamp": f"2026-11-24T00:00:{begin + place:02d}.000Z", **record}) + "\n"
        for place, record in enumerate(records)
    )


@pytest.fixture
def folder(runs):
    folder = runs / "r1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"run_id": "r1"}')
    (folder / "verl_logs.jsonl").write_text(lines(RECORDS) + '{"timestamp": "2026')
    return folder


def test_all_records_as_text(call, folder):
    """Without options every record of the newest run is a line; the process is named if it is not the trainer."""
    result = call("logs")
    assert result.code == 0
    assert result.out.splitlines() == [
        "2026-11-24 00:00:00 INFO    rollout    step 1    reward_mean=0.25",
        "2026-11-24 00:00:01 INFO    ppo        step 1    kl_div=0.3",
        '2026-11-24 00:00:02 WARNING log        -         [worker 3] logger=x message="a b"',
        "2026-11-24 00:00:03 DEBUG   sample     step 2    score=1",
    ]


@pytest.mark.parametrize(
    ("options", "scopes"),
    [
        (["--level", "warning"], ["log"]),
        (["--scope", "ppo", "--scope", "sample"], ["ppo", "sample"]),
        (["--where", "kl > 0.1"], ["ppo"]),
        (["--where", "step == 1", "--last", "1"], ["ppo"]),
    ],
)
def test_a_selection_as_json(call, folder, options, scopes):
    """Level, scope and condition select; JSON has the whole records."""
    result = call("logs", "r1", "--json", *options)
    assert [json.loads(line)["scope"] for line in result.out.splitlines()] == scopes


def test_nothing_matches(call, folder):
    """The exit code is 1."""
    assert call("logs", "r1", "--where", "kl > 5").code == 1


@pytest.mark.full
def test_following_shows_what_is_appended(folder):
    """New records of known and of new files are shown while the run goes on."""
    command = [Path(sys.executable).with_name("verl-otel"), "logs", folder, "--follow", "--level", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(3):
                process.stdout.readline()
            with (folder / "verl_logs.jsonl").open("a") as file:
                file.write('"}\n' + lines(RECORDS[:1], 30))
            assert "00:00:30 INFO    rollout" in process.stdout.readline()
            (folder / "verl_logs-agent-n-2.jsonl").write_text(lines(RECORDS[1:2], 40))
            assert "00:00:40 INFO    ppo" in process.stdout.readline()
        finally:
            process.terminate()
