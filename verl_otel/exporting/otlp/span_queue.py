# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Queue of encoded spans, bounded by bytes, and joined to larger requests."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Final, NamedTuple

REQUEST_BYTES: Final = 1 << 19
"""Size up to which waiting parts are joined to one request. A request costs a millisecond; a Collector accepts 4 MiB at least."""


class Part(NamedTuple):
    """An encoded request."""

    body: bytes
    spans: int


class SpanQueue:
    """Queue of parts in order of arrival. One thread adds, another one sends.

    Args:
        capacity: Bytes that may wait; the oldest parts are dropped.

    Example:
        queue = SpanQueue(32 << 20)
        dropped = queue.add(body, 512)
        parts = queue.join()
        queue.remove(parts)
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._parts: deque[Part] = deque()
        self._bytes = 0
        self._singly = 0
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._parts)

    def add(self, body: bytes, spans: int) -> int:
        """Add an encoded request. Returns how many spans were dropped to make room."""
        dropped = 0
        with self._lock:
            self._parts.append(Part(body, spans))
            self._bytes += len(body)
            while self._bytes > self._capacity and self._parts:
                oldest = self._parts.popleft()
                self._bytes -= len(oldest.body)
                dropped += oldest.spans
        return dropped

    def join(self, limit: float = math.inf) -> list[Part]:
        """Return what goes into the next request, the oldest first; it stays in the queue. Several parts together stay below ``limit`` bytes.

        Encoded requests one behind the other are one request, as protobuf merges messages
        (https://protobuf.dev/programming-guides/encoding/#last-one-wins).
        """
        parts: list[Part] = []
        size = 0
        with self._lock:
            for part in self._parts:
                size += len(part.body)
                if parts and (size > REQUEST_BYTES or size >= limit or self._singly):
                    break
                parts.append(part)
            self._singly = max(0, self._singly - 1)
        return parts

    def separate(self, parts: list[Part]) -> None:
        """Send these parts one by one next: one invalid part must not cost the others, and together they may be too large for a server."""
        if len(parts) > 1:
            self._singly = len(parts)

    def remove(self, parts: list[Part]) -> None:
        """Remove parts that were sent or rejected permanently. A full queue may have dropped some of them meanwhile."""
        with self._lock:
            for part in parts:
                if self._parts and self._parts[0] is part:
                    self._parts.popleft()
                    self._bytes -= len(part.body)

    def replace(self, part: Part, halves: list[tuple[bytes, int]]) -> None:
        """Put smaller requests in the place of the oldest part, unless a full queue has dropped it meanwhile."""
        with self._lock:
            if self._parts and self._parts[0] is part:
                self._parts.popleft()
                self._parts.extendleft(Part(*half) for half in reversed(halves))
                self._bytes += sum(len(body) for body, _ in halves) - len(part.body)

    def clear(self) -> int:
        """Remove all parts. Returns their number of spans."""
        with self._lock:
            left = sum(part.spans for part in self._parts)
            self._parts.clear()
            self._bytes = 0
        return left
