# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server with hard limits: one thread, few connections, a total time for every request and response.

It serves short responses to GET requests in a process whose main work is another. Clients that send nothing, send slowly or never read cost
a file descriptor for some seconds and no thread. If every slot is used, a new connection replaces the oldest one that has not sent a request
in its first moments, so that such clients do not block others.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from verl_otel._internal import error_boundary
from verl_otel.exporting.http_messages import BadRequestError, Reply, Request, make_plain_reply, parse_request

MAX_CONNECTIONS: Final = 32
GRACE_SECONDS: Final = 0.2
"""Seconds for which a new connection is not replaced: its request may be under way. Further clients wait in the kernel's queue."""
MAX_HEAD: Final = 16 << 10
"""Bytes of a request line with all headers."""
READ_SECONDS: Final = 5.0
"""Seconds from the connection to the end of the request, including the TLS handshake."""
WRITE_SECONDS: Final = 10.0
"""Seconds from the response to the end of its transmission."""
IDLE_SHARE: Final = 4.0
"""Pause after responses, as a multiple of their CPU seconds: requests use a fifth of a core at most."""
MAX_IDLE: Final = 2.0
ACCEPT_AT_ONCE: Final = 4
"""Connections taken per turn. Less than there are slots: a request that arrives with its connection is read before anything replaces it."""
ACCEPT_AGAIN: Final = 0.5
"""Seconds without a new connection after the process had no file descriptor left."""
CLOSE_SECONDS: Final = 1.0
BACKLOG: Final = 1024
"""Connections that wait in the kernel; ``net.core.somaxconn`` may limit it further. A client beyond that is not refused: its packet is dropped
and sent again a second or more later."""
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_WANTED_BY_TLS: Final = {"SSLWantReadError": selectors.EVENT_READ, "SSLWantWriteError": selectors.EVENT_WRITE}
"""By name: importing ``ssl`` takes 4 MB, which a process that serves plain HTTP saves."""
_METHODS: Final = frozenset({"GET", "OPTIONS"})


