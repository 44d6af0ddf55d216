# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A network that breaks when a test says so: a TCP proxy that stops forwarding, forgets its connections, or cuts them."""

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to an address of the loopback.

    Args:
        target: ``host:port``.
    """

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._pairs, self._forgotten, self._threads = [], set(), []
        self._flows = threading.Event()
        self._flows.set()
        self._run(self._accept)

    def stall(self):
        """Stop forwarding; connections stay, as with a cable that is unplugged."""
        self._flows.clear()

    def resume(self):
        """Forward again, what waited first."""
        self._flows.set()

    def forget(self):
        """Never forward on the connections of now again, and close none of them, as a router that has forgotten them; new ones work."""
        self._forgotten |= set(self._pairs)

    def cut(self):
        """Shut every connection down."""
        for pair in self._pairs:
            shut(*pair)

    def close(self):
        """End it, with every connection."""
        shut(self._server)
        self._flows.set()
        while self._threads:
            self.cut()
            self._threads.pop().join(10)
        for each in (self._server, *(end for pair in self._pairs for end in pair)):
            each.close()

    def _run(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):  # the end
            while True:
                client, _ = self._server.accept()
                try:
                    pair = client, socket.create_connection(self._target, timeout=60)
                except OSError:
                    client.close()
                    continue
                pair[1].settimeout(None)
                self._pairs.append(pair)
                self._run(self._forward, pair, *pair)
                self._run(self._forward, pair, *reversed(pair))

    def _forward(self, pair, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if pair not in self._forgotten:
                    sink.sendall(data)
        if pair not in self._forgotten:
            shut(*pair)


def shut(*ends):
    """Shut sockets down, whatever state they are in; whoever waits for them goes on."""
    for each in ends:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
