# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How old open work may become before somebody has to be told. Every constant with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from verl_otel.recording.progress import Peers, merge

FACTOR: Final = 1.5
"""How much longer than the longest peer is still ordinary, where the longest ones are alike: a straggler is a few tens of per cent
slower."""
WIDE_FACTOR: Final = 8.0
"""The same at most, where tails are heavy: beyond that somebody wants to know, whatever the peers did."""
FEW_FACTOR: Final = 4.0
"""The same where little is known."""
FEW: Final = 8
"""Peers below which nothing is known of their tail."""
RARE: Final = 0.001
"""How likely it may be that healthy work that is longer than all before it is so by the factor. The longest so far is beaten about
ln(n) times in n steps, six times in 300."""
SLACK: Final = 10.0
"""Seconds on top: garbage collection, a cold cache or a busy machine are no stall."""
QUIET: Final = 10.0
"""Seconds in which nothing may have ended below a span: one whose children come and go is slow, not stuck."""
SILENT: Final = 8.0
"""Seconds without a sign of life after which a process is frozen, if its work is overdue as well. It gives one every second."""
SILENT_SLACK: Final = 5.0
"""Seconds beyond the longest peer for the work of a frozen process: nothing can be moving there."""
FEW_SILENT: Final = 2.0
"""How much longer than the longest peer it may take as well, where little is known."""
STOPPED_ALONE: Final = 60.0
"""Seconds that a process may be stopped (by a signal, by a debugger) with work that has no peers: nobody does that on purpose."""


def limit(peers: Peers | None, alone: float) -> float:
    """Return the age in seconds from which on open work of a live process is overdue.

    Args:
        peers: Ended spans of the same name; None: there are none.
        alone: What holds where there are none.
    """
    if peers is None or not peers.ended:
        return alone
    return _factor(peers) * peers.longest + SLACK


def _factor(peers: Peers) -> float:
    """Return by how much the longest may be beaten, from how fast the tail falls off.

    Beyond its largest values a heavy tail falls off like ``x ** (-1 / index)``, and Hill's estimator of the index is the mean of the
    logarithms of the largest values over the smallest of them (Annals of Statistics 3 (1975) 1163).
    """
    if peers.ended < FEW:
        return FEW_FACTOR
    smallest = max(peers.top[-1], 1e-4)
    index = sum(math.log(max(each, 1e-4) / smallest) for each in peers.top[:-1]) / (len(peers.top) - 1)
    return min(max(math.exp(min(-math.log(RARE) * index, 10.0)), FACTOR), WIDE_FACTOR)


def least(peers: Peers | None) -> float:
    """Return the age below which work is overdue for nobody, whatever the other processes of its node have seen."""
    return QUIET if peers is None or not peers.ended else FACTOR * peers.longest + SLACK


def silent_limit(peers: Peers | None, alone: float) -> float:
    """Return the same for work of a process that does not move at all."""
    if peers is None or not peers.ended:
        return alone
    return (FEW_SILENT if peers.ended < FEW else 1.0) * peers.longest + SILENT_SLACK


def merge_all(tables: Iterable[dict[str, Peers]]) -> dict[str, Peers]:
    """Return the peers of all processes together, by span name."""
    found: dict[str, Peers] = {}
    for table in tables:
        for name, peers in table.items():
            known = found.get(name)
            found[name] = peers if known is None else merge(known, peers)
    return found
