# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Columns of scalars in bounded memory that are equally dense over the whole run, and end with the newest value."""

from __future__ import annotations

from array import array
from typing import Final

from verl_otel.analysis.model import Series
from verl_otel.analysis.scalars import Column, Columns, Key, sort
from verl_otel.semconv.metric_names import TRAINING_STEP

MAX_SERIES: Final = 1_000
MAX_POINTS: Final = 1_000
"""Points of one series; of twice as many, every second one is dropped, and from then on every second one is taken."""
MAX_STEPS: Final = 100_000
"""Points of the series with the number of the step, on which the others depend."""


class LiveColumns(Columns):
    """Columns to which pieces of a growing run are added, in the order of time."""

    def __init__(self) -> None:
        super().__init__(MAX_SERIES, MAX_STEPS)
        self._strides: dict[Key, int] = {}
        self._passed: dict[Key, int] = {}
        """Number of values of each series so far."""
        self._newest: dict[Key, tuple[int, float]] = {}

    def merge(self, other: Columns) -> None:
        """Add the values of another instance."""
        self.left_out += other.left_out
        for key, (times, values) in other.columns():
            column = self._column(key)
            if column is None:
                self.left_out += len(times)
                continue
            stride, passed = self._strides.get(key, 1), self._passed.get(key, 0)
            begin = -passed % stride
            column[0].extend(times[begin::stride])
            column[1].extend(values[begin::stride])
            self._passed[key] = passed + len(times)
            if times:
                self._newest[key] = (times[-1], values[-1])
            if len(column[0]) > 2 * (MAX_STEPS if key[0] == TRAINING_STEP else MAX_POINTS):
                self._columns[key] = (column[0][::2], column[1][::2])
                self._strides[key] = 2 * stride

    def series(self) -> tuple[Series, ...]:
        """Return all series by name, each in the order of time, with its newest value, as arrays: a quarter of the size of tuples."""
        shared: dict[bytes, array[int]] = {}
        series = []
        for key, column in sorted(self._columns.items(), key=lambda item: item[0]):
            times, values = self._complete(key, *sort(*column))
            series.append(Series(*key, shared.setdefault(times.tobytes(), times), values))
        return tuple(series)

    def _complete(self, key: Key, times: array[int], values: array[float]) -> Column:
        """Return copies of a column's arrays, which grow, with the newest value."""
        time_ns, value = self._newest.get(key, (0, 0.0))
        if not times or time_ns <= times[-1]:
            return times[:], values[:]
        return times + array("q", (time_ns,)), values + array("d", (value,))
