# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of ours reach the log of the training, and wait where writing them would block."""

import io
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.builders.environments import inherit
from verl_otel._internal import log_lines

PROGRAM = """
import logging, os, sys, time
import verl_otel

verl_otel.init(run_dir=sys.argv[1], exporters=("otlp", "file", "console"), drain_interval=0.05, exit_timeout=1.0)
if sys.argv[2] == "basicConfig":
    logging.basicConfig(level="DEBUG")
for step in range(20):
    with verl_otel.span("step"):
        time.sleep(0.02)
os.write(1, b"done")
"""


@pytest.fixture
def pipe():
    """A pipe of which nothing is read yet: its descriptor for reading, and a stream for writing."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        yield reading, stream
        os.set_blocking(writing, False)  # what a test has left does not block the end of the stream
    os.close(reading)


@pytest.fixture
def logger(pipe):
    """A logger with a handler that writes to the pipe."""
    logger = logging.getLogger("test of lines")
    logger.propagate = False
    handler = logging.StreamHandler(pipe[1])
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    log_lines._reset()


def fill(stream):
    """Fill the pipe behind a stream."""
    os.set_blocking(stream.fileno(), False)
    try:
        while True:
            os.write(stream.fileno(), b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(stream.fileno(), True)


def drain(reading):
    """Return what is in the pipe."""
    os.set_blocking(reading, False)
    found = b""
    try:
        while part := os.read(reading, 65536):
            found += part
    except BlockingIOError:
        pass
    return found.lstrip(b"x").decode()


def test_a_line_is_that_of_the_logger(logger, pipe):
    """With the place of the caller, as from ``logger.warning``; below the level nothing is written."""
    logger.handlers[0].setFormatter(logging.Formatter("%(levelname)s %(filename)s %(funcName)s %(message)s"))
    log_lines.warn(logger, "value %d", 1)
    assert drain(pipe[0]) == "WARNING test_log_lines.py test_a_line_is_that_of_the_logger value 1\n"
    logger.setLevel(logging.ERROR)
    log_lines.warn(logger, "value %d", 2)
    logger.setLevel(logging.NOTSET)
    assert drain(pipe[0]) == ""


def test_lines_wait_for_a_full_pipe_and_keep_their_order(logger, pipe):
    """The caller goes on; the handler's lock is free, so that `logging.shutdown` ends."""
    fill(pipe[1])
    for number in range(3):
        log_lines.warn(logger, "line %d", number)
    assert logger.handlers[0].lock.acquire(blocking=False)
    logger.handlers[0].lock.release()
    assert drain(pipe[0]) == ""
    log_lines.write_waiting()
    assert drain(pipe[0]) == "line 0\nline 1\nline 2\n"


def test_a_line_longer_than_the_room_waits(logger, pipe):
    """A pipe that can be written to takes a page; a longer line waits until it is empty."""
    os.write(pipe[1].fileno(), b"x")
    log_lines.warn(logger, "%s", "y" * 8000)
    assert drain(pipe[0]) == ""
    log_lines.write_waiting()
    assert drain(pipe[0]) == "y" * 8000 + "\n"


def test_a_line_does_not_wait_for_the_lock_of_a_handler(logger, pipe):
    """Another thread that is blocked in the handler holds up no thread that logs for us."""
    held, free = threading.Event(), threading.Event()

    def hold():
        with logger.handlers[0].lock:
            held.set()
            free.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    log_lines.warn(logger, "line")
    free.set()
    thread.join()
    log_lines.write_until(time.monotonic() + 60)
    assert drain(pipe[0]) == "line\n"


def test_other_handlers_of_the_logger_get_the_line(logger, pipe):
    """One blocked handler costs the others nothing, and no handler gets a line twice."""
    memory = io.StringIO()
    logger.addHandler(other := logging.StreamHandler(memory))
    fill(pipe[1])
    log_lines.warn(logger, "line")
    log_lines.write_waiting()
    logger.removeHandler(other)
    assert memory.getvalue() == "line\n"


def test_lines_that_find_no_room_are_counted(logger, pipe):
    """The newest are kept."""
    fill(pipe[1])
    for number in range(log_lines.MAX_WAITING + 5):
        log_lines.warn(logger, "line %d", number)
    assert log_lines.count_lost() == 5
    drain(pipe[0])
    log_lines.write_waiting()
    assert drain(pipe[0]).startswith("line 5\n")


def run_beside_full_stderr(*arguments, **variables):
    """Run Python, whose standard error nothing reads, to its end."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as stream:
        fill(stream)
        environ, command = inherit("VERL_OTEL", "OTEL") | variables, [sys.executable, "-c", *arguments]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=stream, timeout=60, check=False)
    os.close(reading)
    return done.returncode, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("root", ["basicConfig", "lastResort"])
def test_a_full_stderr_does_not_hold_up_the_exit(tmp_path, root):
    """A training that writes nothing itself ends although nothing reads its standard error, and OTLP, files and console have something to say."""
    ended = run_beside_full_stderr(PROGRAM, tmp_path, root, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert ended == (0, b"done")


@pytest.mark.full
def test_a_full_stderr_does_not_hold_up_an_import():
    """With a setting that cannot be used, as in a worker that starts late."""
    program = "import os, verl_otel.plugin; os.write(1, b'done')"
    ended = run_beside_full_stderr(program, VERL_OTEL_ENABLED="1", VERL_OTEL_EXPORTERS="kafka")
    assert ended == (0, b"done")
