# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel run`` and the command's own help: the training is run as it is, with telemetry on."""

import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path

import pytest

import verl_otel
from verl_otel.cli import COMMANDS

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getpid()]))"


@pytest.fixture
def shown(shell):
    """Run a command that shows its arguments, environment and process id."""

    def show(*arguments, options=(), **variables):
        result = shell("run", *options, "--", sys.executable, "-c", SHOW, *arguments, **variables)
        assert result.code == 0, result.err
        return json.loads(result.out)

    return show


@pytest.mark.full
def test_the_command_is_run_as_it_is_with_the_switch_on(shown):
    """The command gets its arguments unchanged, also those that look like ours, and VERL_OTEL_ENABLED=1."""
    arguments = ["--exporters", "x", "a b", "trainer.logger=[console]", "--", "--help", ""]
    seen, environ, _ = shown(*arguments, MINE="kept")
    assert seen == arguments
    assert environ["VERL_OTEL_ENABLED"] == "1"
    assert environ["MINE"] == "kept"
    assert "VERL_OTEL_EXPORTERS" not in environ


@pytest.mark.full
def test_options_become_variables(shown):
    """--exporters, --run-dir and --run-id are settings of the run and win over the environment."""
    options = ("--exporters", "none", "--run-dir", "/elsewhere", "--run-id", "mine")
    _, environ, _ = shown(options=options, VERL_OTEL_EXPORTERS="file", VERL_OTEL_ENABLED="0")
    assert {name: value for name, value in environ.items() if name.startswith("VERL_OTEL_")} == {
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_EXPORTERS": "none",
        "VERL_OTEL_RUN_DIR": "/elsewhere",
        "VERL_OTEL_RUN_ID": "mine",
    }


@pytest.mark.smoke
def test_the_command_takes_our_place(shell, tmp_path):
    """The command is executed in our process: signals and exit codes are its own."""
    assert shell("run", "--", "sh", "-c", "exit 7").code == 7
    assert shell("run", "--", "sh", "-c", "kill -TERM $$").code == -15
    assert shell("run", "--", "sh", "-c", "pwd", cwd=tmp_path).out == f"{tmp_path}\n"


@pytest.mark.full
def test_the_dashes_may_be_left_away(shell):
    """A command without -- before it is run as well."""
    assert shell("run", "echo", "--exporters", "x").out == "--exporters x\n"


@pytest.mark.parametrize("arguments", [[], ["--"], ["--run-id", "x"], ["--run-id", "x", "--"]])
def test_without_a_command_nothing_is_run(call, arguments):
    """Without a command the exit code is 2, with a line that says what is missing."""
    result = call("run", *arguments)
    assert (result.code, result.err) == (2, "verl-otel run: give the training command after --\n")


def test_an_unknown_command_is_named(call):
    """A command that is not there gives 127, as in a shell."""
    result = call("run", "--", "no-such-command-anywhere", "x")
    assert (result.code, result.err) == (127, "verl-otel run: no-such-command-anywhere: command not found\n")


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "variables", "text"),
    [
        (("--exporters", "kafka"), {}, "VERL_OTEL_EXPORTERS='kafka': use a comma-separated list of otlp, prometheus"),
        (("--run-id", "a/b"), {}, "VERL_OTEL_RUN_ID='a/b': use 1 to 128 letters"),
        ((), {"VERL_OTEL_DRAIN_INTERVAL": "0"}, "VERL_OTEL_DRAIN_INTERVAL='0': use a number from 0.05 to 60"),
    ],
)
def test_a_wrong_setting_is_said_before_anything_starts(shell, tmp_path, options, variables, text):
    """A wrong setting ends with 2 and the sentence of ConfigError; the training is not started."""
    result = shell("run", *options, "--", "touch", tmp_path / "started", **variables)
    assert result.code == 2
    assert result.err.startswith(f"verl-otel: {text}")
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("0.8.0", None, "verl_otel.plugin"),
        ("0.7.0.dev0", "mine.plugin", "mine.plugin,verl_otel.plugin"),
        ("0.8.0", "verl_otel.plugin,mine", "verl_otel.plugin,mine"),
        ("0.8rc1", None, "verl_otel.plugin"),
        ("0.9.1", None, None),
        ("0.9rc1", None, None),
        ("0.10.0", "mine", "mine"),
        ("unknown", None, None),
        (None, None, None),
    ],
)
def test_verl_before_plugins_is_told_to_load_us(call, monkeypatch, version, before, after):
    """Before 0.9 verl is told by VERL_USE_EXTERNAL_MODULES to load us, beside what the user loads; later not."""

    def find(_package):
        if version is None:
            raise importlib.metadata.PackageNotFoundError
        return version

    def execute(path, command, environ):
        seen.append((Path(path).name, command, environ.get("VERL_USE_EXTERNAL_MODULES")))
        raise SystemExit(0)

    seen = []
    monkeypatch.setattr(importlib.metadata, "version", find)
    monkeypatch.setattr(os, "execvpe", execute)
    if before is not None:
        monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", before)
    assert call("run", "--", "sh", "-c", "true").code == 0
    assert seen == [("sh", ["sh", "-c", "true"], after)]


