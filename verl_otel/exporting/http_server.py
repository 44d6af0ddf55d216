# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for short responses in a process whose main work is another.

It is the standard library's, with limits: a number of connections, a time-out for each, one response made at a time, and a share of a core for
making them. Further clients wait in the kernel's queue.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple, cast

from verl_otel._internal import error_boundary
from verl_otel._internal.deadline import remaining

MAX_CONNECTIONS: Final = 32
TIMEOUT: Final = 5.0
"""Seconds that a client may send nothing of its request, or take nothing of the response."""
IDLE_SHARE: Final = 4.0
"""Pause after a response, as a multiple of its CPU seconds: requests use a fifth of a core at most."""
MAX_IDLE: Final = 2.0
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
        idle_share: After a response no other is made for this multiple of its CPU seconds.

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
            connection.close()

    def make_reply(self, request: Request) -> Reply:
        """Return the response to a request, after those before it and the pause after them."""
        with self._answering:
            self._stopped.wait(remaining(self._rests_until))
            begin = time.thread_time()
            try:
                return self._answer(request)
            except Exception as error:
                with contextlib.suppress(Exception):  # in tests it is raised again: the client has to get its response
                    error_boundary.record_internal_error("http answer", error)
                return make_plain_reply(500, "internal error")
            finally:
                used = time.thread_time() - begin
                self._rests_until = time.monotonic() + min(MAX_IDLE, self._idle_share * used)

    def _accept(self) -> None:
        while True:
            self._slots.acquire()
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
            connection.settimeout(TIMEOUT)
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
            self._end(threading.current_thread())

    def _end(self, thread: threading.Thread) -> None:
        self._serving.pop(thread).close()
        self._slots.release()


def strip_brackets(host: str) -> str:
    """Return a host as sockets take it.

    Example:
        strip_brackets("[::1]") == "::1"
    """
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, or empty for every address, and needs no name server."""
    try:
        socket.getaddrinfo(strip_brackets(host) or None, 0, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True


def show_address(host: str, port: int) -> str:
    """Return host and port as they stand in a URL.

    Example:
        show_address("::1", 80) == "[::1]:80"
    """
    host = strip_brackets(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        strip_brackets(host) or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
