# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run a training command with telemetry on.

The command is run unchanged, with VERL_OTEL_ENABLED=1 and, for verl before 0.9, VERL_USE_EXTERNAL_MODULES=verl_otel.plugin.

Examples:
  verl-otel run -- python -m verl.trainer.main_ppo data.train_files=...
  verl-otel run --exporters file,prometheus --run-dir ./runs -- bash train.sh

The arguments metrics.enable_prometheus and metrics.prometheus_port of the command, which other guides contain and verl rejects, are replaced by settings:
the exporter prometheus beside the others (files stay), and the port of /metrics for the first process of a machine. Of 9090, the port of Prometheus
itself, nothing is taken: each process has a free port, which Prometheus finds by the file of targets.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from verl_otel import config
from verl_otel.integrations.source_inspection import read_version

ENABLE: Final = "metrics.enable_prometheus"
PORT: Final = "metrics.prometheus_port"
SERVER_PORT: Final = "9090"
"""Port of Prometheus itself. Guides give it to the training as well; the one that starts second would not get it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--exporters", metavar="LIST", help=f"{', '.join(config.EXPORTERS)}, separated by commas")
    parser.add_argument("--run-dir", metavar="DIR", help="folder that holds one folder per run")
    parser.add_argument("--run-id", metavar="ID", help="id of the run; use the same one to resume it")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the training command")


def run(arguments: argparse.Namespace) -> int:
    """Check the settings and become the command. Returns 2 when there is none, 126 or 127 as a shell would."""
    command = arguments.command_line[1:] if arguments.command_line[:1] == ["--"] else arguments.command_line
    if not command:
        print("verl-otel run: give the training command after --", file=sys.stderr)
        return 2
    command, old = _take_old_keys(command)
    environ = {**os.environ, **_variables(arguments)}
    environ.update(_translate(old, environ))
    config.load_config(environ)  # a wrong setting is reported now, not hidden in a worker's log
    path = shutil.which(command[0], path=environ.get("PATH"))
    if path is None:
        print(f"verl-otel run: {command[0]}: command not found", file=sys.stderr)
        return 127
    try:
        os.execvpe(path, command, environ)  # noqa: S606 - running the user's command is the purpose
    except OSError as error:
        print(f"verl-otel run: {command[0]}: {error.strerror}", file=sys.stderr)
        return 126


def _take_old_keys(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command without the keys of other guides, which verl rejects, and the values of these."""
    kept, old_keys = [], {}
    for argument in command:
        key, separator, value = argument.lstrip("+").partition("=")
        if separator and key in (ENABLE, PORT):
            old_keys[key] = value
        else:
            kept.append(argument)
    return kept, old_keys


def _translate(old: dict[str, str], environ: dict[str, str]) -> dict[str, str]:
    """Return the settings that correspond to the keys of other guides; the exporters of the settings or by default stay."""
    settings = {}
    if old.get(ENABLE, "").strip().lower() in ("true", "1", "yes", "on"):
        settings["VERL_OTEL_EXPORTERS"] = ",".join(
            dict.fromkeys([*config.load_config(environ).exporters, "prometheus"])
        )
    if old.get(PORT) == SERVER_PORT:
        print(
            f"verl-otel run: {PORT}={SERVER_PORT} is the port of Prometheus itself: each process serves /metrics at a free port instead. "
            "Let Prometheus find them: verl-otel prometheus add --help",
            file=sys.stderr,
        )
    elif PORT in old:
        settings["VERL_OTEL_PROMETHEUS_PORT"] = old[PORT]
    return settings


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    given = {
        "VERL_OTEL_EXPORTERS": arguments.exporters,
        "VERL_OTEL_RUN_DIR": arguments.run_dir,
        "VERL_OTEL_RUN_ID": arguments.run_id,
    }
    variables = {name: value for name, value in given.items() if value}
    variables["VERL_OTEL_ENABLED"] = "1"
    if _needs_external_module():
        modules = [name for name in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",") if name]
        if "verl_otel.plugin" not in modules:
            variables["VERL_USE_EXTERNAL_MODULES"] = ",".join([*modules, "verl_otel.plugin"])
    return variables


def _needs_external_module() -> bool:
    """Whether the installed verl is too old for plug-in entry points."""
    number = read_version("verl")
    return number is not None and () < number[:2] < (0, 9)
