# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What was understood of a long run, kept for the next time: then only what was written since is read.

A checkpoint is the aggregator at a moment of the run before which nothing is written any more, with what was read of each file. A file is
recognised by its first bytes, whether it was rotated or compressed since. A checkpoint is not used if anything is in doubt: then the run is
read from its beginning.

Checkpoints are pickled. They are in the cache folder of the user, never in the folder of a run, and only read if no other user can write them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal import rotated_files, safe_files
from verl_otel._internal.rotated_files import Head
from verl_otel.analysis.aggregator import Aggregator
from verl_otel.analysis.io import slices
from verl_otel.analysis.io.run_files import Extent
from verl_otel.analysis.traces.clocks import Clock

MAX_FILES: Final = 8
"""Checkpoints that are kept, the newest."""
MAX_BYTES: Final = 512 << 20
LEAST_BYTES: Final = 256 << 20
"""Bytes that must have been read since the last checkpoint for another one: writing it takes a second or two."""
MIN_SLICES: Final = 2
"""The last one is read again: lines may be added to it."""
_SUFFIX: Final = ".checkpoint"
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Part(NamedTuple):
    """What was read of one file."""

    name: str
    """Path of the file before it was rotated."""
    head: Head
    end: int
    """Offset of the first line that was not read."""


class Checkpoint(NamedTuple):
    """A run up to a moment."""

    aggregator: Aggregator
    clocks: Mapping[str, Clock]
    moment_ns: int
    """What was written before this time has been added, and nothing else of the traces."""
    parts: tuple[Part, ...]
    """Of traces and metrics files."""


def cache_folder() -> Path:
    """Return the folder of the checkpoints of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "verl-otel" / "checkpoints"


def path_of(cache: Path, folders: Iterable[Path], run_id: str, steps: frozenset[int] | None) -> Path:
    """Return the file of a checkpoint: another one for another version of the code, other folders, or other steps."""
    top = Path(__file__).parent.parent
    code = [
        (str(path.relative_to(top)), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(top.rglob("*.py"))
    ]
    places = sorted(str(folder.resolve()) for folder in folders)
    key = json.dumps([sys.version, code, places, run_id, None if steps is None else sorted(steps)])
    return cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{_SUFFIX}"


def load(path: Path) -> Checkpoint | None:
    """Return a checkpoint; None if there is none that can be trusted and read."""
    try:
        if not _is_own(path.parent.lstat()):
            return None
        with safe_files.open_regular(path, follow=False) as file:
            status = os.fstat(file.fileno())
            if not _is_own(status) or status.st_size > MAX_BYTES:
                return None
            checkpoint = pickle.load(file)  # noqa: S301 - only this user can have written it
    except Exception:
        return None
    return checkpoint if isinstance(checkpoint, Checkpoint) else None


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, and remove the oldest ones. If that fails the next reading takes longer."""
    with contextlib.suppress(Exception):
        data = pickle.dumps(checkpoint, pickle.HIGHEST_PROTOCOL)
        if len(data) > MAX_BYTES:
            return
        safe_files.make_folder(path.parent)
        safe_files.write_atomically(path, data)
        others = sorted(path.parent.glob(f"*{_SUFFIX}"), key=lambda other: other.stat().st_mtime, reverse=True)
        for other in others[MAX_FILES:]:
            other.unlink(missing_ok=True)


def read_heads(paths: Iterable[Path]) -> dict[Path, Head]:
    """Return the beginnings of files. Those that cannot be read are left out."""
    heads = {}
    for path in paths:
        with contextlib.suppress(OSError):
            heads[path] = rotated_files.read_head(path)
    return heads


def make_parts(heads: Mapping[Path, Head], ends: Mapping[Path, int]) -> tuple[Part, ...] | None:
    """Return what was read of files; None if a file was rotated meanwhile, so that its path is another one's.

    Args:
        heads: Beginnings of the files, as they were before they were read.
        ends: Offsets up to which they were read.
    """
    parts = tuple(Part(_name(path), heads[path], end) for path, end in ends.items() if path in heads and end)
    is_same = all(rotated_files.has_head(path, heads[path]) for path, end in ends.items() if path in heads and end)
    return parts if is_same else None


