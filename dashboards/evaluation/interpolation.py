# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Interpolates the variables of a board as Grafana does: choices from Prometheus, formats, and built-in macros."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dashboards.evaluation.client import Prometheus

Choice = tuple[str, ...]
ALL: Final = "$__all"
_NAMES: Final = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(__\w+|[A-Za-z]\w*)")
_LABELS: Final = re.compile(r"label_values\((?:(.*),\s*)?(\w+)\)$", re.DOTALL)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Period:
    """The time range of a board, in Unix seconds."""

    start: float
    end: float
    scrape: float = 10.0
    """Seconds between two scrapes, as configured in Grafana's data source."""
    points: int = 240
    """Points of a curve."""

    @property
    def step(self) -> float:
        """Seconds between two points of a curve."""
        return max(self.scrape, round((self.end - self.start) / self.points))

    @property
    def macros(self) -> dict[str, str]:
        """Return Grafana's built-in variables. The rate interval is as documented: at least four scrapes."""
        rate = max(self.step + self.scrape, 4 * self.scrape)
        span = max(1, round(self.end - self.start))
        return {"__rate_interval": f"{rate:g}s", "__interval": f"{self.step:g}s", "__range": f"{span}s"}


@dataclass(frozen=True)
class Values:
    """The values of all variables of a board."""

    chosen: Mapping[str, Choice]
    all_values: Mapping[str, str]
    period: Period
    several: frozenset[str] = frozenset()
    """Variables that may have several values: Grafana escapes theirs, even a single one."""

    def fill(self, text: str, **scoped: str) -> str:
        """Return a text with variables and macros replaced. Unknown ones stay, as in Grafana.

        Args:
            text: With ``$name``, ``${name}`` or ``${name:format}``.
            **scoped: Variables that have one value here: that of a repeated panel.
        """

        def replace(match: re.Match[str]) -> str:
            name, form = match[1] or match[3], match[2] or ""
            if name in self.period.macros:
                return self.period.macros[name]
            if name not in self.chosen:
                return match[0]
            values = (scoped[name],) if name in scoped else self.chosen[name]
            return self._join(name, values, form)

        return _NAMES.sub(replace, text)

    def _join(self, name: str, values: Choice, form: str) -> str:
        if values == (ALL,):
            return self.all_values.get(name) or ".+"
        if form == "pipe":
            return "|".join(values)
        if form == "queryparam":
            return "&".join(f"var-{name}={value}" for value in values)
        if name not in self.several:
            return values[0] if values else ""
        escaped = [_escape(value) for value in values]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _escape(value: str) -> str:
    """Return a value for a regular expression within a string of PromQL."""
    return re.sub(r"([\\^$*+?.()|\[\]{}])", r"\\\\\1", value)


def evaluate(board: Mapping[str, Any], prometheus: Prometheus, period: Period, chosen: Mapping[str, Choice]) -> Values:
    """Return the values of a board's variables, evaluated in their order because each may refer to previous ones.

    Args:
        board: Grafana's classic JSON.
        prometheus: Where values of labels come from.
        period: The time range.
        chosen: Chosen values by variable; the default of the board, else the first value, applies to the others.
    """
    choices: dict[str, Choice] = {}
    every: dict[str, str] = {}
    several = frozenset(variable["name"] for variable in board["templating"]["list"] if variable.get("multi"))
    for variable in board["templating"]["list"]:
        name = variable["name"]
        every[name] = variable.get("allValue", "")
        sofar = Values(choices, every, period, several)
        choices[name] = chosen.get(name) or _default(variable, sofar, prometheus)
    return Values(choices, every, period, several)


def options(variable: Mapping[str, Any], sofar: Values, prometheus: Prometheus) -> list[str]:
    """Return the options of a query variable, in its order."""
    parts = _LABELS.match(str(variable["query"]))
    if parts is None:
        raise ValueError(f"not a query for values of a label: {variable['query']}")
    period = sofar.period
    values = prometheus.label_values(sofar.fill(parts[1] or ""), parts[2], period.start, period.end)
    return sorted(values, reverse=variable.get("sort") == 2)  # noqa: PLR2004 - Grafana's number for descending


def _default(variable: Mapping[str, Any], sofar: Values, prometheus: Prometheus) -> Choice:
    kind = variable["type"]
    if kind == "datasource":
        return (str(variable["query"]),)
    if kind == "interval":
        return (_width(variable, sofar.period),)
    if kind == "query":
        current = variable.get("current", {}).get("value")
        if current in ([ALL], ALL):
            return (ALL,)
        return tuple(options(variable, sofar, prometheus)[:1])
    return (str(variable.get("current", {}).get("value", "")),)


def _width(variable: Mapping[str, Any], period: Period) -> str:
    """Return the window: the smallest on offer that is not below a share of the period, as Grafana's `auto` does."""
    least = max((period.end - period.start) / variable["auto_count"], seconds(variable["auto_min"]))
    offered: Sequence[str] = variable["query"].split(",")
    return next((width for width in offered if seconds(width) >= least), offered[-1])


def seconds(text: str) -> float:
    """Return the seconds of a duration such as ``5m``."""
    return float(text[:-1]) * _SECONDS[text[-1]]
