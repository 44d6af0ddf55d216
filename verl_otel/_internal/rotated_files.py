# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files of lines that are rotated by size and then compressed: their names, the format of the compressed ones, and how both are read.

``traces-x.jsonl`` grows. ``traces-x.1.jsonl`` is the part before it, ``.2`` the one before that. All but ``.1`` are
compressed after a while: ``traces-x.2.jsonl.gz``. For a moment a part exists in both forms, and the one that is not
compressed counts.

A compressed file is gzip with one member per block, and ``zcat`` reads it. A field in the header of each member has the
length of the member and of its block, so a reader goes from member to member, and decompresses only the blocks that it
needs. The content of a file is not trusted: it may be damaged, or another program's.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from verl_otel._internal import safe_files

SUFFIX: Final = ".gz"
BLOCK_BYTES: Final = 1 << 20
"""Bytes of a block: small enough to find a place, large enough to compress well."""
MAX_BLOCK: Final = 4 << 20
"""Largest block that is read, in bytes. A member that has more was not written here."""
_LEVEL: Final = 1
"""Level of compression; level 6 takes four times as long for a fifth fewer bytes."""
_HEAD: Final = struct.Struct("<4sIBBH2sHIIQ")
"""Magic, method and flags; time, level, system; length, name and length of the field; bytes of member and block; time of the block."""
_TAIL: Final = struct.Struct("<II")
_MAGIC: Final = b"\x1f\x8b\x08\x04"
_FIELD: Final = (20, b"VO", 16)
_TIME: Final = re.compile(rb'"(?:endT|t)imeUnixNano": ?"?(\d{1,19})[^\d]')
HEAD_BYTES: Final = 16 << 10
"""Bytes of a beginning: the resource of the process, which is that of all its files, and the ids of some spans, which
are of one file only."""
_ROTATED: Final = re.compile(r"\.(\d+)\.jsonl(?:\.gz)?$")


# -- the compressed format --


class Block(NamedTuple):
    """A block of a file."""

    place: int
    """Offset of its member in the compressed file."""
    member: int
    """Bytes of the member."""
    begin: int
    """Offset of its content in the lines."""
    length: int
    """Bytes of its content."""
    time_ns: int
    """First time in it; 0: unknown, or it does not begin with a line."""


def encode_block(content: bytes, *, begins_line: bool = True, level: int = _LEVEL) -> bytes:
    """Return a block as a member of a compressed file. Releases the interpreter's lock.

    Args:
        content: At most `MAX_BLOCK` bytes.
        begins_line: Whether a line begins where it begins.
        level: Level of compression, 1 to 9.
    """
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = compressor.compress(content) + compressor.flush()
    match = _TIME.search(content) if begins_line else None
    time_ns = min(int(match[1]), (1 << 63) - 1) if match else 0
    member = _HEAD.size + len(body) + _TAIL.size
    head = _HEAD.pack(_MAGIC, 0, 4, 255, *_FIELD, member, len(content), time_ns)
    return head + body + _TAIL.pack(zlib.crc32(content), len(content))


def read_index(file: BinaryIO) -> tuple[list[Block], bool]:
    """Return the blocks of a file, and whether it is whole: without a damaged or missing end.

    Raises:
        OSError: It cannot be read.
    """
    size = file.seek(0, os.SEEK_END)
    blocks: list[Block] = []
    place = begin = 0
    while place < size:
        file.seek(place)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return blocks, False
        magic, _, _, _, *field, member, length, time_ns = _HEAD.unpack(head)
        is_ours = magic == _MAGIC and tuple(field) == _FIELD
        if not is_ours or not _HEAD.size + _TAIL.size < member <= size - place or not 0 < length <= MAX_BLOCK:
            return blocks, False
        blocks.append(Block(place, member, begin, length, min(time_ns, (1 << 63) - 1)))
        place, begin = place + member, begin + length
    return blocks, True


def read_beginning(file: BinaryIO, length: int) -> bytes:
    """Return the first bytes of the lines of a file, without decompressing more of it.

    Raises:
        OSError: It cannot be read, or is damaged.
    """
    data, place = b"", 0
    while len(data) < length and (head := file.read(_HEAD.size)):
        if len(head) < _HEAD.size or head[:4] != _MAGIC:
            raise OSError(errno.EIO, "the compressed file is damaged")
        place += _HEAD.unpack(head)[-3]
        try:
            body = file.read(length + _HEAD.size)
            data += zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, length - len(data))
        except zlib.error:
            raise OSError(errno.EIO, "the compressed file is damaged") from None
        file.seek(place)
    return data


