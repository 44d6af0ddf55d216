# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Quantiles of small samples: interpolated for a curve, or one of the values where a reader looks for the one that has it."""

from __future__ import annotations

import math
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


def pick_quantiles(ordered: Sequence[float]) -> tuple[float, ...]:
    """Return minimum, p50, p95, p99 and maximum of sorted numbers, each one of them (nearest rank); empty without any."""
    if not ordered:
        return ()
    ranks = [max(0, math.ceil(share * len(ordered)) - 1) for share in (0.0, 0.5, 0.95, 0.99, 1.0)]
    return tuple(ordered[rank] for rank in ranks)
