# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus names from OpenTelemetry names, as the Collector and Prometheus derive them.

The rules of the translation strategy ``UnderscoreEscapingWithSuffixes`` (prometheus/otlptranslator): words joined by ``_``, the
unit's word behind them, ``_ratio`` for a gauge of unit ``1``, ``_total`` for a counter.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from verl_otel.model import Instrument

_WORDS: Final = re.compile(r"[A-Za-z0-9:]+")
_UNITS: Final = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
    "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes", "TiBy": "tibibytes",
    "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "m": "meters", "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz",
    "%": "percent", "1": "",
}  # fmt: skip
SUFFIXES: Final = {
    "gauge": ("",),
    "updown": ("",),
    "counter": ("", "_total", "_created"),
    "histogram": ("", "_bucket", "_count", "_sum", "_created"),
}
"""Suffixes that OpenMetrics reserves for a metric, by its kind."""
_PER: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


def _unit_tokens(unit: str) -> list[str]:
    """Return the tokens of a unit, such as ``bytes`` and ``per_second``; each is one token, as in otlptranslator."""
    main, _, per = (part.strip() for part in unit.partition("/"))
    tokens = []
    if main and not set(main) & set("{}"):
        tokens.append("_".join(_WORDS.findall(_UNITS.get(main, main))))
    if per and not set(per) & set("{}"):
        token = "_".join(_WORDS.findall(_PER.get(per, per)))
        tokens.append(f"per_{token}" if token else "")
    return [token for token in tokens if token]


@lru_cache(maxsize=4096)
def metric_name(instrument: Instrument) -> str:
    """Return the Prometheus name of an instrument.

    Example:
        metric_name(Instrument("verl.step.duration", "histogram", "s", "")) == "verl_step_duration_seconds"
    """
    words = _WORDS.findall(instrument.name)
    words += [token for token in _unit_tokens(instrument.unit) if token not in words]
    if instrument.kind == "counter":
        words = [word for word in words if word != "total"] + ["total"]
    if instrument.kind == "gauge" and instrument.unit == "1":
        words = [word for word in words if word != "ratio"] + ["ratio"]
    name = "_".join(words) or "_"
    return f"_{name}" if name[:1].isdigit() else name


@lru_cache(maxsize=4096)
def label_name(name: str) -> str:
    """Return the Prometheus name of a label or resource attribute."""
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if clean[:1].isdigit():
        return f"key_{clean}"
    return f"key{clean or '_'}" if not clean or (clean.startswith("_") and not clean.startswith("__")) else clean
