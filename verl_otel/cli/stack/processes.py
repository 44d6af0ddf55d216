# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Starts, monitors and stops the processes of the stack."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Final

from verl_otel._internal import safe_files
from verl_otel.errors import VerlOtelError

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
"""Seconds for a process to flush its data before it is killed."""
POLL: Final = 0.1
TAIL: Final = 12
"""Lines of a log that are shown when its process has failed."""


class StackProcess:
    """One program of the stack.

    Args:
        title: Name shown to users.
        command: The program and its arguments.
        environ: Its environment.
        ready: URL that answers 200 once it works.
        log: File for its output.
    """

    def __init__(self, title: str, command: Sequence[str], environ: Mapping[str, str], ready: str, log: Path) -> None:
        self.title = title
        self.log = log
        self._command = command
        self._environ = environ
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C reaches only this process, which stops the others in order.

        Raises:
            VerlOtelError: It cannot be run.
        """
        try:
            with os.fdopen(safe_files.open_private(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - running the program is the purpose
                    self._command, env=self._environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            raise VerlOtelError(f"{self.title}: {self._command[0]}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """The id of the process; 0 before it has been started."""
        return self._process.pid if self._process else 0

    @property
    def code(self) -> int | None:
        """The exit code of the process, or None while it runs."""
        return self._process.poll() if self._process else None

    def is_ready(self) -> bool:
        """Return whether it answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self._ready, timeout=2) as answer:
                return bool(answer.status == 200)  # noqa: PLR2004 - as HTTP numbers it
        except (OSError, HTTPException):
            return False

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            VerlOtelError: It has ended; the end of its log is in the message.
        """
        if self.code is not None:
            raise VerlOtelError(f"{self.title} has ended with code {self.code}:\n{self.read_tail()}")

    def wait_ready(self, ended: threading.Event) -> None:
        """Wait until it answers, or until a signal to stop.

        Raises:
            VerlOtelError: It has ended, or does not answer in time; the end of its log is in the message.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not ended.is_set() and not self.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise VerlOtelError(f"{self.title} does not answer at {self._ready}:\n{self.read_tail()}")
            ended.wait(POLL)

    def read_tail(self) -> str:
        """Return the last lines of its log, and where the log is."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()[-TAIL:]
        except OSError:
            lines = []
        return "\n".join([*(f"  {line[:400]}" for line in lines), f"  (all of it: {self.log})"])

    def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL if it has not ended after a while."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
