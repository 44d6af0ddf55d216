# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explain a recorded run, on a machine without verl, Ray, PyTorch or a GPU.

The runs come with the package. They were recorded from real verl on two CPU cores, and in each but `healthy` one fault was planted. NAME is
one of them; slow-tool if absent.

Examples:
  verl-otel demo
  verl-otel demo late-rank
  verl-otel demo --list
  verl-otel demo crash --html crash.html
  verl-otel demo slow-tool --json | jq '.steps[0].verdicts'
  verl-otel demo --keep runs

Exit code: 0 shown, also when the run has a finding; 2 wrong usage, such as an unknown name, or a file cannot be written.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import shlex
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal.printable import show
from verl_otel._internal.rotated_files import SUFFIX
from verl_otel.cli import main
from verl_otel.cli.formatting import align, print_json, print_text
from verl_otel.errors import VerlOtelError

RECORDED: Final = Path(__file__).resolve().parent / "recorded"
"""The folders of the runs; `tests/end_to_end/record_demo.py` writes them."""
KEPT: Final = "runs"
"""Folder of copies, in commands that are shown."""
VERL: Final = "0.9.1"
"""The version of verl that was recorded."""


class Recording(NamedTuple):
    """A recorded run."""

    steps: int
    """Steps that have ended."""
    planted: str
    """The fault."""
    compared_with: str = ""
    """The run that it is compared with; empty: it is explained."""


RECORDINGS: Final = {
    "slow-tool": Recording(8, "one call of a tool, in step 4, took 2.5 s longer"),
    "blocked-event-loop": Recording(8, "a tool, in step 4, blocked the event loop of its process for 2.5 s"),
    "late-rank": Recording(8, "rank 1 came 2 s late to the update of the policy in step 4"),
    "stall": Recording(8, "one call of a tool, in step 4, hung for 45 s"),
    "crash": Recording(3, "the process of the agents was killed in step 4"),
    "healthy": Recording(8, "nothing"),
    "slower-tools": Recording(8, "every call of a tool took 0.5 s longer", compared_with="healthy"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "name", nargs="?", choices=RECORDINGS, metavar="NAME", help="name of a recorded run, see --list (slow-tool)"
    )
    parser.add_argument("--list", action="store_true", help="list the recorded runs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: of the command that is shown, or of the list")
    form.add_argument("--html", type=Path, metavar="FILE", help="write the run as one HTML page")
    form.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="copy the run, or all without NAME, into this folder, for other commands",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a run, or what was asked for besides. Returns 0, or the exit code of the command that was called."""
    name = arguments.name or "slow-tool"
    if arguments.list:
        if arguments.json:
            rows = [{"name": name, "steps": run.steps, "planted": run.planted} for name, run in RECORDINGS.items()]
            print_json({"runs": rows, "next": [f"verl-otel demo {name}"]})
        else:
            print(_list_runs())
        return 0
    if arguments.keep is not None:
        return _keep(arguments.keep, [arguments.name] if arguments.name else [*RECORDINGS])
    if arguments.html is not None:
        return main(["report", str(RECORDED / name), "--html", str(arguments.html)])
    recording = RECORDINGS[name]
    command, runs = ("compare", [recording.compared_with, name]) if recording.compared_with else ("explain", [name])
    words = [command, *(str(RECORDED / each) for each in runs)]
    if arguments.json:
        code, printed = _capture([*words, "--json"])
        document = json.loads(printed)
        document["next"] = [f"verl-otel demo --keep {KEPT}", *map(_name_kept, document["next"])]
        print_json(document)
        return code
    print(
        f"A recorded run of verl {VERL}: {recording.steps} steps of a tiny model with a tool, on two CPU cores. "
        f"Planted: {recording.planted}.\n"
    )
    if command == "explain":  # which shows it under "Engine and trainer"
        print(
            "The engine is a stand-in: it reports the same probability for every token, and so differs from the trainer.\n"
        )
    print(f"$ verl-otel {' '.join([command, *runs])}\n", flush=True)
    code, printed = _capture(words)
    text, _, command = _name_kept(printed).rpartition("\nNext: ")
    print_text(f"{text}\n{_say_next(name, command.strip())}")
    return code


def _capture(words: list[str]) -> tuple[int, str]:
    """Call a command. Returns its exit code and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(words)
    return code, printed.getvalue()


def _name_kept(text: str) -> str:
    """Return a text with commands on recorded runs as they work on copies of them: those of the package may be read-only."""
    return text.replace(f" {RECORDED}/", f" {KEPT}/")


def _list_runs() -> str:
    rows = [
        [name, f"{recording.steps} steps", f"planted: {recording.planted}"] for name, recording in RECORDINGS.items()
    ]
    return "\n".join([*align(rows, right=()), "", "Next: verl-otel demo NAME"])


def _keep(folder: Path, names: list[str]) -> int:
    """Write runs as they were recorded, not compressed: commands that look at the end of a file expect that."""
    for name in names:
        try:
            (folder / name).mkdir(parents=True)
        except FileExistsError:
            message = f"{folder / name} is there already: remove it, or give another folder"
            raise VerlOtelError(message) from None
        for path in filter(Path.is_file, (RECORDED / name).rglob("*")):
            data = path.read_bytes()
            is_compressed = path.suffix == SUFFIX
            kept = (
                folder / name / path.relative_to(RECORDED / name).with_name(path.stem if is_compressed else path.name)
            )
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(gzip.decompress(data) if is_compressed else data)
    print(f"{', '.join(names)}: copied to {show(folder)}. To try other commands on them:")
    print(f"  $ export VERL_OTEL_RUN_DIR={show(shlex.quote(str(folder.absolute())))}")
    print(f"  $ verl-otel report {names[0]}")
    return 0


def _say_next(shown: str, command: str) -> str:
    """Return the next commands, in an order in which each can run.

    Args:
        shown: The recorded run that was shown.
        command: What shows more of its copy.
    """
    others = ", ".join(name for name in RECORDINGS if name != shown)
    return (
        f"Other commands work on copies of the recorded runs:\n"
        f"  $ verl-otel demo --keep {KEPT}\n"
        f"  $ {command}\n"
        f"Other recorded runs: verl-otel demo NAME, with {others}.\n"
        "Your own training, with this package in its environment:\n"
        "  $ VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ...\n"
        "  $ verl-otel explain"
    )
