# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks of a process that cannot write its own, by the program ``py-spy``, where it is installed. Nothing is installed for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from verl_otel._internal import private_files

PROGRAM: Final = "py-spy"


def start(pid: int, path: Path) -> subprocess.Popen[bytes] | None:
    """Begin to write the stacks of a process into a file, without stopping it further.

    Args:
        pid: The process.
        path: The file; it is replaced.

    Returns:
        The program, to be asked whether it has ended; None where it is not installed or cannot be started.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    handle = -1
    try:
        handle = private_files.open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return subprocess.Popen(  # noqa: S603 - no shell, and a number
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    finally:
        if handle >= 0:
            os.close(handle)


def end(program: subprocess.Popen[bytes]) -> None:
    """End the program if it still runs."""
    if program.poll() is None:
        program.kill()
        program.wait()
