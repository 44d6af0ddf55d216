# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The black box of one process: its sign of life, its record, its stacks when asked, and its turn as the watcher.

An exporter like the others, since it lives from the same batches: what it does, it does on the drain thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable
from typing import Final

from verl_otel import _guard
from verl_otel.config import Config
from verl_otel.exporting.exporter import Exporter, file_word, remaining
from verl_otel.exporting.files import FileExporter
from verl_otel.exporting.fold import State
from verl_otel.model import Batch, OpenSpan, Resource, Scope
from verl_otel.recording import progress
from verl_otel.recording.records import Ended
from verl_otel.recording.store import Store
from verl_otel.semconv import attributes as attr
from verl_otel.session import resource
from verl_otel.session.black_box import limits, members, processes, run_end
from verl_otel.session.black_box.members import Member, Suspect
from verl_otel.session.black_box.post import Post
from verl_otel.session.black_box.stacks import StackFile, find_blocked
from verl_otel.session.black_box.watcher import Watcher

BEAT_SECONDS: Final = 0.9
"""Seconds between two signs of life, a little less than between two drains."""
POST_SECONDS: Final = 2.0
"""Seconds between two looks whether a watcher is needed."""
MAX_OF_A_NAME: Final = 8
"""Suspects of one span name that are told: the oldest."""
_STATES: Final[dict[object, str]] = {1: run_end.RUNNING, 2: run_end.FINISHED, 3: run_end.FAILED}
"""Values of ``verl.run.state``."""
GROWTH: Final = 1.05
"""How much longer the longest peer must be than the one that was told, for the record to be written again."""


