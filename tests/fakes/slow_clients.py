# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that occupy a server on the loopback, and what the server's process uses meanwhile."""

import contextlib
import itertools
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

KINDS = ("silent", "dripping", "deaf")
"""Sends nothing; sends a request a byte at a time; sends a request and reads nothing."""
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n"


class SlowClients:
    """A number of clients of the given kinds in turn, which connect again when they are dropped.

    Args:
        url: The server.
        count: How many there are at once.
        kinds: Of `KINDS`.
        byte_seconds: Time between two bytes of a dripping client.
    """

    def __init__(self, url, count, kinds=KINDS, byte_seconds=1.0):
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._kinds = list(itertools.islice(itertools.cycle(kinds), count))
        self._byte_seconds = byte_seconds
        self._sockets = [None] * count
        self._stopped = threading.Event()
        self._full = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.connections = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stopped.set()
        self._thread.join()
        for each in filter(None, self._sockets):
            each.close()

    def wait_until_connected(self, seconds=30):
        """Wait until every client has connected once."""
        assert self._full.wait(seconds), f"{self.connections} clients have connected"

    def _run(self):
        while not self._stopped.wait(0.05):
            for index, kind in enumerate(self._kinds):
                if self._stopped.is_set():
                    return
                if self._sockets[index] is None:
                    self._connect(index, kind)
                elif not self._is_open(index, kind):
                    self._sockets[index].close()
                    self._sockets[index] = None
            self._full.set()

    def _connect(self, index, kind):
        made = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET)
        made.settimeout(0.2)
        if kind == "deaf":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        try:
            made.connect(self._address)
            if kind == "deaf":
                made.sendall(REQUEST)
        except OSError:
            made.close()
            return
        made.setblocking(False)
        self._sockets[index] = made
        self.connections += 1

    def _is_open(self, index, kind):
        made = self._sockets[index]
        try:
            if kind == "dripping" and int(time.monotonic() / self._byte_seconds) % 2 == index % 2:
                made.send(b"X")
            return kind == "deaf" or made.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


class Usage:
    """Threads and file descriptors of a process, compared with those at the beginning."""

    def __init__(self, pid):
        self._folder = Path(f"/proc/{pid}")
        self.before = self.count()

    def count(self):
        """Return the numbers of threads and of file descriptors."""
        found = []
        for name in ("task", "fd"):
            with contextlib.suppress(OSError):
                found.append(len(list((self._folder / name).iterdir())))
        return tuple(found)

    def assert_small(self, threads=2, descriptors=40):
        """Assert that no more than this was added."""
        now = self.count()
        assert now[0] <= self.before[0] + threads, f"{now[0]} threads, {self.before[0]} before"
        assert now[1] <= self.before[1] + descriptors, f"{now[1]} file descriptors, {self.before[1]} before"
