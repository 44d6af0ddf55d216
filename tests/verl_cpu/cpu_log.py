# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bed's own log: what the test bed saw, by its own clock, so that telemetry can be checked against something else.

One JSON object a line, appended by every process with a single write. Nothing of verl-otel is used here.
"""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import queue
import threading
import time

FOLDER = "CPU_BED_LOG"
"""Environment variable: folder of the log; nothing is logged without it."""


def write(kind, **fields):
    """Append one line to ``<kind>.jsonl``, on a thread of its own.

    A system call gives up the interpreter, and on a busy machine it comes back late: a write in the measured thread would lengthen the spans
    around it by what the stamp, which is complete by then, does not contain.
    """
    folder = os.environ.get(FOLDER)
    if folder:
        line = json.dumps({"pid": os.getpid(), **fields}) + "\n"
        _writer(os.getpid()).put((f"{folder}/{kind}.jsonl", line.encode()))


@functools.cache
def _writer(pid):
    """Return the queue of this process; ``pid`` is the key, so that a forked child has a thread of its own."""
    lines = queue.SimpleQueue()
    thread = threading.Thread(target=_write_all, args=(lines,), daemon=True)
    thread.start()
    atexit.register(lambda: (lines.put(None), thread.join(10)) if os.getpid() == pid else None)
    return lines


def _write_all(lines):
    for path, line in iter(lines.get, None):
        handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


@contextlib.contextmanager
def stamped(kind, **fields):
    """Log a block with the Unix time of its start and end and its duration in seconds. Yields the fields, for more of them."""
    start, begin = time.time(), time.perf_counter()
    failed = None
    try:
        yield fields
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
