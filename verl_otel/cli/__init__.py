# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``verl-otel`` command: one file per subcommand, whose docstring is its help."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from verl_otel._version import __version__
from verl_otel.errors import VerlOtelError

COMMANDS: Final = (
    "run",
    "check",
    "report",
    "explain",
    "compare",
    "discover",
    "collect",
    "stack",
    "collector",
    "boards",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0 fine, 1 a finding, 2 wrong usage."""
    from importlib import import_module

    parser = argparse.ArgumentParser(
        prog="verl-otel",
        description="OpenTelemetry and Prometheus for verl training.",
        epilog="Start here: VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ...   then: verl-otel report",
    )
    parser.add_argument("--version", action="version", version=f"verl-otel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"verl_otel.cli.{name}")
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
    try:
        code = int(parsed.entry(parsed))
        sys.stdout.flush()  # a reader that has gone is found out here and not when the interpreter ends
    except (VerlOtelError, FileNotFoundError) as error:
        print(f"verl-otel: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # takes what is still in the buffer
        return 0
    except KeyboardInterrupt:
        return 130
    return code
