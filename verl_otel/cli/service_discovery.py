# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus's HTTP service discovery: a small server that answers every GET with the targets of this moment.

While the targets cannot be read the answer is 503, on which Prometheus keeps those that it has.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from verl_otel.cli.access import Access
from verl_otel.errors import VerlOtelError
from verl_otel.session.targets import Entries

FRESH_SECONDS: Final = 3.0
"""How long one list answers everybody who asks."""
IDLE_SECONDS: Final = 10.0
AT_ONCE: Final = 32
MAX_SAID: Final = 100
_LOOPBACK: Final = ("127.", "::1", "localhost")
_said: set[str] = set()


class TargetList:
    """The targets, read anew when somebody asks and the last list is some seconds old."""

    def __init__(self, find: Callable[[], Entries]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._entries: Entries = []
        self._read_at = float("-inf")

    def read(self) -> Entries:
        """Return the targets. Raises `VerlOtelError` when they cannot be read."""
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                self._entries = self._find()
                self._read_at = time.monotonic()
            return self._entries


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = IDLE_SECONDS
    protocol_version = "HTTP/1.1"
    server_version = "verl-otel"
    sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        try:
            if url.path == "/-/healthy":
                self._answer(200, "text/plain", b"ok\n")
            elif not self.server.access.allows(self.headers.get("Authorization", "")):
                self._answer(401, "text/plain", b"who are you?\n")
            elif url.path not in ("/", "/targets"):
                self._answer(404, "text/plain", b"the targets are at /\n")
            else:
                wanted = parse_qs(url.query).get("run", [])
                found = [
                    entry
                    for entry in self.server.targets.read()
                    if not wanted or entry.get("labels", {}).get("verl_run_id") in wanted
                ]
                self._answer(200, "application/json", json.dumps(found).encode())
        except VerlOtelError as error:
            say_once(f"verl-otel: {error}")
            self._answer(503, "text/plain", f"{error}\n".encode())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if code == 401:  # noqa: PLR2004 - as HTTP numbers it
            self.send_header("WWW-Authenticate", 'Basic realm="verl-otel"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing: Prometheus asks twice a minute."""


class Server(ThreadingHTTPServer):
    """Answers a bounded number of requests at once; a slow or silent client costs one thread for some seconds."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], access: Access, targets: TargetList) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.access, self.targets = access, targets
        self._tls = access.make_context()
        self._renewed = self._stamp()
        self._room = threading.BoundedSemaphore(AT_ONCE)
        access.read_users()
        super().__init__(address, _Handler)

    @property
    def url(self) -> str:
        """Where the targets are."""
        host = str(self.server_address[0])
        return f"http{'s' if self._tls else ''}://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def _stamp(self) -> float:
        try:
            return self.access.certificate.stat().st_mtime if self.access.certificate else 0.0
        except OSError:
            return self._renewed

    def get_request(self) -> tuple[Any, Any]:
        """Take a connection; the handshake is left to its own thread."""
        connection, peer = super().get_request()
        if self._tls is not None:
            stamp = self._stamp()
            if stamp != self._renewed:
                self._renewed = stamp
                try:
                    self.access.load_chain(self._tls)
                except VerlOtelError as error:
                    say_once(f"verl-otel: {error}; the certificate of before is used")
            connection.settimeout(IDLE_SECONDS)
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread, or hang up when too many are being answered."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up or speak no TLS."""


def serve(address: tuple[str, int], access: Access, find: Callable[[], Entries]) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0.

    Raises:
        VerlOtelError: The port is taken, or a file of ``access`` cannot be used.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    try:
        server = Server(address, access, TargetList(find))
    except OSError as error:
        raise VerlOtelError(f"{address[0]}:{address[1]} cannot be bound: {error.strerror or error}") from None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # for the threads, too: the signals wait for `sigwait`
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        print(f"serving the targets at {server.url} (SIGTERM or Ctrl-C ends)", flush=True)
        if not address[0].startswith(_LOOPBACK):
            _warn(access)
        signal.sigwait(ends)
    finally:
        server.shutdown()
        server.server_close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _warn(access: Access) -> None:
    if access.users is None:
        say_once(
            "verl-otel: everybody who reaches this port can list the targets; --basic-auth-file asks for a password"
        )
    elif access.certificate is None:
        say_once("verl-otel: passwords travel unencrypted; --tls-cert and --tls-key change that")


def say_once(text: str) -> None:
    """Print a line to standard error, the same one only once."""
    if text not in _said:
        if len(_said) >= MAX_SAID:
            _said.clear()
        _said.add(text)
        print(text, file=sys.stderr, flush=True)
