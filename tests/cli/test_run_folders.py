# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run that is not found: the message says where it was searched for, what is there, and what to do."""

import os
import shlex

import pytest

from tests.builders import stories
from verl_otel.session import run_manifest


@pytest.fixture
def make_runs(runs):
    """Write small runs of these names, the first one the oldest."""

    def make(*names):
        for moment, name in enumerate(names, 1_000_000):
            os.utime(stories.training(runs / name, name).write(), (moment, moment))
        return runs

    return make


@pytest.mark.parametrize("command", ["report", "explain"])
def test_an_unknown_name_says_what_is_there(call, make_runs, command):
    """The folder that was searched, the number of runs and the newest, and a similar name."""
    folder = make_runs("alpha", "beta", "gamma")
    result = call(command, "nosuch")
    assert result.code == 2
    assert result.err == f"verl-otel: no run 'nosuch' in {folder} (3 runs, newest gamma; verl-otel runs lists them)\n"
    assert "did you mean alpha?" in call(command, "alhpa").err


def test_an_unknown_name_of_a_comparison(call, make_runs):
    """Compare says the same of each of its runs."""
    folder = make_runs("alpha")
    for arguments in (("alpha", "nosuch"), ("nosuch", "alpha")):
        result = call("compare", *arguments)
        assert (result.code, result.out) == (2, "")
        assert f"no run 'nosuch' in {folder} (1 run, alpha;" in result.err


def test_the_beginning_of_one_name_is_enough(call, make_runs):
    """The name is completed; a complete name is taken although another one begins with it."""
    make_runs("20261121-a", "20261121-b", "20261122", "20261122-x")
    assert call("report", "20261121-b").out.startswith("Run 20261121-b ")
    assert call("report", "20261122-").out.startswith("Run 20261122-x ")
    assert call("report", "20261122").out.startswith("Run 20261122 ")


def test_the_beginning_of_several_names_lists_them(call, make_runs):
    """Exit code 2, and all candidates; of many the newest ten."""
    folder = make_runs("20261121-a", "20261121-b", "20261122")
    result = call("report", "20261121")
    assert result.code == 2
    assert result.err == f"verl-otel: '20261121' is the beginning of 2 runs in {folder}: 20261121-b, 20261121-a\n"
    make_runs(*(f"many-{number:02d}" for number in range(12)))
    assert call("explain", "many").err.endswith("many-03, many-02 and 2 more\n")


def test_the_folder_of_several_runs(call, make_runs):
    """The runs in it are listed, the newest first."""
    folder = make_runs("alpha", "beta")
    result = call("report", folder)
    assert (result.code, result.err) == (2, f"verl-otel: {folder} is not a run; it holds 2 runs: beta, alpha\n")


def test_the_folder_of_one_run_has_the_command(call, make_runs):
    """The command to use is in the message; of a comparison only the folder, because the command has two."""
    folder = make_runs("alpha")
    assert call("explain", folder).err.endswith(f" holds one: verl-otel explain {folder / 'alpha'}\n")
    assert call("compare", folder, folder).err.endswith(f" holds one: {folder / 'alpha'}\n")


def test_a_printed_command_runs_in_a_shell(call, tmp_path):
    """The names of folders may have spaces and characters of the shell."""
    run = stories.training(tmp_path / "my runs; $HOME" / "alpha", "alpha").write()
    printed = [
        call(*words).err.partition("verl-otel: ")[2]
        for words in (["explain", run.parent], ["report", run / "run.json"], ["runs", run])
    ]
    for line, command in zip(printed, ("explain", "report", "report"), strict=True):
        assert shlex.join(["verl-otel", command, str(run)]) in line
    assert shlex.join(["verl-otel", "runs", str(run.parent)]) in printed[-1]


@pytest.mark.parametrize("pattern", ["traces-trainer-*.jsonl", "run.json"])
def test_a_file_of_a_run(call, make_runs, pattern):
    """The folder is what has to be given."""
    (path,) = (make_runs("alpha") / "alpha").glob(pattern)
    result = call("report", path)
    assert result.code == 2
    assert result.err == f"verl-otel: {path} is a file of a run: give the folder: verl-otel report {path.parent}\n"


def test_another_file(call, tmp_path):
    """A file that no run has is said to be a file."""
    (tmp_path / "notes.txt").write_text("")
    assert call("report", tmp_path / "notes.txt").err.endswith("notes.txt is a file: give the folder of a run\n")


