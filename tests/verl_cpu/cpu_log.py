# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bed's own log: what the test bed saw, by its own clock, so that telemetry can be checked against something else.

One JSON object a line, appended by every process with a single write. Nothing of verl-otel is used here.
"""

import contextlib
import json
import os
import pathlib
import time

FOLDER = "CPU_BED_LOG"
"""Environment variable: folder of the log; nothing is logged without it."""


def write(kind, **fields):
    """Append one line to ``<kind>.jsonl``."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    line = json.dumps({"pid": os.getpid(), **fields}) + "\n"
    handle = os.open(f"{folder}/{kind}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


@contextlib.contextmanager
def stamped(kind, **fields):
    """Log a block with the Unix time of its start and end and its duration in seconds."""
    start, begin = time.time(), time.perf_counter()
    failed = None
    try:
        yield
    except BaseException as error:
        failed = type(error).__name__
        raise
    finally:
        write(kind, start=start, end=time.time(), seconds=time.perf_counter() - begin, error=failed, **fields)


def read(folder, kind):
    """Return the lines of one kind."""
    try:
        text = pathlib.Path(f"{folder}/{kind}.jsonl").read_text("utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]
