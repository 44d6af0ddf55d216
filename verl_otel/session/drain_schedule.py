# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which drains may be skipped: a process in which nothing happens is not drained every second."""

from __future__ import annotations

from typing import Final

from verl_otel.model import Batch
from verl_otel.recording import run_log, series_registry
from verl_otel.recording.state import RECORDER

REST_INTERVALS: Final = 5
"""Drain intervals from one drain to the next while nothing happens."""
MAX_REST_SECONDS: Final = 5.0
"""The same in seconds, at most: what is open must not be written later than guaranteed, whatever the interval is."""
MAX_OPEN: Final = 64
"""Open spans up to which it is cheaper to look at them than to drain."""


class DrainSchedule:
    """Keeps what the last drain left, to find whether anything has happened since.

    Args:
        interval: Seconds between two drains.
    """

    def __init__(self, interval: float) -> None:
        self._rest_seconds = min(REST_INTERVALS * interval, MAX_REST_SECONDS)
        self._drained_at = float("-inf")
        self._listed = 0
        self._has_unpolled = False

    def note_drain(self, now: float) -> None:
        """Note that the drain thread drains now (`time.monotonic`)."""
        self._drained_at = now

    def note_poll(self) -> None:
        """Note that the exporters are about to write everything that they were passed."""
        self._has_unpolled = False

    def note_batch(self, batch: Batch) -> None:
        """Note a batch that is about to be passed to the exporters, by whichever thread."""
        self._listed = len(batch.open_spans)
        if batch.spans or batch.points or run_log.has_records():
            self._has_unpolled = True  # a scrape drains, too, but writes nothing

    def may_skip(self, now: float) -> bool:
        """Return whether a drain would find nothing, except in the user's own instruments and spans."""
        return (
            now - self._drained_at < self._rest_seconds
            and not self._has_unpolled
            and not RECORDER.pending_points
            and not run_log.has_records()
            and self._knows_all_open()
            and not series_registry.has_new_values()
        )

    def _knows_all_open(self) -> bool:
        """Return whether no span has begun or ended that the last batch does not list as open."""
        begun = RECORDER.begun[:]
        return len(begun) == self._listed <= MAX_OPEN and not any(span.stop for span in begun)