def test_a_path_that_does_not_exist(call, make_runs, tmp_path):
    """What the folder has in which the run should be, if there is one."""
    folder = make_runs("alpha", "beta")
    missing = folder / "gamma"
    assert call("report", missing).err.startswith(
        f"verl-otel: {missing} does not exist; {folder} holds 2 runs, newest beta"
    )
    assert call("report", tmp_path / "a" / "b").err == f"verl-otel: {tmp_path / 'a' / 'b'} does not exist\n"


@pytest.mark.parametrize("command", ["report", "explain", "runs"])
def test_the_folder_of_a_stack(call, runs, tmp_path, command):
    """A stack's folder, which has a file traces.jsonl, is called what it is."""
    stack = tmp_path / "stack"
    (stack / "otelcol").mkdir(parents=True)
    for name in ("prometheus.yml", "traces.jsonl"):
        (stack / name).write_text("{}\n")
    result = call(command, stack)
    assert result.code == 2
    assert (
        result.err == f"verl-otel: {stack} is the data folder of a verl-otel stack, not of a run; runs are in {runs}\n"
    )


@pytest.mark.parametrize("command", ["report", "explain", "runs"])
def test_without_any_run_every_possible_reason_is_named(call, runs, command):
    """Where it was searched, and three reasons, because this shell shows none of them."""
    runs.mkdir()
    lines = call(command).err.splitlines()
    assert lines[0] == f"verl-otel: no run in {runs}. Possible reasons:"
    assert "VERL_OTEL_ENABLED=1" in lines[1]
    assert "the program did not use verl_otel" in lines[2]
    assert "VERL_OTEL_EXPORTERS" in lines[3]
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"VERL_OTEL_ENABLED": "0"}, "VERL_OTEL_ENABLED=0 is set here, which switches verl-otel off: set it to 1"),
        ({"VERL_OTEL_ENABLED": "1"}, "the program did not use verl_otel: verl-otel check says whether verl loads it"),
        ({"OTEL_SDK_DISABLED": "true"}, "OTEL_SDK_DISABLED=true is set here, which turns everything off"),
        (
            {"VERL_OTEL_EXPORTERS": "otlp"},
            "VERL_OTEL_EXPORTERS=otlp is set here, so that no files are written: it needs `file`",
        ),
    ],
)
def test_a_reason_that_the_environment_shows_is_the_one(call, runs, monkeypatch, variables, reason):
    """Only what applies is named."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = call("report", "r1")
    first, *reasons, _ = result.err.splitlines()
    assert result.code == 2
    assert first == f"verl-otel: no run in {runs}, which does not exist. Possible reasons:"
    assert reasons == [f"  {reason}"]


def test_a_run_that_was_sent_says_where_it_went(call, runs, monkeypatch):
    """A run without the exporter `file` is none of the list, and the message names its exporters and endpoint, without a password."""
    run_manifest.note_destination(runs / "r1", ("otlp", "prometheus"), "http://me:secret@host:4318")
    for arguments in (("report",), ("explain",), ("report", runs / "r1")):
        result = call(*arguments)
        assert result.code == 2
        assert (
            "run r1 wrote no files: its VERL_OTEL_EXPORTERS was otlp,prometheus, to http://***@host:4318." in result.err
        )
        assert "verl-otel report --otlp FILE" in result.err
        assert "secret" not in result.err
    (runs / "r1" / run_manifest.DESTINATION).write_text("{")
    assert "Possible reasons:" in call("report").err


@pytest.mark.parametrize("place", ["runs", "."])
def test_runs_beside_the_user_are_named(call, tmp_path, monkeypatch, place):
    """Where the folder of the settings has none, runs in ./runs or here are those that are meant."""
    here = tmp_path / "here"
    stories.training(here / place / "r1").write()
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path / "empty"))
    monkeypatch.chdir(here)
    result = call("explain")
    assert result.code == 2
    assert f"1 run is here: export VERL_OTEL_RUN_DIR={(here / place).resolve()}" in result.err


def test_view_says_what_is_meant_by_a_wrong_name(call, runs):
    """As the other commands."""
    stories.training(runs / "r1").write()
    stories.training(runs / "r2").write()
    result = call("view", "r3")
    assert result.code == 2
    assert "no run 'r3'" in result.err
    assert "newest r2" in result.err
