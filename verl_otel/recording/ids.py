# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trace and span ids that no seed can reach.

RL code seeds `random`, numpy and torch in every process with the same number; OpenTelemetry's default generator draws from
`random` and then gives two processes the same ids (open-telemetry/opentelemetry-python#4376). Ours has a generator of its
own, seeded by the operating system and again in a forked child.
"""

from __future__ import annotations

import os
import random
import struct

_generator = random.SystemRandom()
_bits = random.Random(_generator.getrandbits(256)).getrandbits


def _reseed() -> None:
    global _bits
    _bits = random.Random(int.from_bytes(os.urandom(32), "big")).getrandbits


os.register_at_fork(after_in_child=_reseed)


def make_trace_id() -> int:
    """Return a random trace id: 128 bits, never 0."""
    return _bits(128) or 1


def make_span_id() -> int:
    """Return a random span id: 64 bits, never 0."""
    return _bits(64) or 1


def make_span_ids(count: int) -> tuple[int, ...]:
    """Return several random span ids, at a fifth of the price of one. Any may be 0, once in 10^19: take 1 then."""
    return struct.unpack(f"<{count}Q", _bits(64 * count).to_bytes(8 * count, "little")) if count else ()


def draw() -> float:
    """Return a random number in [0, 1), independent of the user's seeds."""
    return _bits(53) / (1 << 53)
