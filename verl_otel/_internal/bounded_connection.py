# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP exchanges that are bounded: one total time for connection, request and answer, and bytes for the answer.

The time-out of a socket, which ``requests`` and ``urllib`` set, is one of each read: a server that sends a byte, or one more
``100 Continue``, before it expires holds the caller without end.
"""

from __future__ import annotations

import io
import time
from http.client import HTTPResponse, parse_headers
from typing import Any, Final

MAX_RECEIVED: Final = 64 << 10
"""Bytes of one answer with its headers and all interim answers."""
PIECE: Final = 16 << 10
"""Bytes that are sent at once. TLS applies a socket's time-out to each of its records, of this size."""
SWITCHING_PROTOCOLS: Final = 101


class Limits:
    """What is left of the time and the bytes of the exchange under way. One exchange at a time."""

    def __init__(self) -> None:
        self._deadline = 0.0
        self._bytes = 0

    def begin(self, seconds: float, size: int = MAX_RECEIVED) -> None:
        """Begin an exchange that may take this long and receive this many bytes."""
        self._deadline = time.monotonic() + seconds
        self._bytes = size

    def find_seconds(self) -> float:
        """Return the seconds that are left. Raises `TimeoutError` when there are none."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the exchange takes too long")
        return seconds

    def find_bytes(self) -> int:
        """Return the bytes that are left. Raises `OSError` when there are none."""
        if self._bytes <= 0:
            raise OSError("the answer is too long")
        return self._bytes

    def take(self, count: int) -> None:
        """Count received bytes."""
        self._bytes -= count


class _Source(io.RawIOBase):
    """What a connection receives, within limits."""

    def __init__(self, connection: Any, raw: Any, limits: Limits) -> None:
        self._connection, self._raw, self._limits = connection, raw, limits

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._connection.settimeout(self._limits.find_seconds())
        count: int | None = self._raw.readinto(memoryview(buffer)[: self._limits.find_bytes()])
        self._limits.take(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def make_connection(base: Any, limits: Limits) -> Any:
    """Return a class of connections that keep to limits.

    Args:
        base: `http.client.HTTPConnection` or a subclass.
        limits: Of the exchange under way.
    """

    class Response(HTTPResponse):
        def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self.fp = io.BufferedReader(_Source(sock, self.fp.detach(), limits))  # type: ignore[attr-defined]  # a BufferedReader

        def _read_status(self) -> tuple[str, int, str]:
            """Skip interim answers: the base skips ``100 Continue`` only, and takes another one for the answer."""
            while True:
                status: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]  # known to no stub
                if not 100 < status[1] < 200 or status[1] == SWITCHING_PROTOCOLS:  # noqa: PLR2004 - as HTTP numbers them
                    return status
                parse_headers(self.fp)

    class Connection(base):  # type: ignore[misc]  # a class that is given
        response_class = Response

        def connect(self) -> None:
            self.timeout = limits.find_seconds()
            super().connect()

        def send(self, data: Any) -> None:
            pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)] if isinstance(data, bytes) else [data]
            for piece in pieces:
                if self.sock is not None:
                    self.sock.settimeout(limits.find_seconds())
                super().send(piece)

    return Connection
