# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Servers on the loopback that answer OTLP requests in hostile ways."""

import contextlib
import socket
import struct
import threading

OK = b"HTTP/1.1 200 OK\r\n"
PAUSE = 0.02


def slow_headers(connection, stopped):
    """A header within every time-out of a read."""
    connection.sendall(OK)
    while not stopped.wait(PAUSE):
        connection.sendall(b"X: y\r\n")


def slow_status(connection, stopped):
    """A status line without an end, within every time-out of a read."""
    while not stopped.wait(PAUSE):
        connection.sendall(b"H")


def slow_body(connection, stopped):
    """A body of the announced length, byte by byte."""
    connection.sendall(OK + b"Content-Length: 4000\r\n\r\n")
    while not stopped.wait(PAUSE):
        connection.sendall(b"x")


def huge_body(connection, stopped):
    """A body without an end, as fast as it is taken."""
    connection.sendall(OK + b"\r\n")
    while not stopped.is_set():
        connection.sendall(bytes(100_000))


def bad_chunk(connection, stopped):
    """A chunk whose length is no number."""
    connection.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n")


def nothing_to_say(connection, stopped):
    """A success without a body."""
    connection.sendall(OK + b"Content-Type: text/html\r\nContent-Length: 0\r\n\r\n")


def html(connection, stopped):
    """A page for people."""
    connection.sendall(OK + b"Content-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>")


def reset_in_body(connection, stopped):
    """A connection that is reset within the body."""
    connection.sendall(OK + b"Content-Length: 100\r\n\r\nhalf")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def nothing(connection, stopped):
    """No answer."""
    stopped.wait(60)


def redirect(to):
    """Return a server that sends to another place."""

    def answer(connection, stopped):
        connection.sendall(
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % to.encode("latin-1")
        )

    return answer


TAKING = (huge_body, bad_chunk, nothing_to_say, reset_in_body)
"""Those whose status says that they have taken it."""


class Endpoint:
    """A server that answers every request so. ``received`` has what the clients sent first."""

    def __init__(self, answer, host="127.0.0.1"):
        self._answer = answer
        self._stopped = threading.Event()
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64
        )
        self._listener.settimeout(0.1)
        self._threads = [threading.Thread(target=self._run)]
        self.received = []
        self.port = self._listener.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *error):
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _run(self):
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.settimeout(0.5)
            while not self._stopped.is_set():
                part = connection.recv(1 << 20)
                self.received.append(part)
                if not part:
                    return
                self._answer(connection, self._stopped)
                if self._answer in ONCE:
                    return


ONCE = {reset_in_body}
"""Those after which the connection ends."""
