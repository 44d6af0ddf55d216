# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What each process of a run says of itself, for whoever watches: who it is, how long its work takes, what looks stuck to it.

``process-<who>.json`` is replaced when something changes, which is seldom while all is well; ``beat-<who>`` is
written every second, with the numbers of spans that are open
and that have ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel.recording.progress import Peers
from verl_otel.session.black_box.processes import Process

FOLDER: Final = "black-box"
"""Folder of these files in the run's folder."""
RECORD, BEAT, STACKS, ASK = "process-", "beat-", "stacks-", "ask-"
_UNREADABLE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError)


class Suspect(NamedTuple):
    """An open span that is old by what its own process knows, with nothing open below it there."""

    trace: str
    span: str
    """Ids in hexadecimal, as they are in the files."""
    parent: str
    name: str
    start_ns: int
    quiet_ns: int
    """Unix time in nanoseconds since which nothing has ended below it."""


class Member(NamedTuple):
    """One process of the run."""

    who: str
    """``<role>-<host>-<pid>``, as in the names of its files."""
    process: Process
    place: str
    """Where its process id means something."""
    instance: str
    role: str
    rank: int | None
    actor: str
    """Ray's id of the actor in it; empty: none."""
    signal: int
    interval: float
    """Seconds between two signs of life."""
    outputs: tuple[str, ...]
    peers: dict[str, Peers]
    suspects: tuple[Suspect, ...]
    served: tuple[str, ...]
    """Ids of the calls that it has answered lately; kept up to date only for those who ask."""
    host: str = ""
    blocked: str = ""
    """Where its event loop is blocked; kept up to date only for those who ask."""
    drain: int = 0
    """The kernel's id of the thread that gives the signs of life; 0: it has not begun."""
    child: bool = False
    """Whether it is a forked child, which its parent may end at any time."""

    @property
    def open_name(self) -> str:
        """Name of the file with its open spans."""
        return f"open-{self.who}.jsonl"


def write(folder: Path, member: Member) -> None:
    """Replace the record of a process. Raises `OSError`."""
    made = {**member._asdict(), "process": list(member.process)}
    made["peers"] = {
        name: [each.ended, *(round(seconds, 4) for seconds in each.top)] for name, each in member.peers.items()
    }
    path = folder / f"{RECORD}{member.who}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(made, separators=(",", ":")), "utf-8")
    temporary.replace(path)


def read(path: Path) -> Member | None:
    """Return what a process has said; None if it has gone in order or its file is damaged."""
    try:
        said: dict[str, Any] = json.loads(path.read_bytes())
        pid, start = said["process"]
        return Member(
            str(said["who"]), Process(int(pid), int(start)), str(said["place"]), str(said["instance"]), str(said["role"]),
            None if said["rank"] is None else int(said["rank"]), str(said["actor"]), int(said["signal"]),
            float(said["interval"]), tuple(map(str, said["outputs"])),
            {str(name): Peers(int(values[0]), tuple(map(float, values[1:]))) for name, values in said["peers"].items()},
            tuple(Suspect(*each) for each in said["suspects"]), tuple(map(str, said["served"])), str(said["host"]),
            str(said["blocked"]), int(said["drain"]), bool(said["child"]),
        )  # fmt: skip
    except _UNREADABLE:
        return None


def remove(folder: Path, who: str) -> None:
    """Take the files of a process away, all but its stacks."""
    for name in (f"{RECORD}{who}.json", f"{BEAT}{who}", f"{ASK}{who}"):
        (folder / name).unlink(missing_ok=True)


def list_paths(folder: Path) -> list[Path]:
    """Return the records of all processes in a folder; none if there is no such folder."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed, every second
    except OSError:
        return []
    return [folder / name for name in names if name.startswith(RECORD) and name.endswith(".json")]
