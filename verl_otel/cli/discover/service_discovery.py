# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A server for Prometheus's HTTP service discovery: answers every GET with the current targets.

While the targets cannot be read the answer is 503, on which Prometheus keeps its current ones.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from verl_otel._internal.printable import show
from verl_otel.cli.discover.http_auth import HttpAuth
from verl_otel.errors import VerlOtelError
from verl_otel.exporting import http_server
from verl_otel.exporting.http_messages import Reply, Request, make_plain_reply
from verl_otel.session.prometheus_targets import Entries

FRESH_SECONDS: Final = 3.0
"""Seconds for which a list, or an error, is cached."""
MAX_SAID: Final = 100
_LOOPBACK: Final = ("127.", "::1", "localhost")
_said: set[str] = set()


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
        self._tls = access.make_context()
        self._renewed = self._stamp()
        access.read_users()
        super().__init__(address, self._find_answer, self._encrypt if self._tls is not None else None)

    @property
    def url(self) -> str:
        """URL of the targets."""
        return f"http{'s' if self._tls else ''}://{http_server.show_address(self.host, self.port)}/"

    def _stamp(self) -> float:
        try:
            return self._access.certificate.stat().st_mtime if self._access.certificate else 0.0
        except OSError:
            return self._renewed

    def _encrypt(self, connection: socket.socket) -> socket.socket:
        """Wrap a connection in TLS with the current certificate; the handshake follows later."""
        if self._tls is None:
            return connection
        stamp = self._stamp()
        if stamp != self._renewed:
            self._renewed = stamp
            try:
                self._access.load_chain(self._tls)
            except VerlOtelError as error:
                say_once(f"verl-otel: {error}; the certificate of before is used")
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

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
            say_once(f"verl-otel: {error}")
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
        say_once("verl-otel: anyone who reaches this port can list the targets; --basic-auth-file asks for a password")
    elif access.certificate is None:
        say_once("verl-otel: passwords are sent unencrypted; --tls-cert and --tls-key change that")


def say_once(text: str) -> None:
    """Print a line to standard error, repeated ones only once."""
    text = show(text, 2000)
    if text not in _said:
        if len(_said) >= MAX_SAID:
            _said.clear()
        _said.add(text)
        print(text, file=sys.stderr, flush=True)