@pytest.mark.full
def test_a_script_that_cannot_be_executed_is_said(shell, tmp_path):
    """A file that the system cannot execute gives 126 and one line, as in a shell."""
    script = tmp_path / "train"
    script.write_text("no first line\n")
    script.chmod(0o755)
    result = shell("run", "--", script)
    assert result.code == 126
    assert len(result.err.splitlines()) == 1


@pytest.mark.full
def test_keys_of_other_guides_are_accepted(shown):
    """``metrics.enable_prometheus`` and ``metrics.prometheus_port`` become settings and do not reach verl. What is on without them stays on."""
    seen, environ, _ = shown("trainer.x=1", "metrics.enable_prometheus=True", "metrics.prometheus_port=9464")
    assert seen == ["trainer.x=1"]
    assert environ["VERL_OTEL_EXPORTERS"] == "file,prometheus"
    assert environ["VERL_OTEL_PROMETHEUS_PORT"] == "9464"
    _, environ, _ = shown("++metrics.enable_prometheus=true", options=("--exporters", "file"))
    assert environ["VERL_OTEL_EXPORTERS"] == "file,prometheus"
    _, environ, _ = shown("metrics.enable_prometheus=True", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
    assert environ["VERL_OTEL_EXPORTERS"] == "file,otlp,prometheus"
    seen, environ, _ = shown("metrics.enable_prometheus=False", "metrics.other=1")
    assert seen == ["metrics.other=1"]
    assert "VERL_OTEL_EXPORTERS" not in environ


@pytest.mark.full
def test_the_port_of_prometheus_itself_is_not_taken(shell):
    """Guides give 9090 to the training and to Prometheus: the second of them would fail."""
    arguments = ("metrics.enable_prometheus=True", "metrics.prometheus_port=9090")
    result = shell("run", "--", sys.executable, "-c", SHOW, *arguments)
    seen, environ, _ = json.loads(result.out)
    assert seen == []
    assert "VERL_OTEL_PROMETHEUS_PORT" not in environ
    assert environ["VERL_OTEL_EXPORTERS"] == "file,prometheus"
    assert "9090 is the port of Prometheus itself" in result.err


def test_help_names_every_command(call):
    """The help lists the commands and how to begin; each command has help of its own with examples."""
    result = call("--help")
    assert "\nstart here:\n  $ verl-otel demo\n" in result.out
    assert result.out.endswith("  $ verl-otel explain\n")
    assert result.code == 0
    assert all(re.search(rf"^ +{command}\s", result.out, re.MULTILINE) for command in COMMANDS)
    assert "VERL_OTEL_ENABLED=1" in result.out
    for command in COMMANDS:
        own = call(command, "--help")
        assert own.code == 0
        assert "Examples:" in own.out


def test_version(call):
    """--version prints the version."""
    result = call("--version")
    assert (result.code, result.out) == (0, f"verl-otel {verl_otel.__version__}\n")
