# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Quantiles of small samples."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return a quantile with linear interpolation, as numpy does by default.

    Args:
        ordered: At least one value, in ascending order.
        fraction: From 0 to 1.
    """
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
