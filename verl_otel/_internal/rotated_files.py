# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files of lines that are rotated by size: their names, and how the compressed ones are read.

``traces-x.jsonl`` grows. ``traces-x.1.jsonl`` is the part before it, ``.2`` the one before that. All but ``.1`` are compressed after a while:
``traces-x.2.jsonl.gz``. For a moment a part exists in both forms, and the one that is not compressed counts.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from verl_otel._internal import untrusted_files
from verl_otel._internal.compressed_lines import SUFFIX, Block, CompressedLines, read_beginning

HEAD_BYTES: Final = 16 << 10
"""Bytes of a beginning: the resource of the process, which is that of all its files, and the ids of some spans, which are of one file only."""
_ROTATED: Final = re.compile(r"\.(\d+)\.jsonl(?:\.gz)?$")


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
            return untrusted_files.open_regular(path, buffering=buffering)
        except FileNotFoundError:
            path = path.with_name(path.name + SUFFIX)
            if not path.exists():
                raise
    return io.BufferedReader(_open_compressed(path), buffering)


def _open_compressed(path: Path) -> CompressedLines:
    file = untrusted_files.open_regular(path, buffering=0)
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
        with untrusted_files.open_regular(path) as file:
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


def read_blocks(path: Path) -> tuple[Iterable[Block], int]:
    """Return the blocks of a compressed file, and the number of bytes of its lines. Raises `OSError`."""
    with _open_compressed(path) as file:
        return tuple(file.blocks), file.size
