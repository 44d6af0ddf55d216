# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong values of every option of every command: exit code 1 or 2 with a message, and no traceback.

No value names a place outside of the folder of the test: the commands write files.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
from importlib import import_module

import pytest

from tests.builders import stories
from verl_otel.cli import COMMANDS, main
from verl_otel.cli.page import document

NUMBERS = ("", "-1", "nan", "9" * 5000, "\udcff", "0x10")
PATHS = ("x" * 5000, "file/below", "\udcff/nothing", "~no-such-user-anywhere/x")
NAMES = ("x" * 5000, "\udcff", "../x")
HOSTS = ("x" * 300, "\udcff", "256.256.256.256.256", "a..b", "no such host")
ADDRESSES = ("x" * 300, "\udcff", ":::", "127.0.0.1:99999", "http://127.0.0.1:1", "127.0.0.1:x")
SERVE = ("discover", "--local", "--serve", "--host", "256.256.256.256.256")
STACK = ("stack", "--data", "stack", "--run-dir", "runs", "--otelcol", "nothing")
HERE = ("collect", "r1", "--address", "127.0.0.1:1")

CASES = {
    ("demo", "NAME"): (("demo",), NAMES),
    ("demo", "--html"): (("demo", "--html"), ("x" * 5000, "file/below", "\udcff/nothing", ".", "fifo")),
    ("demo", "--keep"): (("demo", "--keep"), ("x" * 5000, "file", "file/below")),
    ("report", "RUN"): (("report",), PATHS + NAMES),
    ("report", "--html"): (("report", "r1", "--html"), ("x" * 5000, "file/below", "\udcff/nothing", ".", "fifo")),
    ("report", "--slowest"): (("report", "r1", "--slowest"), NUMBERS),
    ("report", "--steps"): (("report", "r1", "--steps"), ("0", "5-2", *NUMBERS)),
    ("report", "--otlp"): (("report", "--otlp"), PATHS + NAMES),
    ("explain", "--otlp"): (("explain", "--otlp"), PATHS + NAMES),
    ("explain", "RUN"): (("explain",), PATHS + NAMES),
    ("levers", "--otlp"): (("levers", "--otlp"), PATHS + NAMES),
    ("levers", "RUN"): (("levers",), PATHS + NAMES),
    ("explain", "--step"): (("explain", "r1", "--step"), ("77", *NUMBERS)),
    ("explain", "--steps"): (("explain", "r1", "--steps"), ("0", "5-2", "77-78", *NUMBERS)),
    ("explain", "--fail-if"): (("explain", "r1", "--fail-if"), ("", "hang", "\udcff")),
    ("compare", "A"): (("compare", "r1"), PATHS + NAMES),
    ("compare", "B"): (("compare", "r1"), PATHS + NAMES),
    ("compare", "--fail-if"): (("compare", "r1", "r1", "--fail-if"), ("", "step", "step<5%", "no row>+5%", "\udcff>+1%")),
    ("compare", "--noise"): (("compare", "r1", "r1", "--noise"), ("", "-1", "nan", "inf", "101", "x", "\udcff")),
    ("compare", "--skip"): (("compare", "r1", "r1", "--skip"), NUMBERS),
    ("export", "perfetto RUN"): (("export", "perfetto"), PATHS + NAMES),
    ("export", "perfetto --steps"): (("export", "perfetto", "r1", "-o", "out", "--steps"), ("5-2", "1-", "1", "77-78", *NUMBERS)),
    ("export", "perfetto --step"): (("export", "perfetto", "r1", "-o", "out", "--step"), ("77", *NUMBERS)),
    ("export", "perfetto --spans"): (("export", "perfetto", "r1", "-o", "out", "--spans"), ("0", *NUMBERS)),
    ("export", "perfetto -o"): (("export", "perfetto", "r1", "-o"), ("x" * 5000, "file/below", "\udcff/nothing", ".")),
    ("export", "parquet RUN"): (("export", "parquet"), PATHS + NAMES),
    ("export", "parquet -o"): (("export", "parquet", "r1", "-o"), ("x" * 5000, "file", "file/below")),
    ("export", "tensorboard RUN"): (("export", "tensorboard"), PATHS + NAMES),
    ("export", "tensorboard -o"): (("export", "tensorboard", "r1", "-o"), ("x" * 5000, "file", "file/below")),
    ("export", "tensorboard --interval"): (("export", "tensorboard", "r1", "-o", "out", "--interval"), ("", "0", "-1", "nan", "inf", "1e400", "x")),
    ("export", "tensorboard --samples"): (("export", "tensorboard", "r1", "-o", "out", "--samples"), ("", "-1", "nan", "1.5", "x")),
    ("logs", "RUN"): (("logs",), PATHS + NAMES),
    ("logs", "--level"): (("logs", "r1", "--level"), ("loud", *NAMES)),
    ("logs", "--scope"): (("logs", "r1", "--scope"), NAMES),
    ("logs", "--where"): (("logs", "r1", "--where"), ("kl >", "(", *PATHS)),
    ("logs", "--last"): (("logs", "r1", "--last"), ("0", *NUMBERS)),
    ("view", "RUN|FOLDER"): (("view",), (*PATHS, "file")),
    ("view", "--host"): (("view", "--token-file", "nothing", "--host"), HOSTS),
    ("view", "--port"): (("view", "--host", "256.256.256.256.256", "--token-file", "nothing", "--port"), ("99999", *NUMBERS)),
    ("view", "--token-file"): (("view", "--host", "0.0.0.0", "--token-file"), ("nothing", "file/below", ".", "\udcff/nothing")),
    ("view", "--tls-cert"): (("view", "--tls-key", "file", "--tls-cert"), (".", "file", *PATHS)),
    ("view", "--tls-key"): (("view", "--tls-cert", "file", "--tls-key"), (".", "file", *PATHS)),
    ("guards", "RUN"): (("guards",), PATHS + NAMES),
    ("guards", "--nan"): (("guards", "r1", "--nan"), ("0", *NUMBERS)),
    ("guards", "--kl"): (("guards", "r1", "--kl"), ("0", *NUMBERS)),
    ("guards", "--reward-fall"): (("guards", "r1", "--reward-fall"), ("0", *NUMBERS)),
    ("guards", "--plateau"): (("guards", "r1", "--plateau"), ("0", *NUMBERS)),
    ("guards", "--profile"): (("guards", "r1", "--profile"), ("", "maths", "file", "fifo", ".", *PATHS)),
    ("runs", "DIR"): (("runs",), (*PATHS, "file", "runs/r1")),
    ("runs", "--older-than"): (("runs", "--prune", "--older-than"), NUMBERS),
    ("runs", "--keep"): (("runs", "--prune", "--keep"), NUMBERS),
    ("runs", "--max-size"): (("runs", "--prune", "--max-size"), NUMBERS),
    ("discover", "--run"): (("discover", "--local", "--run"), NAMES),
    ("discover", "--address"): (("discover", "--address"), ADDRESSES),
    ("discover", "--run-dir"): (("discover", "--local", "--run-dir"), PATHS),
    ("discover", "--timeout"): (("discover", "--local", "--timeout"), ("0", *NUMBERS)),
    ("discover", "--host"): (("discover", "--local", "--serve", "--port", "0", "--host"), HOSTS),
    ("discover", "--port"): ((*SERVE, "--port"), ("99999", *NUMBERS)),
    ("discover", "--tls-cert"): ((*SERVE, "--tls-key", "file", "--tls-cert"), ("", ".", "file", *PATHS)),
    ("discover", "--tls-key"): ((*SERVE, "--tls-cert", "file", "--tls-key"), ("", ".", "file", *PATHS)),
    ("discover", "--basic-auth-file"): ((*SERVE, "--basic-auth-file"), ("", ".", "file", *PATHS)),
    ("collect", "RUN"): (("collect", "--address", "127.0.0.1:1"), NAMES),
    ("collect", "--address"): (("collect", "r1", "--address"), ADDRESSES),
    ("collect", "-o"): ((*HERE, "-o"), PATHS),
    ("collect", "--run-dir"): ((*HERE, "--run-dir"), PATHS),
    ("stack", "--otelcol"): (STACK[:-1], PATHS),
    ("stack", "--prometheus"): ((*STACK, "--prometheus"), PATHS),
    ("stack", "--tempo"): ((*STACK, "--tempo"), PATHS),
    ("stack", "--alertmanager"): ((*STACK, "--alertmanager"), ("", "nowhere", "ftp://host:1", "host:port", "host:99999")),
    ("stack", "--grafana-home"): ((*STACK, "--grafana-home"), PATHS),
    ("stack", "--address"): ((*STACK, "--cluster", "--address"), ADDRESSES),
    ("stack", "--host"): ((*STACK, "--cluster", "--address", "127.0.0.1:1", "--host"), HOSTS),
    ("stack", "--tls-cert"): ((*STACK, "--cluster", "--tls-key", "file", "--tls-cert"), ("", ".", "file", *PATHS)),
    ("stack", "--tls-key"): ((*STACK, "--cluster", "--tls-cert", "file", "--tls-key"), ("", ".", "file", *PATHS)),
    ("stack", "--tls-ca"): ((*STACK, "--cluster", "--tls-ca"), ("", ".", "file", *PATHS)),
    ("stack", "--data"): ((*STACK, "--data"), ("x" * 5000, "file", "file/below", "~no-such-user-anywhere/x")),
    ("stack", "--run-dir"): ((*STACK, "--run-dir"), ("x" * 5000, "file", "file/below", "~no-such-user-anywhere/x")),
    ("stack", "--profile"): ((*STACK, "--profile"), ("", "maths", "file", "fifo", ".", *PATHS)),
    ("prometheus", "ACTION"): (("prometheus",), ("", "reload", "\udcff")),
    ("prometheus", "--file"): (("prometheus", "add", "--file"), (".", "file", "fifo", *PATHS)),
    ("prometheus", "--reload"): (("prometheus", "add", "--file", "file", "--reload"), ("9090", "http://", "http://[", "\udcff")),
    ("prometheus", "--http-sd"): (("prometheus", "add", "--file", "file", "--http-sd"), ("9465", "http://", "\udcff")),
    ("prometheus", "--run-dir"): (("prometheus", "add", "--file", "file", "--run-dir"), PATHS),
    ("boards", "export DIR"): (("boards", "export"), ("x" * 5000, "file", "file/below")),
    ("boards", "export --profile"): (("boards", "export", "out", "--profile"), ("", "maths", "file", "fifo", ".", *PATHS)),
    ("collector", "export DIR"): (("collector", "export"), ("x" * 5000, "file", "file/below")),
    ("report", "--run-dir"): (("report", "r1", "--run-dir"), PATHS),
    ("explain", "--run-dir"): (("explain", "r1", "--run-dir"), PATHS),
    ("levers", "--run-dir"): (("levers", "r1", "--run-dir"), PATHS),
    ("guards", "--run-dir"): (("guards", "r1", "--run-dir"), PATHS),
    ("logs", "--run-dir"): (("logs", "r1", "--run-dir"), PATHS),
    ("runs", "--run-dir"): (("runs", "--run-dir"), PATHS),
    ("compare", "--run-dir"): (("compare", "r1", "r1", "--run-dir"), PATHS),
    ("export", "perfetto --run-dir"): (("export", "perfetto", "r1", "--run-dir"), PATHS),
    ("export", "parquet --run-dir"): (("export", "parquet", "r1", "--run-dir"), PATHS),
    ("export", "tensorboard --run-dir"): (("export", "tensorboard", "r1", "--run-dir"), PATHS),
    ("completion", "SHELL"): (("completion",), ("", "fish", "\udcff")),
    ("schema", "NAME"): (("schema",), ("", "explains", "\udcff")),
    ("run", "--exporters"): (("run", "--exporters"), ("kafka", ",", "\udcff")),
    ("run", "--run-dir"): (("run", "--run-dir"), ("~no-such-user-anywhere/x",)),
    ("run", "--run-id"): (("run", "--run-id"), ("../x", "x" * 5000, "\udcff", ".")),
}  # fmt: skip
"""What precedes the value of each argument, and its wrong values."""
APART = {("run", "-- COMMAND ..."), ("guards", "--best")}
"""Arguments that take anything: the command of the user, a key of verl."""


