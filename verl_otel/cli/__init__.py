# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``verl-otel`` command: one file per subcommand, whose docstring is its help."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from verl_otel._internal.printable import show_lines
from verl_otel._version import __version__
from verl_otel.errors import VerlOtelError

COMMANDS: Final = {  # each with the module that implements it
    "run": "verl_otel.cli.run",
    "check": "verl_otel.cli.check.command",
    "runs": "verl_otel.cli.runs.command",
    "report": "verl_otel.cli.report.command",
    "explain": "verl_otel.cli.explain.command",
    "compare": "verl_otel.cli.compare.command",
    "discover": "verl_otel.cli.discover.command",
    "collect": "verl_otel.cli.collect",
    "stack": "verl_otel.cli.stack.command",
    "collector": "verl_otel.cli.collector",
    "boards": "verl_otel.cli.boards",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0 fine, 1 a finding, 2 wrong usage."""
    from importlib import import_module

    parser = argparse.ArgumentParser(
        prog="verl-otel",
        description="OpenTelemetry and Prometheus for verl training.",
        epilog="Start here: VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ...   then: verl-otel report",
    )
    parser.add_argument("--version", action="version", version=f"verl-otel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, path in COMMANDS.items():
        module = import_module(path)
        summary, _, rest = (module.__doc__ or "").partition("\n\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=rest.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(entry=module.run)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return 2
    return _call(parsed)


def _call(parsed: argparse.Namespace) -> int:
    """Run the command of parsed arguments. An error that the user can correct becomes a message and exit code 2."""
    try:
        code = int(parsed.entry(parsed))
        sys.stdout.flush()  # a closed pipe is detected here instead of at interpreter exit
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards what is still in the buffer
        return 0
    except KeyboardInterrupt:
        return 130
    except (VerlOtelError, OSError) as error:
        print(f"verl-otel: {show_lines(_describe(error), longest=5_000)}", file=sys.stderr)
        return 2
    return code


def _describe(error: Exception) -> str:
    """Return the message of an error; of one of the operating system the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
