# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The age at which open work is overdue. Every constant is given with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from verl_otel.recording.duration_stats import DurationStats, merge

FACTOR: Final = 1.5
"""Multiple of the longest peer that is still normal, if the longest peers are similar: a straggler is a few tens of per cent slower."""
WIDE_FACTOR: Final = 8.0
"""Upper bound of the factor for heavy tails: longer work is always reported."""
FEW_FACTOR: Final = 4.0
"""The factor with few peers."""
FEW: Final = 8
"""Number of peers below which their tail is unknown."""
RARE: Final = 0.001
"""Accepted probability that healthy work that exceeds the longest peer exceeds it by the factor. The longest peer is exceeded about
ln(n) times in n steps, six times in 300."""
SLACK: Final = 10.0
"""Seconds that are added: garbage collection, a cold cache or a busy machine is not a stall."""
QUIET: Final = 10.0
"""Seconds without an ended descendant after which a span may be stuck. With descendants that end it is slow, not stuck."""
HEARTBEAT_TIMEOUT: Final = 8.0
"""Seconds without a heartbeat after which a process is frozen, if its work is overdue as well. The interval is one second."""
HEARTBEAT_SLACK: Final = 5.0
"""Seconds that are added to the longest peer in a frozen process, which cannot make progress."""
FEW_HEARTBEAT_TIMEOUT: Final = 2.0
"""The factor for a frozen process with few peers."""
STOPPED_ALONE: Final = 60.0
"""Seconds that a process with work without peers may be stopped, by a signal or a debugger, before it is reported."""


def span_timeout(peers: DurationStats | None, default_timeout: float) -> float:
    """Return the age in seconds at which open work of a live process is overdue.

    Args:
        peers: Ended spans of the same name; None: there are none.
        default_timeout: The result without peers, in seconds.
    """
    if peers is None or not peers.ended:
        return default_timeout
    return _factor(peers) * peers.longest + SLACK


def _factor(peers: DurationStats) -> float:
    """Return the accepted multiple of the longest peer, estimated from the tail of the durations.

    Beyond its largest values a heavy tail falls off like ``x ** (-1 / index)``, and Hill's estimator of the index is the mean of the
    logarithms of the largest values over the smallest of them (Annals of Statistics 3 (1975) 1163).
    """
    if peers.ended < FEW:
        return FEW_FACTOR
    smallest = max(peers.top[-1], 1e-4)
    index = sum(math.log(max(seconds, 1e-4) / smallest) for seconds in peers.top[:-1]) / (len(peers.top) - 1)
    return min(max(math.exp(min(-math.log(RARE) * index, 10.0)), FACTOR), WIDE_FACTOR)


def shortest_timeout(peers: DurationStats | None) -> float:
    """Return the age in seconds below which work is not overdue, whatever the peers in other processes of the node are."""
    return QUIET if peers is None or not peers.ended else FACTOR * peers.longest + SLACK


def heartbeat_timeout(peers: DurationStats | None, default_timeout: float) -> float:
    """Return the age in seconds at which work of a stopped or frozen process is overdue; arguments as of `span_timeout`."""
    if peers is None or not peers.ended:
        return default_timeout
    return (FEW_HEARTBEAT_TIMEOUT if peers.ended < FEW else 1.0) * peers.longest + HEARTBEAT_SLACK


def merge_all(tables: Iterable[dict[str, DurationStats]]) -> dict[str, DurationStats]:
    """Return the merged peers of all processes, by span name."""
    merged: dict[str, DurationStats] = {}
    for table in tables:
        for name, peers in table.items():
            existing = merged.get(name)
            merged[name] = peers if existing is None else merge(existing, peers)
    return merged
