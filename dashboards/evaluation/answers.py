# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the queries of a panel: curves, or the rows of a table after its transformations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dashboards.evaluation.client import Prometheus, Series
from dashboards.evaluation.interpolation import Values

_LEGEND: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """A series with the name that the panel gives it."""

    name: str
    series: Series


def curves(panel: Mapping[str, Any], values: Values, prometheus: Prometheus, scoped: Mapping[str, str]) -> list[Curve]:
    """Return the results of the queries of a panel, in their order. Raises `QueryError`."""
    panel_curves = []
    for target in panel["targets"]:
        legend = target.get("legendFormat", "")
        answer = _ask(target, values, prometheus, scoped)
        panel_curves.extend(Curve(_name(legend, series.labels), series) for series in answer)
    return panel_curves


@dataclass(frozen=True)
class Mark:
    """An annotation, drawn on every time axis."""

    name: str
    color: str
    start: float
    """Unix time, in seconds."""
    end: float


def marks(board: Mapping[str, Any], values: Values, prometheus: Prometheus) -> list[Mark]:
    """Return the annotations of a board that are enabled. Raises `QueryError`."""
    shown_marks = []
    period = values.period
    for annotation in board["annotations"]["list"]:
        if not annotation["enable"] or "expr" not in annotation:
            continue
        for series in prometheus.ask_range(values.fill(annotation["expr"]), period.start, period.end, period.step):
            start = end = series.times[0]
            for time in series.times[1:]:
                if time - end > period.step * 1.5:  # neighbours are one mark, as in Grafana
                    shown_marks.append(Mark(annotation["name"], annotation["iconColor"], start, end))
                    start = time
                end = time
            shown_marks.append(Mark(annotation["name"], annotation["iconColor"], start, end))
    return shown_marks


def _ask(target: Mapping[str, Any], values: Values, prometheus: Prometheus, scoped: Mapping[str, str]) -> list[Series]:
    expression = values.fill(target["expr"], **scoped)
    period = values.period
    if target.get("instant"):
        return prometheus.ask(expression, period.end)
    return prometheus.ask_range(expression, period.start, period.end, period.step)


def _name(legend: str, labels: Mapping[str, str]) -> str:
    if not legend or legend == "__auto":
        return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "value"
    return " ".join(_LEGEND.sub(lambda match: labels.get(match[1], ""), legend).split())


def table(panel: Mapping[str, Any], values: Values, prometheus: Prometheus) -> list[Row]:
    """Return the rows of a table after its transformations. Raises `QueryError`."""
    many = len(panel["targets"]) > 1
    rows: list[Row] = []
    for target in panel["targets"]:
        field = f"Value #{target['refId']}" if many else "Value"
        answer = _ask(target, values, prometheus, {})
        rows.extend({"Time": series.times[-1], **series.labels, field: series.values[-1]} for series in answer)
    for step in panel.get("transformations", ()):
        rows = _TRANSFORMATIONS[step["id"]](rows, step["options"])
    by = [order["displayName"] for order in panel["options"].get("sortBy", ())]
    for column in by:
        rows.sort(key=lambda row: (column in row, row.get(column, 0)), reverse=True)
    return rows


def _merge(rows: list[Row], _: Mapping[str, Any]) -> list[Row]:
    """Join rows whose common fields are equal, as Grafana's `merge` does."""
    merged: list[Row] = []
    for row in rows:
        for merged_row in merged:
            if (
                all(merged_row[key] == row[key] for key in merged_row.keys() & row.keys())
                and not row.keys() <= merged_row.keys()
            ):
                merged_row.update(row)
                break
        else:
            merged.append(dict(row))
    return merged


def _keep(rows: list[Row], options: Mapping[str, Any]) -> list[Row]:
    names = options["include"]["names"]
    return [{key: value for key, value in row.items() if key in names} for row in rows]


def _organize(rows: list[Row], options: Mapping[str, Any]) -> list[Row]:
    order: Mapping[str, int] = options["indexByName"]
    names: Mapping[str, str] = options["renameByName"]
    return [
        {names.get(key, key): row[key] for key in sorted(row, key=lambda key: order.get(key, len(order)))}
        for row in rows
    ]


_TRANSFORMATIONS: Final = {"merge": _merge, "filterFieldsByName": _keep, "organize": _organize}
