# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Scalars over the run in compact columns: 16 bytes per value, so that those of a long run fit into memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from verl_otel.analysis.io.otlp_json import PointRecord
from verl_otel.analysis.model import Series

MAX_SERIES: Final = 5_000
MAX_POINTS: Final = 10_000
"""Points of one series. Of more, every second one is dropped, repeatedly; the first and the last one stay."""
_TRAINER: Final = "trainer"

Key = tuple[str, tuple[tuple[str, str], ...]]
Column = tuple["array[int]", "array[float]"]
"""Nanoseconds since 1970, and values."""


class Columns:
    """Columns of timestamps and values by series."""

    def __init__(self) -> None:
        self._columns: dict[Key, Column] = {}
        self.left_out = 0
        """Values of series beyond `MAX_SERIES`."""

    def add(self, points: Iterable[PointRecord], instance: str) -> None:
        """Add values of one process. Series of processes other than the trainer get its name as a label: every rank has some."""
        extra = () if instance.startswith(_TRAINER) else (("instance", instance),)
        for point in points:
            column = self._column((point.name, (*point.labels, *extra)))
            if column is None:
                self.left_out += 1
                continue
            column[0].append(point.time_ns)
            column[1].append(point.value)

    def merge(self, other: Columns) -> None:
        """Add the values of another instance."""
        self.left_out += other.left_out
        for key, (times, values) in other._columns.items():
            column = self._column(key)
            if column is None:
                self.left_out += len(times)
                continue
            column[0].extend(times)
            column[1].extend(values)
            if len(column[0]) > 2 * MAX_POINTS:
                self._columns[key] = _thin(*_sort(*column))

    def _column(self, key: Key) -> Column | None:
        column = self._columns.get(key)
        if column is None and len(self._columns) < MAX_SERIES:
            column = self._columns[key] = (array("q"), array("d"))
        return column

    def series(self) -> tuple[Series, ...]:
        """Return all series by name, each in the order of time. Series with equal timestamps share one tuple of them."""
        shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        series = []
        for (name, labels), column in sorted(self._columns.items(), key=lambda item: item[0]):
            times, values = _thin(*_sort(*column))
            shown_times = tuple(times)
            series.append(Series(name, labels, shared.setdefault(shown_times, shown_times), tuple(values)))
        return tuple(series)


def _sort(times: array[int], values: array[float]) -> Column:
    if all(times[place] <= times[place + 1] for place in range(len(times) - 1)):
        return times, values
    order = sorted(range(len(times)), key=times.__getitem__)
    return array("q", (times[place] for place in order)), array("d", (values[place] for place in order))


def _thin(times: array[int], values: array[float]) -> Column:
    while len(times) > MAX_POINTS:
        last = (times[-1], values[-1]) if len(times) % 2 == 0 else None
        times, values = times[::2], values[::2]
        if last is not None:
            times.append(last[0])
            values.append(last[1])
    return times, values
