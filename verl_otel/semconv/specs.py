# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The form of a row of the catalogue."""

from typing import Literal, NamedTuple

Kind = Literal["histogram", "counter", "updown", "gauge"]


class MetricSpec(NamedTuple):
    """One row of the catalogue."""

    name: str
    kind: Kind
    unit: str
    """UCUM, as OpenTelemetry writes it; empty for training scalars, so that no suffix is added."""
    labels: tuple[str, ...]
    series: tuple[int, int, int]
    description: str
    bounds: tuple[float, ...] = ()


def histogram_row(
    name: str, unit: str, labels: tuple[str, ...], series: tuple[int, int, int], text: str, bounds: tuple[float, ...]
) -> MetricSpec:
    """Return the row of a histogram."""
    return MetricSpec(name, "histogram", unit, labels, series, text, bounds)
