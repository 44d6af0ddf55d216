# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An incident, and the inquiry into it: who is asked for stacks, and what was written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from verl_otel.session.black_box import culprits, members, processes
from verl_otel.session.black_box.culprits import Finding
from verl_otel.session.black_box.roll import Roll
from verl_otel.session.black_box.scene import ALIVE, FROZEN, Scene

MAX_ASKED: Final = 12
"""Processes that are asked for their stacks: the culprit, who waits, the ranks of a call."""


class Incident:
    """A finding from its discovery until it is resolved."""

    def __init__(self, finding: Finding, now: float) -> None:
        self.finding = finding
        self.first = self.seen = now
        self.asked: dict[str, float] = {}
        """Processes that were asked for their stacks, and the Unix time of that."""
        self.answered: float | None = None
        self.said: float | None = None
        """When it was reported last."""
        self.silent = False
        """Whether it was only noted: somebody wanted it, or it was reported lately."""
        self.missed = ""
        """What waited for it when it was reported, by span id."""


class Inquiry:
    """Asks the processes of a node where they stand.

    Args:
        folder: Where they look for the question and write the answer.
        roll: The processes of this node.
    """

    def __init__(self, folder: Path, roll: Roll) -> None:
        self._folder = folder
        self._roll = roll

    def ask(self, scene: Scene, incident: Incident) -> None:
        """Have the processes concerned write where they stand: those that answer by a file, the frozen ones by a signal."""
        for who in culprits.concerned(scene, incident.finding)[:MAX_ASKED]:
            sight = self._roll.sights.get(who)
            if sight is None:
                continue
            if sight.state == ALIVE:
                (self._folder / f"{members.ASK}{who}").touch()
            elif sight.state != FROZEN or not processes.send(sight.member.process, sight.member.signal):
                continue
            incident.asked[who] = time.time()

    def has_answered(self, incident: Incident) -> bool:
        """Return whether everybody who was asked has written."""
        return all(self._has_written(incident, who) for who in incident.asked)

    def _has_written(self, incident: Incident, who: str) -> bool:
        sight = self._roll.sights.get(who)
        if sight is not None and sight.state == ALIVE:
            return not (self._folder / f"{members.ASK}{who}").exists()
        return self._stack_time(who) >= incident.asked[who] - 1.0

    def _stack_time(self, who: str) -> float:
        try:
            found = (self._folder / f"{members.STACKS}{who}.txt").stat()
        except OSError:
            return 0.0
        return found.st_mtime if found.st_size else 0.0

    def find_stacks(self, incident: Incident) -> dict[str, str]:
        """Return where the stacks are, by process id."""
        found = {}
        for who, asked in incident.asked.items():
            sight = self._roll.sights.get(who)
            if sight is not None and self._stack_time(who) >= asked - 1.0:
                found[str(sight.member.process.pid)] = f"{members.FOLDER}/{members.STACKS}{who}.txt"
        return found

    def clear(self, incident: Incident) -> None:
        """Take back what was asked and not answered."""
        for who in incident.asked:
            (self._folder / f"{members.ASK}{who}").unlink(missing_ok=True)
