# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run a training command with telemetry on.

The command is run as it is, with VERL_OTEL_ENABLED=1 and, for verl before 0.9, VERL_USE_EXTERNAL_MODULES=verl_otel.plugin.

Examples:
  verl-otel run -- python -m verl.trainer.main_ppo data.train_files=...
  verl-otel run --exporters file,prometheus --run-dir ./runs -- bash train.sh
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from verl_otel import config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--exporters", metavar="LIST", help="otlp, prometheus, file, console or none, separated by commas"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="folder that holds one folder per run")
    parser.add_argument("--run-id", metavar="ID", help="identity of the run; give the same one when you resume it")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the training command")


def run(arguments: argparse.Namespace) -> int:  # noqa: RET503 - the last call does not return
    """Check the settings and become the command. Returns 2 when there is none, 127 when it is not found."""
    command = arguments.command_line[1:] if arguments.command_line[:1] == ["--"] else arguments.command_line
    if not command:
        print("verl-otel run: give the training command after --", file=sys.stderr)
        return 2
    environ = {**os.environ, **_variables(arguments)}
    config.load(environ)  # a wrong setting is said now, not hidden in a worker's log
    path = shutil.which(command[0], path=environ.get("PATH"))
    if path is None:
        print(f"verl-otel run: {command[0]}: command not found", file=sys.stderr)
        return 127
    os.execvpe(path, command, environ)  # noqa: S606 - running the user's command is the purpose


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    given = {
        "VERL_OTEL_EXPORTERS": arguments.exporters,
        "VERL_OTEL_RUN_DIR": arguments.run_dir,
        "VERL_OTEL_RUN_ID": arguments.run_id,
    }
    found = {name: value for name, value in given.items() if value}
    found["VERL_OTEL_ENABLED"] = "1"
    if _needs_external_module():
        modules = [name for name in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",") if name]
        if "verl_otel.plugin" not in modules:
            found["VERL_USE_EXTERNAL_MODULES"] = ",".join([*modules, "verl_otel.plugin"])
    return found


def _needs_external_module() -> bool:
    """Whether the installed verl is too old for plug-in entry points."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        major, minor = (int(part) for part in version("verl").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return False
    return (major, minor) < (0, 9)
