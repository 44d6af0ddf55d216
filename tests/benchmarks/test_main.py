# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The command."""

import json
from dataclasses import replace

import pytest

from benchmarks import results as files
from benchmarks.__main__ import main
from tests.benchmarks.benchmarks_found import measured, results


def test_a_case_is_run_and_written(tmp_path, capsys):
    """A real one: the table on stdout, what is being done on stderr, everything in the file."""
    path = tmp_path / "found.json"
    assert main(["run", "--only", "off-metrics", "--processes", "2", "--rounds", "3", "--json", str(path)]) == 0
    said = capsys.readouterr()
    assert "| switched off, metrics only |" in said.out
    assert "process 2 of 2, case 1 of 1: off-metrics" in said.err
    found = files.read(path)
    assert (found.processes, found.rounds, found.quick) == (2, 3, False)
    assert found.machine["python"].startswith("CPython 3.")
    assert len(found.cases[0].overheads["verl_otel"].values) == 2
    assert main(["table", str(path), "--details"]) == 0
    assert "### `off-metrics`" in capsys.readouterr().out


def test_a_broken_promise_is_an_exit_code(monkeypatch, capsys):
    """Only when it is asked for: a noisy machine breaks promises, too."""
    from benchmarks import __main__ as command

    monkeypatch.setattr(command, "_measure", lambda *words, **more: results([measured(1000, 1100)] * 3))
    assert main(["run", "--only", "off-metrics"]) == 0
    assert main(["run", "--only", "off-metrics", "--strict"]) == 1
    assert "not met" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--only", "nothing"], "no case nothing; there are: "),
        (["table", "no/such/file"], "file is no result of the benchmarks"),
    ],
)
def test_a_mistake_is_told(words, said, capsys):
    """In one line, with exit code 2."""
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_two_files_are_compared(tmp_path, capsys):
    """By their paths."""
    for name, ours in (("a", 100), ("b", 200)):
        files.write(results([measured(ours, 1000)] * 9), tmp_path / f"{name}.json")
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "+100% slower" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == 1


def test_what_was_found_besides_is_printed(monkeypatch, capsys):
    """A case with a null test has more to say than its promises: the pairs, in words."""
    from benchmarks import __main__ as command

    found = results([measured(100, 1000)] * 9)
    changed = replace(found.cases[0], null="peer", shares={"verl_otel": (0.01,) * 9, "peer": (0.0,) * 9})
    monkeypatch.setattr(command, "_measure", lambda *words, **more: replace(found, cases=(changed,)))
    assert main(["run", "--only", "off-metrics"]) == 0
    said = capsys.readouterr().out
    assert "| a call |" in said
    assert "verl_otel: slower by 1.0% at most" in said
