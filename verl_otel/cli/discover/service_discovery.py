# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A server for Prometheus's HTTP service discovery: answers every GET with the current targets.

While the targets cannot be read the answer is 503, on which Prometheus keeps its current ones.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from verl_otel._internal.printable import show
from verl_otel.cli.discover.http_auth import Encryption, HttpAuth
from verl_otel.errors import VerlOtelError
from verl_otel.exporting import http_server
from verl_otel.exporting.http_server import Reply, Request, make_plain_reply
from verl_otel.session.prometheus_targets import Entries

FRESH_SECONDS: Final = 3.0
"""Seconds for which a list, or an error, is cached."""
MAX_PRINTED: Final = 100
_LOOPBACK: Final = ("127.", "::1", "localhost")
_printed: set[str] = set()


class TargetList:
    """The targets, read again on request when the cached list or error has expired."""

    def __init__(self, find: Callable[[], Entries]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._entries: Entries = []
        self._error: VerlOtelError | None = None
        self._read_at = float("-inf")

    def read(self) -> Entries:
        """Return the targets. Raises `VerlOtelError` when they cannot be read."""
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                try:
                    self._entries, self._error = self._find(), None
                except VerlOtelError as error:  # asking an unreachable cluster takes seconds
                    self._error = error
                self._read_at = time.monotonic()
            if self._error is not None:
                raise self._error.with_traceback(None)
            return self._entries


class Server(http_server.Server):
    """Serves the targets to authorized clients. Raises `OSError` when the address cannot be bound."""

    def __init__(self, address: tuple[str, int], access: HttpAuth, targets: TargetList) -> None:
        self._access, self._targets = access, targets
        self._encryption = Encryption(access)
        access.read_users()
        super().__init__(address, self._find_answer, self._encryption.wrap)

    @property
    def url(self) -> str:
        """URL of the targets."""
        return f"{self._encryption.scheme}://{http_server.show_address(self.host, self.port)}/"

    def _find_answer(self, request: Request) -> Reply:
        try:
            if request.path == "/-/healthy":
                return make_plain_reply(200, "ok")
            if not self._access.allows(request.headers.get("authorization", "")):
                return make_plain_reply(401, "401 Unauthorized", ("WWW-Authenticate", 'Basic realm="verl-otel"'))
            if request.path not in ("/", "/targets"):
                return make_plain_reply(404, "the targets are at /")
            wanted = parse_qs(request.query).get("run", [])
            entries = [
                entry
                for entry in self._targets.read()
                if not wanted or entry.get("labels", {}).get("verl_run_id") in wanted
            ]
            return Reply(200, (("Content-Type", "application/json"),), json.dumps(entries).encode())
        except VerlOtelError as error:
            print_once(f"verl-otel: {error}")
            return make_plain_reply(503, str(error))


def serve(address: tuple[str, int], access: HttpAuth, find: Callable[[], Entries]) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0.

    Raises:
        VerlOtelError: The port is taken, or a file of ``access`` cannot be used.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    try:
        server = Server(address, access, TargetList(find))
    except (OSError, UnicodeError) as error:  # the latter: no name of a host
        reason = getattr(error, "strerror", None) or error
        raise VerlOtelError(f"{address[0]}:{address[1]} cannot be bound: {reason}") from None
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, ends
    )  # threads inherit the mask: the signals are received by `sigwait`
    server.start()
    try:
        print(f"serving the targets at {server.url} (SIGTERM or Ctrl-C ends)", flush=True)
        if not address[0].startswith(_LOOPBACK):
            _warn(access)
        signal.sigwait(ends)
    finally:
        server.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _warn(access: HttpAuth) -> None:
    if access.users is None:
        print_once(
            "verl-otel: anyone who reaches this port can list the targets; --basic-auth-file asks for a password"
        )
    elif access.certificate is None:
        print_once("verl-otel: passwords are sent unencrypted; --tls-cert and --tls-key change that")


def print_once(text: str) -> None:
    """Print a line to standard error, repeated ones only once."""
    text = show(text, 2000)
    if text not in _printed:
        if len(_printed) >= MAX_PRINTED:
            _printed.clear()
        _printed.add(text)
        print(text, file=sys.stderr, flush=True)