def list_arguments(parser):
    """Yield the name of each argument that has a value."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from (f"{name} {argument}" for argument in list_arguments(inner))
        elif action.nargs != 0:
            yield action.option_strings[0] if action.option_strings else action.metavar


def test_every_argument_has_wrong_values():
    """An argument that a command gets later needs values here."""
    expected = set()
    for command, path in COMMANDS.items():
        parser = argparse.ArgumentParser()
        import_module(path).add_arguments(parser)
        expected |= {(command, argument) for argument in list_arguments(parser)}
    assert expected == set(CASES) | APART


@pytest.fixture
def place(tmp_path, runs, monkeypatch):
    """A working directory with a run, a file and a FIFO. Nothing is executed in this process."""

    def refuse(*_):
        raise AssertionError("the command was executed")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execvpe", refuse)
    monkeypatch.setattr(logging, "raiseExceptions", False)  # Ray's handlers keep the stream of an earlier test
    stories.training(runs / "r1").write()
    (tmp_path / "file").write_text("content")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


@pytest.mark.parametrize(("before", "values"), CASES.values(), ids=map(" ".join, CASES))
def test_a_wrong_value_is_a_message(call, place, before, values):
    """An exception would fail this test."""
    more = ["--", "true"] if before[0] == "run" else []
    for value in values:
        result = call(*before, value, *more)
        assert result.code in (1, 2), ascii(value)
        assert result.err or result.out, ascii(value)
        assert "Traceback" not in result.err, ascii(value)
        assert (place / "file").read_text() == "content", ascii(value)


@pytest.mark.parametrize("command", ["report", "explain", "runs"])
def test_an_unknown_option_prints_the_usage_of_its_command(call, command):
    """Not that of all commands."""
    done = call(command, "--bad")
    assert done.code == 2
    assert done.err.startswith(f"usage: verl-otel {command} ")
    assert "unrecognized arguments: --bad" in done.err


def test_no_command_prints_the_help(call):
    """Every command with its first line, on standard error, and exit code 2."""
    result = call()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("usage: verl-otel ")
    assert all(f"\n    {command}" in result.err for command in COMMANDS)


def test_a_page_never_replaces_a_device(call, place, monkeypatch):
    """A user with all permissions would turn a device into a file; links to it in the same folder are refused, too."""
    assert "fifo cannot be written: it is not a regular file" in call("report", "r1", "--html", "fifo").err
    devices = place / "devices"
    devices.mkdir()
    (devices / "stdout").symlink_to(place / "file")
    monkeypatch.setattr(document, "DEVICES", devices)
    result = call("report", "r1", "--html", devices / "stdout")
    assert result.code == 2
    assert "stdout cannot be written: it is not a regular file" in result.err
    assert (devices / "stdout").is_symlink()


def test_names_that_are_no_text_are_printed(call, place):
    """A folder whose name is not UTF-8, as a file system may have, is read, and written out where it is shown."""
    name = "\udcff"
    stories.training(place / name).write()
    result = call("report", name, "--html", f"{name}.html")
    assert (result.code, result.out.partition(":")[0]) == (0, "\\udcff.html")
    for arguments in (("report", name), ("explain", name), ("compare", name, name), ("runs", place)):
        assert call(*arguments).code == 0


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["explian"], "'explain'"), (["demo", "slow-tol"], "'slow-tool'"), (["explain", "--stepp", "3"], "--step")],
)
def test_a_mistyped_word_comes_with_the_one_that_is_meant(capsys, words, meant):
    """Commands, words and options alike."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["help"], ["help", "explain"]])
