# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print a script that completes commands and their options in bash or zsh.

Where neither fits, the shell completes the name of a file.

Exit code: 0 printed, 2 wrong usage.

Examples:
  source <(verl-otel completion bash)
  verl-otel completion zsh >> ~/.zshrc
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Final

_SCRIPT: Final = """_verl_otel() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="help {commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
}}
complete -o default -F _verl_otel verl-otel
"""
_ZSH: Final = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh"), metavar="SHELL", help="bash or zsh")


def run(arguments: argparse.Namespace) -> int:
    """Print the script. Returns 0."""
    from verl_otel.cli import COMMANDS

    cases = []
    for name, module in COMMANDS.items():
        parser = argparse.ArgumentParser()
        import_module(module).add_arguments(parser)
        words = dict.fromkeys(_list_words(parser))
        cases.append(f'            {name}) words="{" ".join(words)}" ;;')
    script = _SCRIPT.format(commands=" ".join(COMMANDS), cases="\n".join(cases))
    print((_ZSH if arguments.shell == "zsh" else "") + script, end="")
    return 0


def _list_words(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return the options of a command, the words of its positional arguments, and those of its own commands."""
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith("--"))
        if not action.option_strings:
            yield from map(str, action.choices or ())
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _list_words(inner)
