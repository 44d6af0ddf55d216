# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``verl-otel`` command: one file per subcommand, whose docstring is its help."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import logging
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from verl_otel._internal.printable import show_lines
from verl_otel._version import __version__
from verl_otel.errors import VerlOtelError

COMMANDS: Final = {  # each with the module that implements it
    "demo": "verl_otel.cli.demo.command",
    "run": "verl_otel.cli.run",
    "check": "verl_otel.cli.check",
    "runs": "verl_otel.cli.runs",
    "report": "verl_otel.cli.report",
    "view": "verl_otel.cli.view.command",
    "explain": "verl_otel.cli.explain",
    "levers": "verl_otel.cli.levers",
    "compare": "verl_otel.cli.compare",
    "export": "verl_otel.cli.export",
    "logs": "verl_otel.cli.logs",
    "guards": "verl_otel.cli.guards",
    "discover": "verl_otel.cli.discover",
    "collect": "verl_otel.cli.collect",
    "stack": "verl_otel.cli.stack",
    "prometheus": "verl_otel.cli.prometheus",
    "collector": "verl_otel.cli.collector",
    "boards": "verl_otel.cli.boards",
    "runbook": "verl_otel.cli.runbook",
    "schema": "verl_otel.cli.schema",
    "skill": "verl_otel.cli.skill",
    "completion": "verl_otel.cli.completion",
}
_RUN_DIR: Final = "VERL_OTEL_RUN_DIR"
_START: Final = """start here:
  $ verl-otel demo

with your training:
  $ VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ...
  $ verl-otel explain"""
"""What the help of the whole command ends with."""
_PLAIN: Final = {"…": "...", "·": "-", "→": "->", "▶": ">", "■": "#", "✓": "ok", "✕": "x"}
"""What is printed in the place of a character that the terminal does not have; a question mark for all others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0 fine, 1 a finding, 2 wrong usage."""
    from importlib import import_module

    _open_closed_streams()
    _accept_any_terminal()
    logging.getLogger("ray._private.authentication").setLevel(
        logging.ERROR
    )  # it warns that it has found the user's token
    parser = _Parser(
        prog="verl-otel",
        description="OpenTelemetry and Prometheus for verl training.",
        epilog=_START,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"verl-otel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    given = sys.argv[1:] if arguments is None else list(arguments)
    _Parser.as_json = "--json" in given
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    for name in given[:1] if given and given[0] in COMMANDS else COMMANDS:  # the others take time and memory
        module = import_module(COMMANDS[name])
        command = add_command(commands, name, module)
        module.add_arguments(command)
        command.set_defaults(entry=module.run)
    parsed, unknown = parser.parse_known_args(given)
    if unknown:  # with the usage of the command that does not know them
        commands.choices.get(parsed.command, parser).refuse(unknown)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return 2
    with _run_dir(getattr(parsed, "run_dir", None)):
        return _call(parsed)


@contextlib.contextmanager
def _run_dir(given: Path | None) -> Iterator[None]:
    """Let ``--run-dir`` take the place of the variable, which every part of a command reads."""
    before = os.environ.get(_RUN_DIR)
    if given is not None:
        os.environ[_RUN_DIR] = os.fsdecode(given)
    try:
        yield
    finally:
        if given is not None:
            os.environ.pop(_RUN_DIR)
            os.environ.update({} if before is None else {_RUN_DIR: before})


def _open_closed_streams() -> None:
    """Give the command the streams that it lacks, as under cron: what it prints is discarded, and a file that it opens does not get their numbers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for the life of the process


class _Help(argparse.RawDescriptionHelpFormatter):
    """Fits prose to the terminal, and keeps paragraphs with indented lines, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = (part if "\n " in part else textwrap.fill(part, width) for part in text.split("\n\n"))
        return super()._fill_text("\n\n".join(parts), width, indent)


class _Parser(argparse.ArgumentParser):
    """A parser that says which word may be meant by a wrong one."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            meant = _find_similar(str(value), map(str, action.choices))
            if meant:
                raise argparse.ArgumentError(action, f"invalid choice: {value!r}; did you mean {meant!r}?")
        super()._check_value(action, value)

    as_json = False
    """Whether ``--json`` is among the arguments."""

    def error(self, message: str) -> NoReturn:
        """End with a message on wrong arguments, and the usage of the command."""
        if self.as_json:
            _print_error(message, as_json=True)
            self.exit(2)
        super().error(message)

    def refuse(self, unknown: list[str]) -> None:
        """End with a message on arguments that the command does not know."""
        option = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
        meant = _find_similar(option, self._option_string_actions) if option else ""
        advice = f"; did you mean {meant}?" if meant else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")


def _find_similar(word: str, words: Iterable[str]) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(word, list(words), n=1)), "")


def _accept_any_terminal() -> None:
    """Print what an encoding other than UTF-8 lacks, as of ``LC_ALL=C`` in a container, in its place instead of failing."""
    codecs.register_error("verl-otel", _replace)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and codecs.lookup(stream.encoding).name != "utf-8":
            reconfigure(errors="verl-otel")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


def add_command(commands: Any, name: str, module: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of a subcommand, whose help is the docstring of its module."""
    summary, _, rest = (module.__doc__ or "").partition("\n\n")
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, epilog=rest.strip(), formatter_class=_Help
    )
    return parser


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
        _print_error(show_lines(_describe(error), longest=5_000), as_json=getattr(parsed, "json", False))
        return 2
    return code


def _print_error(message: str, *, as_json: bool) -> None:
    """Print what is wrong: with ``--json`` as an object on standard output, where a script reads the result."""
    if as_json:
        import json

        print(json.dumps({"error": message}))
    else:
        print(f"verl-otel: {message}", file=sys.stderr)


def _describe(error: Exception) -> str:
    """Return the message of an error; of one of the operating system the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
