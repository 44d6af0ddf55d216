# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A file that grows by whole lines, is rotated by size and compressed, and continues after a line that was cut off."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary, rotated_files, safe_files
from verl_otel._internal.rotated_files import BLOCK_BYTES, SUFFIX, encode_block

COMPRESSED_PER_WRITTEN: Final = 4
"""Bytes that are compressed for each byte that is written: a part is compressed before a quarter of the next one is written, and several that wait before it is full."""
NEWEST: Final = 1
"""Part that is not compressed: who follows the file still reads it."""
MAX_PARTS: Final = 1000


def encode_line(value: Any) -> bytes:
    """Return a value as one line of JSON with its newline. Lone surrogates become question marks."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


class LineFile:
    """A file that grows by whole lines and is rotated by size.

    Args:
        path: The file; rotated ones get ``.1``, ``.2`` … before the suffix, the highest is the oldest. From ``.2`` on they are compressed,
            a block at a time, while lines are written.
        max_bytes: Size at which it is rotated.
        max_files: Files of this size whose bytes are kept, including the current one. Compressed, many more files have these bytes.
    """

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._handle: int | None = None
        self._identity = (0, 0)
        """Of the open file. Code that closes all descriptors of its process gives the number to a file of its own."""
        self._size = 0
        self._torn = False
        self._compression: Compression | None = None
        self._credit = 0
        """Bytes that may be compressed."""

    def write(self, lines: bytes) -> None:
        """Append lines, each with its newline.

        Raises:
            OSError: They were not written completely; the next write begins on a new line.
        """
        handle = self._handle
        if handle is None or safe_files.identify(handle) != self._identity:
            handle = self._open()
        if self._size >= self._max_bytes:
            handle = self._rotate()
        data = b"\n" + lines if self._torn else lines
        written = 0
        try:
            while written < len(data):
                written += os.write(handle, data[written:])
        except OSError:
            self._torn = self._torn or written > 0
            raise
        finally:
            self._size += written
        self._torn = False
        if self._compression is not None:
            self._compress(written)

    def close(self) -> None:
        """Close the file. A later write reopens it."""
        # Cleared first: a child that is forked before the close must not close this descriptor, whose number may be reused.
        handle, self._handle = self._handle, None
        compression, self._compression = self._compression, None
        if handle is not None and safe_files.identify(handle) == self._identity:
            os.close(handle)
        if compression is not None:
            compression.cancel()

    def _open(self) -> int:
        safe_files.make_folder(self.path.parent)
        self._handle = safe_files.open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._identity = safe_files.identify(self._handle)
        self._size = os.fstat(self._handle).st_size
        # A killed process may have left half a line; a later one with the same id, in a container, appends to the file.
        self._torn = bool(self._size) and os.pread(self._handle, 1, self._size - 1) != b"\n"
        return self._handle

    def _rotate(self) -> int:
        """Rotate before a write, so that the newest line is always in the current file. On failure the file grows."""
        self.close()
        try:
            if self._max_files == 1:
                self.path.unlink(missing_ok=True)
            else:
                self._shift()
        except OSError as error:
            error_boundary.warn_once(
                "file rotation", "verl-otel: cannot rotate %s: %s; it goes on growing", self.path, error.strerror
            )
        handle = self._open()
        self._credit = 0
        self._begin_compression()
        return handle

    def _shift(self) -> None:
        """Give each part the next number, and remove the oldest ones."""
        parts = rotated_files.find_parts(self.path)
        kept = min(self._size, self._max_bytes)
        for number in sorted(parts):
            if kept >= self._max_bytes * (self._max_files - 1) or number >= MAX_PARTS:
                for path in parts.pop(number):
                    path.unlink(missing_ok=True)
            else:
                kept += min(sum(path.stat().st_size for path in parts[number]), self._max_bytes)
        for number in sorted(parts, reverse=True):
            for path in parts[number]:
                compressed = rotated_files.is_compressed(path)
                path.replace(rotated_files.name_part(self.path, number + 1, compressed=compressed))
        self.path.replace(rotated_files.name_part(self.path, NEWEST))

    def _begin_compression(self) -> None:
        """Begin with the oldest part that is not compressed."""
        plain = [
            path
            for number, paths in rotated_files.find_parts(self.path).items()
            for path in paths
            if number > NEWEST and not rotated_files.is_compressed(path)
        ]
        with self._reporting():
            for path in self.path.parent.glob(f"{self.path.stem}.*{self.path.suffix}{SUFFIX}{UNFINISHED}"):
                path.unlink()  # of a process with the same id that was killed
            if plain:
                self._compression = Compression(max(plain, key=rotated_files.number_of))

    def _compress(self, written: int) -> None:
        self._credit += COMPRESSED_PER_WRITTEN * written
        while self._credit >= BLOCK_BYTES and self._compression is not None:
            with self._reporting():
                compressed = self._compression.advance()
                self._credit -= compressed
                if not compressed:
                    self._compression = None
                    self._begin_compression()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Give the compression up on an error; the part stays as it is, and the next rotation tries again."""
        try:
            yield
        except OSError as error:
            compression, self._compression = self._compression, None
            if compression is not None:
                compression.cancel()
            error_boundary.warn_once(
                "file compression", "verl-otel: cannot compress a part of %s: %s", self.path, error.strerror
            )


UNFINISHED: Final = ".part"
"""Added to the name of a file that is not yet whole."""


class Compression:
    """The compression of one file that is no longer written to.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be read, or the compressed file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._target = path.with_name(path.name + SUFFIX)
        self._unfinished = self._target.with_name(self._target.name + UNFINISHED)
        self._process = os.getpid()
        self._place = 0
        self._begins_line = True
        self._source = safe_files.open_private(path, os.O_RDONLY)
        try:
            self._handle = safe_files.open_private(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except BaseException:
            os.close(self._source)
            raise

    def advance(self) -> int:
        """Compress one block; return its bytes, or 0 if there was none left and the file has been replaced.

        Raises:
            OSError: It cannot be read or written. `cancel` is to be called.
        """
        content = os.pread(self._source, BLOCK_BYTES, self._place)
        if not content:
            self._replace()
            return 0
        end = content.rfind(b"\n") + 1
        content = content[:end] if end else content  # a line that is longer than a block is divided
        data = encode_block(content, begins_line=self._begins_line)
        while data:
            data = data[os.write(self._handle, data) :]
        self._place += len(content)
        self._begins_line = bool(end)
        return len(content)

    def _replace(self) -> None:
        status = os.fstat(self._source)
        os.utime(self._handle, ns=(status.st_atime_ns, status.st_mtime_ns))  # readers look for the oldest file
        self._close()
        self._unfinished.replace(self._target)
        self._path.unlink()

    def cancel(self) -> None:
        """Leave the file as it is. In a forked child, the unfinished file stays: it is its parent's."""
        self._close()
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                self._unfinished.unlink(missing_ok=True)

    def _close(self) -> None:
        # Cleared first: a child that is forked in between must not close these descriptors, whose numbers may be reused.
        handles, self._source, self._handle = (self._source, self._handle), -1, -1
        for handle in handles:
            with contextlib.suppress(OSError):
                os.close(handle)