def test_help_is_a_command(capsys, words):
    """As other programs have it."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert " ".join(["usage: verl-otel", *words[1:]]) in capsys.readouterr().out


def test_prose_of_the_help_fits_the_terminal(call, monkeypatch):
    """Examples stay as they are, to be copied."""
    monkeypatch.setenv("COLUMNS", "70")
    for name in COMMANDS:
        lines = call(name, "--help").out.splitlines()
        wide = [line for line in lines if len(line) > 70]
        assert [line for line in wide if not line.startswith("  ")] == [], name


@pytest.mark.parametrize("arguments", [("explain", "nope"), ("explain", "--nope"), ("runs", "--keep", "many")])
def test_an_error_is_json_where_json_is_asked_for(runs, capsys, arguments):
    """An unknown run, option or value; standard error is empty."""
    try:
        code = main([*arguments, "--json"])
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert (code, printed.err) == (2, "")
    assert list(json.loads(printed.out)) == ["error"]


def test_the_folder_of_all_runs_is_an_option(call, tmp_path, runs):
    """Of each command that reads runs, in the place of the variable, for this command only."""
    stories.training(tmp_path / "others" / "r7").write()
    for words in (["explain"], ["report", "r7"], ["compare", "r7", "r7"], ["runs"]):
        done = call(*words, "--run-dir", tmp_path / "others")
        assert done.code == 0, done.err
    assert os.environ["VERL_OTEL_RUN_DIR"] == str(runs)


@pytest.mark.full
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_options(call, shell):
    """The script runs in the shell, and a begun word becomes those that it may be."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not here")
    ask = {
        "bash": "COMP_WORDS=(verl-otel {0}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _verl_otel; echo ${{COMPREPLY[@]}}",
        "zsh": "whence -w _verl_otel",
    }[shell]
    script = call("completion", shell).out
    words = {"exp": "explain export", "explain --js": "--json", "export perf": "perfetto"}
    for begun, found in words.items() if shell == "bash" else {"": "_verl_otel: function"}.items():
        done = subprocess.run([program, "-c", script + ask.format(begun)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == found, done.stderr


@pytest.mark.full
def test_it_is_a_module_too():
    """``python -m verl_otel`` is the command of the environment of that Python."""
    done = subprocess.run([sys.executable, "-m", "verl_otel", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("verl-otel ")


@pytest.mark.full
@pytest.mark.parametrize("command", ["runs", "report", "demo"])
def test_a_closed_output_is_no_error(runs, command):
    """A daemon or cron may start a command without a standard output."""
    stories.training(runs / "r1").write()
    script = f'exec "{sys.executable}" -m verl_otel {command} >&-'
    done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
