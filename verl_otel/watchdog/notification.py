# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Notifications of stalls and crashes: a command gets the event as JSON on its standard input, or a web address by POST.

The key ``text`` is what the webhooks of Slack and Mattermost show. Log lines, stacks and contents of the training are not sent.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from verl_otel._internal import error_boundary

SECONDS: Final = 30.0
"""Seconds that a command may run, or an address may take to answer."""
MAX_SENT, SENT_SECONDS = 6, 60.0
"""Notifications within a number of seconds: with a node all its processes die."""
_WEB: Final = ("http://", "https://")


class Notifier:
    """Sends the events of one run.

    Args:
        target: A command, or an address that begins with ``http://`` or ``https://``; empty: no notification is sent.
        run_id: The run.
        folder: Its folder.
    """

    def __init__(self, target: str, run_id: str, folder: Path) -> None:
        self._target = target
        self._run = {"run_id": run_id, "folder": str(folder), "next": f"verl-otel report {run_id}"}
        self._sent: deque[float] = deque(maxlen=MAX_SENT)

    def send(self, kind: str, text: str, culprit: dict[str, Any]) -> None:
        """Send an event on a thread of its own. Beyond `MAX_SENT` in `SENT_SECONDS` nothing is sent: the log and the file have it.

        Args:
            kind: ``stall``, ``crash`` or ``resolved``.
            text: The line of the log.
            culprit: Instance, pid, host, span and others, as in ``events.jsonl``.
        """
        now = time.monotonic()
        if not self._target or (len(self._sent) == MAX_SENT and now - self._sent[0] < SENT_SECONDS):
            return
        self._sent.append(now)
        event = {"kind": kind, "text": f"verl-otel: {text}", "time": time.time(), **self._run, "culprit": culprit}
        body = json.dumps(event, default=str).encode()
        threading.Thread(target=_send, args=(self._target, body), name="verl-otel-notify", daemon=True).start()


def _make_request(address: str, body: bytes) -> urllib.request.Request:
    """Return a request. User and password of the address become a header: `urllib` takes them for a part of the host."""
    headers = {"Content-Type": "application/json"}
    parts = urlsplit(address)
    login, separator, host = parts.netloc.rpartition("@")
    if separator:
        headers["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
    return urllib.request.Request(urlunsplit(parts._replace(netloc=host)), body, headers)  # noqa: S310 - see `_WEB`


def _send(target: str, body: bytes) -> None:
    """Send a notification; a failure is logged once, without the address, which may hold a secret."""
    try:
        if target.startswith(_WEB):
            request = _make_request(target, body)
            with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310
                return
        subprocess.run(  # noqa: S603 - the user's own command
            shlex.split(target), input=body, stdout=subprocess.DEVNULL, timeout=SECONDS, check=True
        )
    except Exception as error:
        error_boundary.may_propagate(error)
        reason = str(error) if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        if isinstance(error, subprocess.CalledProcessError):
            reason = f"exit code {error.returncode}"
        error_boundary.warn_once("on stall", "verl-otel: VERL_OTEL_ON_STALL failed: %s (logged once)", reason)