class CompressedLines(io.RawIOBase):
    """The lines of a compressed file as a file that can be read and positioned.

    Where the file is damaged, reading raises `OSError`: its end is not taken for the end of the lines.

    Args:
        file: The compressed file, which is closed with this one.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._blocks, self._is_whole = read_index(file)
        self._begins = [block.begin for block in self._blocks]
        self._place = 0
        self._current: Block | None = None
        self._content = b""

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks that can be found."""
        return self._blocks

    @property
    def size(self) -> int:
        """Bytes of the lines; one more than can be read if the end is damaged, so that who reads to the end learns it."""
        end = self._blocks[-1].begin + self._blocks[-1].length if self._blocks else 0
        return end if self._is_whole else end + 1

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the compressed file."""
        return self._file.fileno()

    def tell(self) -> int:
        """Return the offset in the lines."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset in the lines."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # any buffer
        """Read up to the end of a block."""
        number = bisect_right(self._begins, self._place) - 1
        block = self._blocks[number] if number >= 0 else None
        if block is None or self._place >= block.begin + block.length:
            if not self._is_whole:
                raise OSError(errno.EIO, "the compressed file is damaged")
            return 0
        if block is not self._current:
            self._content, self._current = self._decompress(block), block
        inner = self._place - block.begin
        count = min(len(buffer), block.length - inner)
        memoryview(buffer)[:count] = self._content[inner : inner + count]
        self._place += count
        return count

    def _decompress(self, block: Block) -> bytes:
        self._file.seek(block.place + _HEAD.size)
        data = self._file.read(block.member - _HEAD.size)
        try:
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[: -_TAIL.size], block.length + 1)
        except zlib.error:
            content = b""
        if data[-_TAIL.size :] != _TAIL.pack(zlib.crc32(content), block.length) or len(content) != block.length:
            raise OSError(errno.EIO, f"the compressed block at {block.place} is damaged")
        return content

    def close(self) -> None:
        """Close both files."""
        if not self.closed:
            self._file.close()
        super().close()


# -- names and reading --


def name_part(path: Path, number: int, *, compressed: bool = False) -> Path:
    """Return the path of a part of a file.

    Args:
        path: The file that grows.
        number: 1 for the newest part.
        compressed: Whether the compressed form is meant.
    """
    return path.with_name(f"{path.stem}.{number}{path.suffix}{SUFFIX if compressed else ''}")


def number_of(path: Path) -> int:
    """Return the number of a part; 0 for a file that grows."""
    match = _ROTATED.search(path.name)
    return int(match[1]) if match else 0


def whole_name(path: Path) -> str:
    """Return the name of the file of which a path is a part."""
    return _ROTATED.sub(".jsonl", path.name)


def is_compressed(path: Path) -> bool:
    """Return whether a path is that of a compressed part."""
    return path.name.endswith(SUFFIX)


def find(folder: Path, prefix: str) -> list[Path]:
    """Return the files of lines in a folder whose name begins so: of each file the oldest part first, each part in one form."""
    paths = {path for suffix in ("", SUFFIX) for path in folder.glob(f"{prefix}*.jsonl{suffix}")}
    once = (path for path in paths if not is_compressed(path) or path.with_suffix("") not in paths)
    return sorted(once, key=lambda path: (whole_name(path), -number_of(path)))


def find_parts(path: Path) -> dict[int, list[Path]]:
    """Return the parts of a file by their number, each in the forms that exist."""
    parts: dict[int, list[Path]] = {}
    for form in ("", SUFFIX):
        for found in path.parent.glob(f"{path.stem}.*{path.suffix}{form}"):
            number = number_of(found)
            if number and whole_name(found) == path.name:
                parts.setdefault(number, []).append(found)
    return parts


def open_lines(path: Path, *, buffering: int = io.DEFAULT_BUFFER_SIZE) -> BinaryIO:
    """Open a file of lines for reading, compressed or not. One that was compressed meanwhile is opened in its new form.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    if not is_compressed(path):
        try:
            return safe_files.open_regular(path, buffering=buffering)
        except FileNotFoundError:
            path = path.with_name(path.name + SUFFIX)
            if not path.exists():
                raise
    return io.BufferedReader(_open_compressed(path), buffering)


def _open_compressed(path: Path) -> CompressedLines:
    file = safe_files.open_regular(path, buffering=0)
    try:
        return CompressedLines(file)
    except BaseException:
        file.close()
        raise


class Head(NamedTuple):
    """The beginning of a file, by which it is recognised under another name."""

    length: int
    """Bytes; 0 for an empty file, which is like no other one."""
    digest: bytes


def read_head(path: Path, length: int = HEAD_BYTES) -> Head:
    """Return the beginning of a file, compressed or not. Raises `OSError`."""
    if is_compressed(path):
        with safe_files.open_regular(path) as file:
            data = read_beginning(file, length)
    else:
        with open_lines(path) as file:
            data = file.read(length)
    return Head(len(data), hashlib.blake2b(data, digest_size=16).digest())


def has_head(path: Path, head: Head) -> bool:
    """Return whether a file begins as another one did. False if it cannot be read."""
    try:
        return head.length > 0 and read_head(path, head.length) == head
    except OSError:  # it was deleted or rotated meanwhile
        return False


def size_of(path: Path) -> int:
    """Return the number of bytes that the lines of a file have. Raises `OSError`."""
    if not is_compressed(path):
        return path.stat().st_size
    with _open_compressed(path) as file:
        return file.size
