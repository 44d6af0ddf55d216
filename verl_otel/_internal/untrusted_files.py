# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads files that other processes may have written or damaged: without blocking, up to a size, and with one type of error.

Another process, version or user may have written them. A FIFO, a line without an end or deeply nested JSON raises a `DamagedError` or an
`OSError` where it is read, and does not block or exhaust the memory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

MAX_LINE: Final = 16 << 20
"""Longest line that is read, in bytes. A typical line of 256 spans has 200 kB; our writer splits longer lines."""
MAX_JSON: Final = 64 << 20
"""Largest file that is read as one JSON document, in bytes."""
MAX_DEPTH: Final = 64
"""Largest nesting depth of arrays and objects; a line of spans has 10."""
MAX_INT64: Final = (1 << 63) - 1
_BLOCK: Final = 1 << 20


READ_ERRORS: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What reading a file and extracting values from its document may raise, whatever the document contains."""


class DamagedError(ValueError):
    """A file or text is not valid. The message says why, without the content."""


def open_regular(path: Path, *, follow: bool = True, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. Returns at once, also for a FIFO.

    Args:
        path: The file.
        follow: Whether a symbolic link is followed.
        buffering: As of `open`.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    try:
        _check_regular(handle, path)
        return os.fdopen(handle, "rb", buffering)  # type: ignore[return-value]  # a buffered reader
    except BaseException:
        os.close(handle)
        raise


def _check_regular(handle: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_bytes(path: Path, limit: int = MAX_JSON, *, follow: bool = True) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: It cannot be read.
        DamagedError: It has more than ``limit`` bytes.
    """
    with open_regular(path, follow=follow) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedError(f"more than {limit} bytes")
    return data


def read_tail(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """Return the last bytes of a regular file. Raises `OSError`."""
    with open_regular(path, follow=follow) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
        return file.read(limit)


def read_json(path: Path, limit: int = MAX_JSON, *, follow: bool = True) -> Any:
    """Return the JSON document in a regular file.

    Raises:
        OSError: It cannot be read.
        DamagedError: It is too large, or not JSON.
    """
    return parse_json(read_bytes(path, limit, follow=follow))


def parse_json(data: bytes | str) -> Any:
    """Return a JSON document of bounded depth.

    Raises:
        DamagedError: It is not JSON, or nested too deeply. All other errors of the parser are converted to this one.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise DamagedError(f"no JSON ({type(error).__name__})") from None
    brackets = (data.count(b"[") + data.count(b"{")) if isinstance(data, bytes) else data.count("[") + data.count("{")
    if brackets > MAX_DEPTH and _is_deep(document):
        raise DamagedError(f"nested more than {MAX_DEPTH} levels deep")
    return document


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for value in level
            if isinstance(value, (list, dict))
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, (list, dict))
        ]
        if not level:
            return False
    return True


def read_lines(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, bytes | None, int]]:
    """Yield the lines that begin in a part of a file: offset, the line with its newline, and its length in bytes.

    A line of more than `MAX_LINE` bytes is None: it is skipped without being held in memory. Raises `OSError`.
    """
    place = file.seek(begin)
    while place < end and (line := file.readline(MAX_LINE + 1)):
        length = len(line)
        if length > MAX_LINE and line[-1:] != b"\n":
            del line
            length += skip_line(file)
            yield place, None, length
        else:
            yield place, line, length
        place += length


def skip_line(file: BinaryIO) -> int:
    """Skip the rest of a line without holding it in memory; return the number of skipped bytes."""
    skipped = 0
    while piece := file.readline(_BLOCK):
        skipped += len(piece)
        if piece[-1:] == b"\n":
            break
    return skipped


def parse_int64(value: object) -> int:
    """Return a 64-bit integer as OTLP represents it: a number, or a string of digits. Raises `DamagedError`."""
    if isinstance(value, str) and len(value) <= 20 and value.lstrip("-").isdecimal():  # noqa: PLR2004 - digits of 64 bits
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INT64:
        raise DamagedError("not a whole number of 64 bits")
    return value
