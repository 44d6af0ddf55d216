# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The roll of a node: which processes of the run there are, when each was heard of last, and how their memory went."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from verl_otel.recording.progress import Peers
from verl_otel.session.black_box import limits, members, processes
from verl_otel.session.black_box.members import Member
from verl_otel.session.black_box.scene import ALIVE, DIED, FROZEN, STOPPED, Row, read_rows

STOPPED_SILENT: Final = 3.0
"""Seconds without a sign of life after which a process that the kernel calls stopped is taken to be so."""
MISSED: Final = 3
"""Signs of life that a process may miss before it is doubtful: a drain may take long."""
MEMORY_SECONDS: Final = 5.0
MEMORY_LENGTH: Final = 120
"""Ten minutes of memory."""
MAX_MEMBERS: Final = 1024
MAX_SILENT: Final = 600.0
DOUBT: Final = 30.0
"""Seconds of silence after which nobody waits any more for what becomes of a process: it may wait for a disk for hours."""


class Sight:
    """A process as the watcher sees it."""

    def __init__(self, member: Member, version: tuple[int, int, int]) -> None:
        self.member = member
        self.version = version
        self.state = ALIVE
        self.doing = ""
        """The kernel's word for what it does."""
        self.beat = 0
        self.heard = time.monotonic()
        """When a sign of life was seen last."""
        self.held = 0
        """Spans that it had open at its last sign of life."""
        self.ended = -1
        self.moved = 0.0
        """When it was seen last that spans of it had ended."""
        self.waited = -math.inf
        """When its thread that gives the signs of life was seen last to wait for a disk."""
        self.died: float | None = None
        """When it was found to be dead, or was of any interest last."""
        self.memory: deque[tuple[int, int]] = deque(maxlen=MEMORY_LENGTH)
        """Unix seconds and bytes."""
        self.rows: tuple[Row, ...] = ()
        self.rows_version: tuple[int, int] | None = None

    @property
    def silent(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self.heard

    @property
    def is_doubtful(self) -> bool:
        """Whether it has missed signs of life, but not enough to be called frozen."""
        return (
            self.state == ALIVE and MISSED * self.member.interval < self.silent < DOUBT + MISSED * self.member.interval
        )

    @property
    def is_stuck(self) -> bool:
        """Whether it is alive, but cannot tell what it does: its disk does not answer. What it told last may be over."""
        return self.state == ALIVE and self.silent > max(limits.SILENT, MISSED * self.member.interval)


class Roll:
    """All processes of a run on this node.

    Args:
        run_path: The run's folder.
        place: This node.
        since: Unix time; who was heard of before it only, belongs to an earlier attempt.
    """

    def __init__(self, run_path: Path, place: str, since: float) -> None:
        self._run_path = run_path
        self._folder = run_path / members.FOLDER
        self._place = place
        self._since = since
        self._foreign: dict[Path, tuple[int, int, int]] = {}
        self._memory_at = 0.0
        self.sights: dict[str, Sight] = {}
        self.left: dict[str, Peers] = {}
        """How long the work of those took who were forgotten: that of others may take as long."""
        self.changed = True
        """Whether somebody has told something new since this was set to False."""

    def refresh(self) -> None:
        """Read what has changed, and see who lives."""
        paths = members.list_paths(self._folder)[:MAX_MEMBERS]
        present = set()
        for path in paths:
            who = path.name[len(members.RECORD) : -len(".json")]
            present.add(who)
            self._read(path, who)
        for who in [who for who in self.sights if who not in present]:
            del self.sights[who]  # it has said goodbye
            self.changed = True
        for sight in list(self.sights.values()):
            self._look(sight)
            if sight.state == DIED and sight.member.child:
                self.forget(sight.member.who)  # as its parent may have wanted
                (self._run_path / sight.member.open_name).unlink(missing_ok=True)
        if time.monotonic() >= self._memory_at:
            self._memory_at = time.monotonic() + MEMORY_SECONDS
            for sight in self.sights.values():
                self._weigh(sight)

    def forget(self, who: str) -> None:
        """Take a dead process off the roll."""
        members.remove(self._folder, who)
        sight = self.sights.pop(who, None)
        if sight is not None:
            self.left = limits.merge_all([self.left, sight.member.peers])
            self.changed = True

    def forgive(self) -> None:
        """Take everybody to have been heard of now: this watcher itself was not there."""
        for sight in self.sights.values():
            sight.heard = time.monotonic()

    def read_rows(self) -> Iterable[Row]:
        """Yield what is open in all processes; a file that is as it was is not read again."""
        for who, sight in self.sights.items():
            path = self._run_path / sight.member.open_name
            try:
                found = path.stat()
            except OSError:
                sight.rows, sight.rows_version = (), None
                continue
            version = found.st_mtime_ns, found.st_ino
            if version != sight.rows_version:
                sight.rows, sight.rows_version = tuple(read_rows(path, who)), version
            yield from sight.rows

    def _read(self, path: Path, who: str) -> None:
        try:
            found = path.stat()
        except OSError:
            return
        version = found.st_mtime_ns, found.st_ino, found.st_size
        known = self.sights.get(who)
        if (known is not None and known.version == version) or self._foreign.get(path) == version:
            return
        member = members.read(path)
        if member is None:
            return
        if member.place != self._place:
            self._foreign[path] = version
            return
        self.changed = True
        if known is not None and known.member.process == member.process:
            known.member, known.version = member, version
            return
        sight = Sight(member, version)
        sight.beat = self._beat(who)
        self._count(sight)
        self._weigh(sight)
        age = time.time() - sight.beat / 1e9
        if processes.state(member.process) == processes.GONE and sight.beat / 1e9 < self._since:
            members.remove(self._folder, who)  # it belongs to an attempt before this one
            return
        sight.heard -= min(max(age, 0.0), MAX_SILENT)
        self.sights[who] = sight

    def _beat(self, who: str) -> int:
        try:
            return (self._folder / f"{members.BEAT}{who}").stat().st_mtime_ns
        except OSError:
            return 0

    def _look(self, sight: Sight) -> None:
        member = sight.member
        beat = self._beat(member.who)
        if beat != sight.beat:
            sight.beat, sight.heard = beat, time.monotonic()
            self._count(sight)
        sight.doing = processes.state(member.process)
        if sight.doing == processes.GONE:
            sight.state = DIED
            sight.died = sight.died or time.monotonic()
            return
        silent, late = sight.silent, MISSED * member.interval
        if silent > late and processes.waits_for_device(member.process, member.drain):
            sight.waited = time.monotonic()
        if sight.doing in ("stopped", "traced") and silent > max(STOPPED_SILENT, late):
            sight.state = STOPPED
        elif silent > max(limits.SILENT, late) and time.monotonic() - sight.waited > limits.SILENT:
            sight.state = FROZEN
        else:
            sight.state = ALIVE

    def _count(self, sight: Sight) -> None:
        """Read how many spans a process has open, and whether any has ended since the last sign of life."""
        try:
            held, ended = map(int, (self._folder / f"{members.BEAT}{sight.member.who}").read_bytes().split())
        except (OSError, ValueError):
            return
        if ended != sight.ended:
            sight.ended, sight.moved = ended, time.monotonic()
        sight.held = held

    def _weigh(self, sight: Sight) -> None:
        held = processes.read_memory(sight.member.process.pid) if sight.state != DIED else 0
        if held:
            sight.memory.append((int(time.time()), held))