def find_begins(checkpoint: Checkpoint, heads: Mapping[Path, Head]) -> dict[Path, int] | None:
    """Return the offsets from which files are to be read; None if the checkpoint does not belong to them.

    Files that have been deleted since stay in the checkpoint. A file that was not known must be younger than the checkpoint.
    """
    begins: dict[Path, int] = {}
    by_name: dict[str, list[Part]] = {}
    for part in checkpoint.parts:
        by_name.setdefault(part.name, []).append(part)
    for path, head in heads.items():
        parts = by_name.get(_name(path), ())
        known = [part for part in parts if part.head == head or _is_beginning(path, head, part.head)]
        if len(known) > 1:
            return None
        if known:
            begins[path] = known[0].end
            if rotated_files.size_of(path) < known[0].end:
                return None
        elif path.name.startswith("traces-") and slices.read_first_time(path) < checkpoint.moment_ns:
            return None
    return begins or None


def _is_beginning(path: Path, head: Head, known: Head) -> bool:
    """Return whether a file has grown since less of it was known."""
    return known.length < head.length and rotated_files.has_head(path, known)


def _name(path: Path) -> str:
    return str(path.resolve().parent / rotated_files.whole_name(path))


class Keeper:
    """The checkpoint with which a reading begins, and the one that it leaves.

    Args:
        cache: Folder of the checkpoints; None: none is used, and none is written.
        folders: Folders of the run.
        run_id: Id of the run.
        steps: Numbers of steps whose detail is kept.
        paths: All files that are to be read.
    """

    def __init__(
        self,
        cache: Path | None,
        folders: Iterable[Path],
        run_id: str,
        steps: frozenset[int] | None,
        paths: Iterable[Path],
    ) -> None:
        self._path = None if cache is None else path_of(cache, folders, run_id, steps)
        self._heads = {} if cache is None else read_heads(paths)
        self.aggregator: Aggregator | None = None
        self.clocks: Mapping[str, Clock] = {}
        self.moment_ns = slices.BEGINNING
        """Time before which nothing is to be read."""
        self.begins: Mapping[Path, int] = {}
        """Offsets from which files are to be read."""
        checkpoint = None if self._path is None else load(self._path)
        begins = None
        if checkpoint is not None:
            with contextlib.suppress(OSError):
                begins = find_begins(checkpoint, self._heads)
        if checkpoint is not None and begins is not None:
            self.aggregator, self.clocks, self.moment_ns, _ = checkpoint
            self.begins = begins

    def discard(self) -> None:
        """Begin without a checkpoint."""
        self.aggregator, self.clocks, self.moment_ns, self.begins = None, {}, slices.BEGINNING, {}

    def save(
        self,
        aggregator: Aggregator,
        host_clocks: Mapping[str, Clock],
        metrics: Sequence[Sequence[Extent]],
        pieces: Sequence[slices.Slice],
        bytes_read: int,
    ) -> None:
        """Write a checkpoint if it is worth it.

        Args:
            aggregator: It has all metrics, and all slices but the last one.
            host_clocks: The clock of each host.
            metrics: What was read of the metrics files.
            pieces: The slices; to the last one lines may still be added.
            bytes_read: Of metrics and all slices but the last.
        """
        if self._path is None or len(pieces) < MIN_SLICES or bytes_read < LEAST_BYTES or aggregator.opened:
            return
        ends = dict(self.begins)
        ends.update((extent.path, extent.end) for piece in pieces[:-1] for extent in piece.extents)
        read = {extent.path: extent.end for extents in metrics for extent in extents}
        ends.update((path, slices.find_whole_end(path, end)) for path, end in read.items())
        parts = make_parts(self._heads, ends)
        if parts is not None:
            save(self._path, Checkpoint(aggregator, host_clocks, pieces[-1].begin_ns, parts))