class _Connection:
    """One client: what it has sent, and what it is still to receive."""

    __slots__ = ("closes_at", "encrypting", "output", "received", "replaceable_at", "request", "socket")

    def __init__(self, connection: socket.socket, closes_at: float) -> None:
        self.socket = connection
        self.closes_at = closes_at
        self.replaceable_at = time.monotonic() + GRACE_SECONDS
        self.encrypting = hasattr(connection, "do_handshake")
        self.received = bytearray()
        self.request: Request | None = None
        self.output: list[memoryview] = []

    @property
    def is_waiting(self) -> bool:
        """Whether the request is complete and the answer is not made."""
        return self.request is not None and not self.output

    @property
    def progress(self) -> int:
        """How far it is; what is least far is replaced first."""
        return 2 if self.output else 1 if self.received else 0

    def receive(self) -> bool:
        """Read what is there; return whether the request is complete. Raises `OSError` when the client has gone."""
        while True:
            part = self.socket.recv(4096)
            if not part:
                raise ConnectionResetError
            self.received += part
            end = self.received.find(b"\r\n\r\n")
            if end >= 0:
                self.request = parse_request(bytes(self.received[:end]))
                return True
            if len(self.received) > MAX_HEAD:
                return True

    def reply(self, reply: Reply) -> None:
        """Have an answer sent."""
        self.closes_at = time.monotonic() + WRITE_SECONDS
        self.replaceable_at = time.monotonic() + GRACE_SECONDS
        self.output = [memoryview(reply.encode_head()), *([memoryview(reply.body)] if reply.body else [])]

    def send(self) -> None:
        """Write as much as the client takes; `output` is empty at the end."""
        while self.output:
            sent = self.socket.send(self.output[0])
            self.output[0] = self.output[0][sent:]
            if not self.output[0]:
                del self.output[0]

    def close(self) -> None:
        """Close it, after what was sent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()


class Server:
    """Serves from one daemon thread.

    Args:
        address: Host and port; port 0 takes a free one. An IPv6 address may stand in brackets.
        answer: Makes the answer to a request, one at a time. Equal requests that wait at the same time share one.
        secure: Wraps an accepted socket into TLS, without a handshake.
        idle_share: After responses the thread pauses for this multiple of their CPU seconds.

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
        self._idle_share = idle_share
        self._secure = secure
        self._listener = _listen(*address)
        self.host, self.port = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: set[_Connection] = set()
        self._accepts = False
        self._accepts_at = self._answers_at = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verl-otel-http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Stop serving and free the port. Waits at most ``seconds`` for a response under way."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
        if self._thread.ident is None:
            self.close_sockets()
            return
        self._thread.join(max(0.0, seconds))
        self._listener.close()

    def close_sockets(self) -> None:
        """Close all sockets in this process. After a fork the server of the parent is not affected."""
        self._listener.close()
        for connection in tuple(self._connections):
            connection.socket.close()
        for resource in (self._woken, self._waker, self._selector):
            resource.close()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._run_once()
                except Exception as error:
                    if not self._stopped.wait(ACCEPT_AGAIN):  # a persistent error must not use a core
                        error_boundary.record_internal_error("http server", error)
        finally:
            self.close_sockets()

    def _run_once(self) -> None:
        self._set_accepting()
        for key, _ in self._selector.select(self._find_pause()):
            if key.fileobj is self._woken:
                return
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._connections:  # not replaced in this iteration
                self._advance(key.data)
        now = time.monotonic()
        if now >= self._answers_at:
            self._answer_all()
        for connection in [
            candidate for candidate in self._connections if not candidate.is_waiting and candidate.closes_at <= now
        ]:
            self._drop(connection)

    def _find_pause(self) -> float | None:
        """Return the seconds until the next timer; None if only clients can cause work."""
        due = [self._answers_at if connection.is_waiting else connection.closes_at for connection in self._connections]
        if not self._accepts and len(self._connections) < MAX_CONNECTIONS:
            due.append(self._accepts_at)
        elif not self._accepts:
            replaceable = [connection.replaceable_at for connection in self._connections if not connection.is_waiting]
            due += [max(self._accepts_at, min(replaceable))] if replaceable else []
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _set_accepting(self) -> None:
        """Listen while there is a slot, or a connection to replace; further clients wait in the kernel's queue."""
        accepts = time.monotonic() >= self._accepts_at and (
            len(self._connections) < MAX_CONNECTIONS or bool(self._find_replaceable())
        )
        if accepts is self._accepts:
            return
        self._accepts = accepts
        if accepts:
            self._selector.register(self._listener, selectors.EVENT_READ)
        else:
            self._selector.unregister(self._listener)

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            if len(self._connections) >= MAX_CONNECTIONS and not self._make_room():
                return
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._accepts_at = time.monotonic() + ACCEPT_AGAIN
                return
            try:
                accepted.setblocking(False)
                secured = self._secure(accepted) if self._secure is not None else accepted
            except Exception:
                accepted.close()
                continue
            connection = _Connection(secured, time.monotonic() + READ_SECONDS)
            self._connections.add(connection)
            self._selector.register(secured, selectors.EVENT_READ, connection)
            self._advance(connection)

    def _make_room(self) -> bool:
        """Drop the connection with the least progress, the oldest of several; return whether there was one."""
        candidates = self._find_replaceable()
        if candidates:
            self._drop(min(candidates, key=lambda connection: (connection.progress, connection.closes_at)))
        return bool(candidates)

    def _find_replaceable(self) -> list[_Connection]:
        now = time.monotonic()
        return [
            connection
            for connection in self._connections
            if not connection.is_waiting and connection.replaceable_at <= now
        ]

    def _advance(self, connection: _Connection) -> None:
        """Process a connection as far as possible without blocking."""
        events = selectors.EVENT_READ
        try:
            if connection.encrypting:
                connection.socket.do_handshake()  # type: ignore[attr-defined]  # it is an SSLSocket
                connection.encrypting = False
            if not connection.output:
                self._receive(connection)
            if connection.output:
                events = selectors.EVENT_WRITE
                connection.send()
                self._drop(connection)
            return
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            wanted = _WANTED_BY_TLS.get(type(error).__name__)
            if wanted is None:
                self._drop(connection)
                return
            events = wanted
        self._watch(connection, events)

    def _receive(self, connection: _Connection) -> None:
        try:
            if not connection.receive():
                return
        except BadRequestError:
            connection.reply(make_plain_reply(400, "not an HTTP request"))
            return
        request = connection.request
        if request is None:
            connection.reply(make_plain_reply(431, "too many headers"))
        elif request.method not in _METHODS:
            connection.reply(make_plain_reply(405, "use GET", ("Allow", "GET, OPTIONS")))
        else:
            self._watch(connection, 0)

    def _watch(self, connection: _Connection, events: int) -> None:
        """Have the selector report these events of a connection; 0 for none."""
        registered = self._selector.get_map().get(connection.socket)
        if registered is None and events:
            self._selector.register(connection.socket, events, connection)
        elif registered is not None and not events:
            self._selector.unregister(connection.socket)
        elif registered is not None and registered.events != events:
            self._selector.modify(connection.socket, events, connection)

    def _answer_all(self) -> None:
        waiting = [candidate for candidate in self._connections if candidate.is_waiting]
        if not waiting:
            return
        begin, replies = time.thread_time(), dict[Hashable, Reply]()
        for connection in waiting:
            request = connection.request
            if request is not None:
                reply = replies.get(request.key)
                connection.reply(reply or replies.setdefault(request.key, self._make_reply(request)))
                self._advance(connection)
        used = time.thread_time() - begin
        self._answers_at = time.monotonic() + min(MAX_IDLE, self._idle_share * used)

    def _make_reply(self, request: Request) -> Reply:
        try:
            return self._answer(request)
        except Exception as error:
            with contextlib.suppress(Exception):  # in tests it is raised again: the thread has to go on
                error_boundary.record_internal_error("http answer", error)
            return make_plain_reply(500, "internal error")

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._watch(connection, 0)
        connection.close()


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
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
