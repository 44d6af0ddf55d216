# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trace and span ids that do not depend on the user's random seeds.

RL code seeds `random`, numpy and torch in every process with the same number. OpenTelemetry's default generator uses `random` and then
produces the same ids in two processes (open-telemetry/opentelemetry-python#4376). This one has a generator of its own, seeded by the
operating system, and again in a forked child.
"""

from __future__ import annotations

import os
import random
import struct
from typing import NamedTuple

from verl_otel._internal import process_state

_generator = random.SystemRandom()
_bits = random.Random(_generator.getrandbits(256)).getrandbits


def _reseed() -> None:
    global _bits
    _bits = random.Random(int.from_bytes(os.urandom(32), "big")).getrandbits


process_state.register(after_fork=_reseed)


def make_trace_id() -> int:
    """Return a random trace id: 128 bits, never 0."""
    return _bits(128) or 1


def make_span_id() -> int:
    """Return a random span id: 64 bits, never 0."""
    return _bits(64) or 1


def make_span_ids(count: int) -> tuple[int, ...]:
    """Return random span ids, each at a fifth of the cost of `make_span_id`. An id may be 0, once in 10^19: the caller replaces it by 1."""
    return struct.unpack(f"<{count}Q", _bits(64 * count).to_bytes(8 * count, "little")) if count else ()


def draw() -> float:
    """Return a random number in [0, 1)."""
    return _bits(53) / (1 << 53)


class SpanIds(NamedTuple):
    """Ids and trace flags of a span, and the clock offset of its trace in this process."""

    trace_id: int
    span_id: int
    parent_id: int
    flags: int
    state: str
    offset_ns: int
    """Unix time minus monotonic time, taken when the trace began in this process, so that long runs do not drift."""
