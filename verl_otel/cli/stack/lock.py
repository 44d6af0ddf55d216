# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A lock for one stack per folder: a second one would overwrite the settings of the running one, and send to its queue."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from verl_otel._internal import safe_files
from verl_otel.errors import VerlOtelError

NAME: Final = ".lock"


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder until the end of the block or of this process.

    Args:
        folder: The folder of ``--data``; it exists.

    Raises:
        VerlOtelError: Another process holds it (the message names it), or it cannot be written.

    Example:
        with hold(plan.data):
            ...
    """
    try:
        lock = safe_files.open_text(folder / NAME, "r+", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise VerlOtelError(f"--data {folder}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read(200).strip() or "another process"
            raise VerlOtelError(
                f"--data {folder} is in use by {holder}: end that stack, or give this one a folder of its own"
            ) from None
        except OSError:  # some shared disks do not support locks: Prometheus still locks its own folder
            pass
        lock.seek(0)
        lock.truncate()
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield
