# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Formats values in Grafana's units."""

from __future__ import annotations

import math
import time
from typing import Final

_STEPS: Final = {
    "bytes": (1024.0, " KMGTP", "iB"),
    "Bps": (1024.0, " KMGTP", "iB/s"),
    "short": (1000.0, " KMBT", ""),
    "hertz": (1000.0, " kMG", "Hz"),
}
_SUFFIX: Final = {"watt": " W", "celsius": " °C", "percent": " %"}
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_SMALL: Final = 1e-3


def show(value: float, unit: str) -> str:
    """Return a number as Grafana shows it.

    Example:
        show(0.5, "percentunit") == "50 %", show(90, "s") == "1.5 min"
    """
    if math.isnan(value):
        return "NaN"
    if unit == "dateTimeAsIso":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value / 1000))
    if unit == "percentunit":
        return f"{value * 100:.4g} %"
    if unit == "s":
        return _duration(value)
    if unit in _STEPS:
        return _scaled(value, *_STEPS[unit])
    return f"{value:.4g}{_SUFFIX.get(unit, '')}"


def _duration(value: float) -> str:
    size = abs(value)
    for bound, factor, word in (
        (_SMALL, 1e-6, "µs"),
        (1, 1e-3, "ms"),
        (_MINUTE, 1, "s"),
        (_HOUR, _MINUTE, "min"),
        (_DAY, _HOUR, "h"),
    ):
        if 0 < size < bound:
            return f"{value / factor:.3g} {word}"
    return f"{value / _DAY:.3g} d" if size else "0 s"


def _scaled(value: float, base: float, letters: str, suffix: str) -> str:
    power = 0
    while abs(value) >= base and power < len(letters) - 1:
        value, power = value / base, power + 1
    return f"{value:.4g} {letters[power].strip()}{suffix}".strip()
