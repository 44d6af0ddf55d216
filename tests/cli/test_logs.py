# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel logs``: selection, conditions, output, following."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verl_otel.cli.logs import parse_condition
from verl_otel.errors import VerlOtelError

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
        "2026-11-24 00:00:00Z INFO    rollout    step 1    reward_mean=0.25",
        "2026-11-24 00:00:01Z INFO    ppo        step 1    kl_div=0.3",
        '2026-11-24 00:00:02Z WARNING log        -         [worker 3] logger=x message="a b"',
        "2026-11-24 00:00:03Z DEBUG   sample     step 2    score=1",
    ]


@pytest.mark.parametrize(
    ("options", "scopes"),
    [
        (["--level", "warning"], ["log"]),
        (["--scope", "ppo", "--scope", "sample"], ["ppo", "sample"]),
        (["--where", "kl > 0.1"], ["ppo"]),
        (["--where", "step == 1", "--last", "1"], ["ppo"]),
        (["--where", "step == 1", "--where", "reward > 0"], ["rollout"]),
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
            assert "00:00:30Z INFO    rollout" in process.stdout.readline()
            (folder / "verl_logs-agent-n-2.jsonl").write_text(lines(RECORDS[1:2], 40))
            assert "00:00:40Z INFO    ppo" in process.stdout.readline()
        finally:
            process.terminate()


RECORD = {
    "scope": "ppo",
    "step": 12,
    "kl_div": 0.2,
    "grad_norm": "nan",
    "largest": "inf",
    "actor/pg_loss": -0.1,
    "name": "a b",
    "done": True,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("kl > 0.1", True),
        ("kl > -1e-3", True),
        ("kl_div>=0.2", True),
        ("step < 2", False),
        ("actor/pg_loss < 0", True),
        ("scope == ppo", True),
        ("scope != 'ppo'", False),
        ('name = "a b"', True),
        ("grad_norm == nan", True),
        ("grad_norm > 1", False),
        ("kl == nan", False),
        ("largest > 1", True),
        ("missing > 1", False),
        ("missing != 1", False),
        ("scope > 1", False),
        ("done == true", True),
    ],
)
def test_what_holds(text, holds):
    """Numbers compare as numbers, texts as texts; a missing field matches nothing, and a number and a text have no order."""
    assert parse_condition(text)(RECORD) is holds


@pytest.mark.parametrize("text", ["kl >", "> 1", "kl", "kl ! 1", "kl > 1 or step = 2", "(kl > 1)", "not kl > 1", ""])
def test_another_form_is_refused_with_the_form(text):
    with pytest.raises(VerlOtelError, match=r"--where 'kl > 0\.1'; repeat --where in place of 'and'"):
        parse_condition(text)


def test_a_scope_that_is_not_there_comes_with_those_that_are(call, folder):
    """And a field that is not there comes with the names of the fields, those of each record first."""
    assert "scopes of the run: log, ppo, rollout, sample" in call("logs", folder, "--scope", "nothing").err
    assert re.search(r"fields of the records: level, .*step", call("logs", folder, "--where", "stp == 3").err)