class BlackBox(Exporter):
    """Writes what a watcher has to know of this process.

    Args:
        config: The settings.
    """

    name = "black_box"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config
        self._folder = config.run_path / members.FOLDER
        self._place = processes.read_place()
        self._open: tuple[OpenSpan, ...] = ()
        self._quiet: dict[int, int] = {}
        self._told: Member | None = None
        self._next_beat = self._next_post = 0.0
        self._watcher: Watcher | None = None
        self._asked = False
        self._blocked = ""
        self._drain = 0
        self._lock = threading.Lock()
        self._began = time.time()

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, resource: Resource, scope: Scope, state: State) -> None:  # noqa: ARG002 - as every exporter
        """Make the files of this process. Raises `OSError` where there can be none."""
        role = file_word(resource.text(attr.ROLE, "process"))
        self._who = f"{role}-{file_word(resource.text(attr.HOST_NAME, 'host'))}-{os.getpid()}"
        self._resource = resource
        self._folder.mkdir(parents=True, exist_ok=True)
        mine = processes.find(os.getpid())
        if mine is None:
            raise OSError("this system has no /proc")
        self._process = mine
        self._outputs = tuple(processes.read_outputs())
        self._stacks = StackFile(self._folder / f"{members.STACKS}{self._who}.txt")
        self._stacks.open()
        self._beat = os.open(self._folder / f"{members.BEAT}{self._who}", os.O_RDWR | os.O_CREAT, 0o644)
        self._ask = self._folder / f"{members.ASK}{self._who}"
        self._post = Post(self._folder, self._place)
        progress.switch(on=True)  # now that somebody will ask
        self._tell()

    def put_resource(self, resource: Resource) -> None:
        """Take the resource again; the names of the files stay."""
        self._resource = resource
        self._told = None

    def put(self, batch: Batch) -> None:
        """Keep what is open, and see whether the run has ended."""
        self._open = batch.open_spans
        for point in batch.points:
            if point.instrument.name == "verl.run.state":
                self._mark(_STATES.get(point.value, run_end.FINISHED))

    def _mark(self, state: str) -> None:
        """Say that the run has ended, and live a little longer than it: this process did not die before."""
        run_end.mark(self._config, state)
        with contextlib.suppress(OSError):
            os.utime(self._beat)

    def tick(self) -> None:
        """Give a sign of life, answer who asks, and take the post of the watcher if it is free."""
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_SECONDS
        with self._lock:
            self._work(now)
        self.cpu_seconds = self._watcher.cpu_seconds if self._watcher is not None else 0.0

    def _work(self, now: float) -> None:
        try:
            os.pwrite(self._beat, b"%8d %16d\n" % (len(Store.opened), Ended.count), 0)
            self._answer()
            self._drain = threading.get_native_id()
            self._tell()
            if now >= self._next_post:
                self._next_post = now + POST_SECONDS
                self._take_post()
        except OSError as error:
            self.complain("stalls", f"cannot write {self._folder}: {error.strerror}")

    def flush(self, deadline: float) -> None:
        """Nothing waits here."""

    def close(self, deadline: float) -> None:
        """Say goodbye: who ends in order is not missed. A thread that is still at work keeps its files."""
        progress.switch(on=False)
        self._next_beat = math.inf
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop(deadline)
        members.remove(self._folder, self._who)
        if self._lock.acquire(timeout=remaining(deadline)):
            self._post.leave()
            self._stacks.close()
            os.close(self._beat)

    def abandon(self) -> None:
        """Let go of handles, lock and handler in a forked child. The watcher's thread is the parent's."""
        self._watcher = None
        self._post.leave()
        self._stacks.abandon()
        os.close(self._beat)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _take_post(self) -> None:
        if self._watcher is not None and not self._watcher.is_alive():
            self._watcher = None
            self._post.leave()
        if self._watcher is None and self._can_take():
            self._watcher = Watcher(self._config, self._folder, self._place, self._began, self._post)
            self._watcher.start()

    def _can_take(self) -> bool:
        try:
            return self._post.take()
        except OSError as error:
            _guard.say(
                "watch",
                "verl-otel: stalls and crashes will not be seen: no lock in %s: %s",
                self._folder,
                error.strerror,
            )
            return False

    def _answer(self) -> None:
        """Write the stacks if somebody has asked for them; the record follows, and says so."""
        if self._ask.exists():
            with _guard.swallowed("stacks"):
                self._stacks.write()
                self._blocked = find_blocked()
            self._asked = True

    def _tell(self) -> None:
        """Write the record anew if it says something else than before."""
        with _guard.swallowed("black box"):
            peers = progress.read_peers()
            suspects = tuple(self._find_suspects(peers))
            before = self._told
            if (
                before is None
                or self._asked
                or suspects != before.suspects
                or self._drain != before.drain
                or _have_grown(before.peers, peers)
            ):
                self._told = self._describe(peers, suspects)
                members.write(self._folder, self._told)
                if self._asked:
                    self._asked = False
                    self._ask.unlink(missing_ok=True)  # now that the answer is there

    def _describe(self, peers: dict[str, progress.Peers], suspects: tuple[Suspect, ...]) -> Member:
        mine = self._resource
        rank = mine.attributes.get(attr.RANK)
        return Member(
            self._who,
            self._process,
            self._place,
            mine.text(attr.SERVICE_INSTANCE).rpartition("/")[2],
            mine.text(attr.ROLE, "process"),
            rank if isinstance(rank, int) else None,
            mine.text(attr.RAY_ACTOR),
            self._stacks.signal,
            max(BEAT_SECONDS, self._config.drain_interval),
            self._outputs,
            peers,
            suspects,
            tuple(f"{each.parent_id:016x}" for each in progress.read_served()),
            mine.text(attr.HOST_NAME),
            self._blocked,
            self._drain,
            resource.is_forked(),
        )

    def _find_suspects(self, peers: dict[str, progress.Peers]) -> Iterable[Suspect]:
        """Yield open spans that are old and quiet, and have no open ones below them here."""
        now = time.time_ns()
        self._note_moves(now)
        parents = {each.span.parent_id for each in self._open}
        told: dict[str, int] = {}
        for each in self._open:
            span = each.span
            quiet_ns = max(self._quiet.get(span.span_id, 0), span.start_ns)
            if span.span_id in parents or (now - quiet_ns) / 1e9 < limits.QUIET:
                continue
            count = told[span.name] = told.get(span.name, 0) + 1
            if count <= MAX_OF_A_NAME and each.age > limits.least(peers.get(span.name)):
                yield Suspect(
                    f"{span.trace_id:032x}",
                    f"{span.span_id:016x}",
                    f"{span.parent_id:016x}",
                    span.name,
                    span.start_ns,
                    quiet_ns,
                )

    def _note_moves(self, now: int) -> None:
        """Note below which open spans something has ended: directly, or further down."""
        above = {each.span.span_id: each.span.parent_id for each in self._open}
        quiet = {span: self._quiet[span] for span in above if span in self._quiet}
        for parent in progress.take_moved():
            walked = parent
            while walked in above and quiet.get(walked) != now:
                quiet[walked] = now
                walked = above[walked]
        self._quiet = quiet


class OpenFile(FileExporter):
    """Writes the open spans where the file exporter is off: what a process held when it died."""

    name = "open"

    def put(self, batch: Batch) -> None:
        """Keep what is open now."""
        self._open_spans = batch.open_spans

    def put_metrics(self, message: bytes) -> None:
        """Metrics go elsewhere."""

    def _write_metrics(self) -> None:
        """As above."""


def make(config: Config) -> list[Exporter]:
    """Return the black box, and what writes the open spans if the file exporter does not."""
    box = BlackBox(config)
    return [box] if "file" in config.exporters else [box, OpenFile(config.run_path)]


def _have_grown(told: dict[str, progress.Peers], peers: dict[str, progress.Peers]) -> bool:
    """Return whether the record is out of date: a new name, a longer peer, or twice as many of them."""
    return any(
        (known := told.get(name)) is None or now.longest > GROWTH * known.longest or now.ended >= 2 * known.ended
        for name, now in peers.items()
    )
