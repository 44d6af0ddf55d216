# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Sources: what is read at collection and nowhere else, such as the counters of a GPU. Some of them by one process of a node alone.

A source opens nothing before the first collection. What belongs to a node is read by the process that holds a lock in the run's folder:
the kernel gives it free when its holder dies, and a holder that is frozen has a deputy. Two runs on one node have a reader each, since
each has its own resource, and a container that hides the others' processes counts as a node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from verl_otel import _guard
from verl_otel.config import Config
from verl_otel.recording import recorder
from verl_otel.recording.recorder import Measurement
from verl_otel.session.black_box import processes
from verl_otel.session.black_box.post import STALE, Post

MISSED: Final = 3
"""Collections without a sign of life after which whoever reads a node is taken to be frozen."""
FOLDER: Final = "hardware"
"""Folder of the locks, and of what readers tell the others, in the run's folder."""
NAME: Final = "reader"
"""What the lock of a node is called in the run's folder."""


class Place(NamedTuple):
    """Where the processes of one run on one node find each other."""

    folder: Path
    """A folder of the run, perhaps shared with other nodes."""
    node: str
    """This node, as a part of the names of files there."""


class Source(Protocol):
    """Something that is read at collection. Nothing here may raise into the collection or hold it up for seconds."""

    @property
    def name(self) -> str:
        """What it is of."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that `read` may name, so that a series which it does not name any more is known to be gone."""

    @property
    def once_per_node(self) -> bool:
        """Whether one process of a node reads it for all."""

    def read(self, place: Place) -> Iterable[Measurement]:
        """Return what there is now."""

    def close(self) -> None:
        """Let go of everything; `read` may be called again, by a later session or in a forked child."""


class Since:
    """Counters of others, counted from when this process began to read them; one that begins anew goes on.

    One that falls a little has not begun anew: the kernel says that its ``iowait`` may. It counts again from where it was highest.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, float]] = {}

    def count(self, key: Hashable, value: float) -> float:
        """Return by how much a counter has grown since it was seen for the first time.

        Args:
            key: Which counter.
            value: What it says now.

        Example:
            count("a", 70) == 0.0; count("a", 75) == 5.0; count("a", 74) == 5.0; count("a", 2) == 7.0
        """
        last, total = self._known.get(key, (value, 0.0))
        if value < last / 2:
            last = 0.0
        highest = max(last, value)
        total += highest - last
        self._known[key] = highest, total
        return total


class _Readers:
    """The sources of this process."""

    known: dict[str, Source] = {}
    post: Post | None = None


def add(source: Source) -> None:
    """Have a source read in this process; a second one of the same name replaces the first."""
    _Readers.known[source.name] = source


def start(config: Config) -> None:
    """Have every source asked at each collection of a session that begins, unless nothing is to leave the process."""
    _Readers.post = None
    if not config.hardware or not config.exporters:
        return
    place = find_place(config)
    stale = max(STALE, MISSED * config.metric_interval)
    for source in list(_Readers.known.values()):
        recorder.observe_all(source.name, source.metrics, partial(_ask, source, place, stale))


def stop() -> None:
    """Close every source and give the post up: the session ends, or this is a forked child, which holds its parent's lock."""
    if _Readers.post is not None:
        _Readers.post.leave()
        _Readers.post = None
    for source in list(_Readers.known.values()):
        with _guard.swallowed(f"close {source.name}"):
            source.close()


def remove(name: str) -> None:
    """Forget a source: what added it is taken back."""
    source = _Readers.known.pop(name, None)
    if source is not None:
        source.close()


def find_place(config: Config) -> Place:
    """Return where the processes of this run on this node find each other."""
    return Place(config.run_path / FOLDER, processes.read_place())


def _ask(source: Source, place: Place, stale: float) -> Iterable[Measurement]:
    if source.once_per_node and not _reads_node(place, stale):
        source.close()
        return ()
    return source.read(place)


def _reads_node(place: Place, stale: float) -> bool:
    """Return whether this process is the one that reads the node, and become it if nobody is."""
    try:
        if _Readers.post is None:
            place.folder.mkdir(parents=True, exist_ok=True)
            _Readers.post = Post(place.folder, place.node, NAME, stale)
        post = _Readers.post
        if not post.is_held:
            return post.take()
        post.touch()
        if post.is_relieved():
            post.leave()
        return post.is_held
    except OSError as error:
        _guard.say("sources", "verl-otel: nobody reads this node's GPUs: cannot lock in %s: %s", place.folder, error)
        return False
