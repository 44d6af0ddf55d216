# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for short responses in a process whose main work is another.

It is the standard library's, with limits: a number of connections, the size of a request, a total time for it and for the response, one response
made at a time, and a share of a core. Further clients wait in the kernel's queue.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple, cast

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import call_for, remaining

MAX_CONNECTIONS: Final = 32
MAX_HEAD: Final = 16 << 10
"""Bytes of a request line with all headers."""
READ_SECONDS, WRITE_SECONDS = 5.0, 10.0
"""Seconds for a whole request, and for a whole response."""
IDLE_SHARE: Final = 6.0
"""Pause after a connection, as a multiple of its CPU seconds: requests use a fifth of a core, the start of threads included."""
MAX_IDLE: Final = 2.0
RESOLVE_SECONDS: Final = 5.0
ACCEPT_AGAIN: Final = 0.5
"""Seconds without a new connection after the process had no file descriptor left."""
CLOSE_SECONDS: Final = 1.0
BACKLOG: Final = 1024
"""Connections that wait in the kernel; ``net.core.somaxconn`` may limit it further."""


class Request(NamedTuple):
    """A request without its body."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """Names in lower case."""


class Reply(NamedTuple):
    """A response. Length and connection headers are added when it is sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def make_plain_reply(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """Return a response of one line of text."""
    return Reply(status, (("Content-Type", "text/plain; charset=utf-8"), *headers), f"{text}\n".encode())


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    protocol_version = default_request_version = "HTTP/1.1"
    error_content_type, error_message_format = "text/plain; charset=utf-8", "%(message)s\n"

    def handle(self) -> None:
        """Answer one request, whose head is read here: within `READ_SECONDS` and `MAX_HEAD`."""
        head = self._read_head()
        self.connection.settimeout(WRITE_SECONDS)
        self.requestline, self.request_version, self.command = "", self.protocol_version, ""
        if len(head) > MAX_HEAD:
            self.send_error(431)
        elif head:
            self.rfile = io.BufferedReader(io.BytesIO(head))  # type: ignore[arg-type]  # it is read like a raw stream
            self.handle_one_request()

    def _read_head(self) -> bytes:
        deadline, head = time.monotonic() + READ_SECONDS, b""
        while b"\r\n\r\n" not in head and len(head) <= MAX_HEAD:
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = self.connection.recv(4096)
            if not part or time.monotonic() > deadline:
                return b""
            head += part
        return head

    def _respond(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(cast("Server", self.server).make_reply(Request(self.command, path, query, headers)))

    do_GET = do_OPTIONS = _respond  # noqa: N815 - names of the base

    def _refuse(self) -> None:
        self._send(make_plain_reply(405, "use GET", ("Allow", "GET, OPTIONS")))

    do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _refuse  # noqa: N815

    def _send(self, reply: Reply) -> None:
        self.close_connection = True
        self.send_response_only(reply.status)
        for name, value in (*reply.headers, ("Content-Length", str(len(reply.body))), ("Connection", "close")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the log is that of the training."""


class Server:
    """Serves from daemon threads: one that accepts, and one for each connection.

    Args:
        address: Host and port; port 0 takes a free one. An IPv6 address may stand in brackets.
        answer: Makes the response to a request, one at a time.
        secure: Wraps an accepted socket into TLS, without a handshake.
        idle_share: After a connection no other is accepted for this multiple of its CPU seconds.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[Request], Reply],
        secure: Callable[[socket.socket], socket.socket] | None = None,
        idle_share: float = IDLE_SHARE,
    ) -> None:
        self._answer = answer
        self._secure = secure
        self._idle_share = idle_share
        self._listener = _listen(*address)
        self.host, self.port = self._listener.getsockname()[:2]
        self._slots = threading.Semaphore(MAX_CONNECTIONS)
        self._answering = threading.Lock()
        self._rests_until = 0.0
        self._serving: dict[threading.Thread, socket.socket] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="verl-otel-http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Stop serving and free the port. Waits at most ``seconds`` for responses under way."""
        deadline = time.monotonic() + seconds
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for thread in (self._thread, *self._serving):
            if thread.ident is not None:
                thread.join(remaining(deadline))

    def close_sockets(self) -> None:
        """Close all sockets in this process. After a fork the server of the parent is not affected."""
        self._listener.close()
        for connection in self._serving.values():
            if connection.fileno() >= 0:
                # Not `close`, which waits for files that refer to the socket: that of its handler exists in the parent only.
                os.close(connection.detach())

    def make_reply(self, request: Request) -> Reply:
        """Return the response to a request, after those before it."""
        with self._answering:
            try:
                return self._answer(request)
            except Exception as error:
                with contextlib.suppress(Exception):  # in tests it is raised again: the client has to get its response
                    error_boundary.record_internal_error("http answer", error)
                return make_plain_reply(500, "internal error")

    def _accept(self) -> None:
        used = 0.0
        while True:
            self._slots.acquire()
            self._rest(time.thread_time() - used)
            used = time.thread_time()
            self._stopped.wait(remaining(self._rests_until))
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._slots.release()
                if self._stopped.wait(ACCEPT_AGAIN):
                    return
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="verl-otel-http-client", daemon=True)
            self._serving[thread] = connection
            try:
                thread.start()
            except RuntimeError:  # no more threads
                self._end(thread)

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(READ_SECONDS)
            secured = self._secure(connection) if self._secure is not None else connection
            self._serving[threading.current_thread()] = secured
            _Handler(secured, secured.getpeername(), cast("Any", self))
            with contextlib.suppress(OSError):
                secured.shutdown(socket.SHUT_WR)  # the client reads to the end, and not a reset
        except (OSError, ValueError):  # the client has gone, or speaks something else
            pass
        except Exception as error:
            error_boundary.record_internal_error("http server", error)
        finally:
            self._rest(time.thread_time())
            self._end(threading.current_thread())

    def _rest(self, used: float) -> None:
        """Have no connection accepted for a multiple of the CPU seconds that one took."""
        self._rests_until = max(self._rests_until, time.monotonic()) + min(MAX_IDLE, self._idle_share * used)

    def _end(self, thread: threading.Thread) -> None:
        self._serving.pop(thread).close()
        self._slots.release()


def strip_brackets(host: str) -> str:
    """Return a host as sockets take it.

    Example:
        strip_brackets("[::1]") == "::1"
    """
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def show_address(host: str, port: int) -> str:
    """Return host and port as they stand in a URL.

    Example:
        show_address("::1", 80) == "[::1]:80"
    """
    host = strip_brackets(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return family and address of a host.

    Raises:
        OSError: It has none, or the name server does not answer: a resolver waits for a minute.
    """

    def find(flags: int = socket.AI_PASSIVE) -> tuple[int, Any]:
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)[0]
        return family, address

    try:
        return find(socket.AI_PASSIVE | socket.AI_NUMERICHOST)
    except socket.gaierror:  # it is a name
        pass
    try:
        return call_for(RESOLVE_SECONDS, "verl-otel-resolve", find)
    except TimeoutError:
        text = f"the name {host} was not resolved within {RESOLVE_SECONDS:g} s"
        raise OSError(errno.ETIMEDOUT, text) from None


def _listen(host: str, port: int) -> socket.socket:
    family, address = _resolve(strip_brackets(host), port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
