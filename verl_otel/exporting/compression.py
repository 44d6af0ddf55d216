# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Compresses a rotated file of lines, a block at a time, between writes to the file that grows.

The compressed file appears whole, under its name, before the other one is removed: a process that is killed leaves at least one of them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from verl_otel._internal import safe_files
from verl_otel._internal.rotated_files import BLOCK_BYTES, SUFFIX, encode_block

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
