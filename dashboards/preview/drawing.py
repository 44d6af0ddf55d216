# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws panels with matplotlib as Grafana would: one function per panel type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FuncFormatter

from dashboards.preview.answers import Curve, Mark, Row, columns
from dashboards.preview.units import show

COLORS: Final = (
    "#73BF69", "#F2CC0C", "#5794F2", "#FF9830", "#F2495C", "#B877D9", "#8AB8FF", "#FFA6B0", "#96D98D", "#FFEE52", "#C4162A", "#37872D",
)  # fmt: skip
INK, FAINT, GROUND, PAPER = "#CCCCDC", "#3A3F48", "#181B1F", "#111217"
NAMED: Final = {
    "green": "#73BF69", "red": "#F2495C", "orange": "#FF9830", "blue": "#5794F2", "text": INK, "transparent": GROUND,
    "dark-purple": "#8F3BB8", "light-blue": "#8AB8FF",
}  # fmt: skip
MAX_NAMES: Final = 8
"""Maximum number of names in a legend; the number of the others is shown."""


def _dates(times: Sequence[float]) -> np.ndarray:
    return date2num([datetime.fromtimestamp(time, tz=timezone.utc) for time in times])


def _frame(axes: Axes, period: tuple[float, float], unit: str) -> None:
    """Configure the axes of a panel over time."""
    axes.set_xlim(*_dates(period))
    locator = AutoDateLocator(minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value, unit)))
    axes.tick_params(colors=INK, labelsize=6, length=2)
    axes.grid(color=FAINT, linewidth=0.4)


def _name(axes: Axes, names: Sequence[tuple[str, str]]) -> None:
    """Write a legend below the axes: names and colours."""
    shown = list(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        shown.append((f"and {len(names) - MAX_NAMES} more", INK))
    wide = axes.get_window_extent().width
    x, y = 0.0, -0.2
    for name, color in shown:
        size = (len(name) * 4.6 + 18) / wide
        if x and x + size > 1:
            x, y = 0.0, y - 0.1
        axes.text(x, y, "━ ", color=color, fontsize=6, transform=axes.transAxes)
        axes.text(x + 12 / wide, y, name, color=INK, fontsize=5.5, transform=axes.transAxes)
        x += size


def draw_lines(axes: Axes, panel: Mapping[str, Any], curves: Sequence[Curve], period: tuple[float, float]) -> None:
    """Draw curves, stacked if the panel is configured so."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    _frame(axes, period, unit)
    names = []
    if defaults["custom"].get("stacking", {}).get("mode") == "normal":
        times = sorted({time for curve in curves for time in curve.series.times})
        layers = [_on_grid(curve, times) for curve in curves]
        areas = axes.stackplot(_dates(times), *layers, colors=COLORS, alpha=0.75, linewidth=0) if times else []
        names = [(curve.name, COLORS[index % len(COLORS)]) for index, curve in enumerate(curves[: len(areas)])]
    else:
        for index, curve in enumerate(curves):
            color = COLORS[index % len(COLORS)]
            alone = len(curve.series.times) == 1
            axes.plot(
                _dates(curve.series.times), curve.series.values, color=color, linewidth=1, marker="." if alone else None
            )
            last = next((value for value in reversed(curve.series.values) if not math.isnan(value)), math.nan)
            names.append((f"{curve.name} {show(last, unit)}", color))
    low, high = axes.get_ylim()
    bottom = defaults.get("min", low)
    axes.set_ylim(bottom, defaults.get("max", max(high + (high - low) * 0.05, bottom + 1e-6)))
    for step in defaults.get("thresholds", {}).get("steps", []) if "thresholdsStyle" in defaults["custom"] else []:
        if step["value"] is not None:
            axes.axhline(step["value"], color=NAMED.get(step["color"], INK), linewidth=0.8, linestyle="--")
    _name(axes, names)


def _on_grid(curve: Curve, times: Sequence[float]) -> list[float]:
    value_at = dict(zip(curve.series.times, curve.series.values, strict=True))
    return [0.0 if math.isnan(value_at.get(time, 0.0)) else value_at.get(time, 0.0) for time in times]


def draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw annotations as vertical lines."""
    for mark in marks:
        color = NAMED.get(mark.color, INK)
        axes.axvline(float(_dates([mark.start])[0]), color=color, linewidth=0.7, linestyle=":")


def draw_numbers(axes: Axes, panel: Mapping[str, Any], curves: Sequence[Curve], _: tuple[float, float]) -> None:
    """Draw the last value of each curve as a number."""
    axes.axis("off")
    defaults = panel["fieldConfig"]["defaults"]
    for index, curve in enumerate(curves[:3]):
        value = next((value for value in reversed(curve.series.values) if not math.isnan(value)), math.nan)
        text, color = _words(defaults, value)
        y = 0.62 - 0.38 * index if len(curves) > 1 else 0.5
        size = 11 if len(curves) > 1 else 17
        axes.text(
            0.5,
            y,
            text or show(value, defaults["unit"]),
            color=color,
            fontsize=size,
            ha="center",
            va="center",
            weight="bold",
        )
        if len(curves) > 1:
            axes.text(0.5, y - 0.2, curve.name, color=INK, fontsize=5, ha="center", va="center")


def _words(defaults: Mapping[str, Any], value: float) -> tuple[str, str]:
    """Return the mapped text of a value, if any, and its colour."""
    for mapping in defaults.get("mappings", []):
        option = mapping["options"].get(f"{value:g}")
        if option:
            return option["text"], NAMED.get(option["color"], INK)
    color = "text"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return "", NAMED.get(color, INK)


def draw_heat(axes: Axes, panel: Mapping[str, Any], curves: Sequence[Curve], period: tuple[float, float]) -> None:
    """Draw a histogram over time: each series is the cumulative count of one bound."""
    _frame(axes, period, "short")
    curves = sorted(curves, key=lambda curve: float(curve.series.labels.get("le", "inf")))
    times = sorted({time for curve in curves for time in curve.series.times})
    if not times:
        return
    counts = np.diff(np.array([_on_grid(curve, times) for curve in curves]), axis=0, prepend=0).clip(min=0)
    filled = np.nonzero(counts.sum(axis=1))[0]
    first, last = (int(filled.min()), int(filled.max()) + 1) if filled.size else (0, len(curves))
    shown = np.where(counts[first:last] > 0, counts[first:last], np.nan)
    extent = (*_dates((times[0], times[-1] + 1e-3)), 0, last - first)
    axes.imshow(
        np.sqrt(shown), aspect="auto", origin="lower", cmap="Oranges", extent=extent, interpolation="nearest", vmin=0
    )
    axes.set_xlim(*_dates(period))
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    names = [show(float(curve.series.labels.get("le", "inf")), unit) for curve in curves[first:last]]
    axes.set_yticks(np.arange(1, last - first + 1), names)
    axes.grid(visible=False)


def draw_lanes(axes: Axes, panel: Mapping[str, Any], curves: Sequence[Curve], period: tuple[float, float]) -> None:
    """Draw one lane for each series, in the colours of its values."""
    _frame(axes, period, "none")
    defaults = panel["fieldConfig"]["defaults"]
    for index, curve in enumerate(curves):
        dates = _dates(curve.series.times)
        width = (dates[1] - dates[0]) if len(dates) > 1 else 1e-4
        for date, value in zip(dates, curve.series.values, strict=True):
            _, color = _words(defaults, value)
            if color != GROUND:
                axes.barh(index, width, left=date, height=0.8, color=color, linewidth=0)
    axes.set_yticks(range(len(curves)), [curve.name for curve in curves])
    axes.set_ylim(max(len(curves), 1) - 0.5, -0.5)
    axes.grid(visible=False)
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"].values()
    _name(axes, [(word["text"], NAMED.get(word["color"], INK)) for word in words if word["color"] != "transparent"])


def draw_table(axes: Axes, panel: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Draw as many rows of a table as fit."""
    axes.axis("off")
    named = columns(rows, panel)
    units = _overrides(panel, "unit")
    words = _overrides(panel, "mappings")
    cells = [[_cell(row.get(name, ""), units.get(name, "none"), words.get(name)) for name in named] for row in rows[:7]]
    if not cells:
        return
    cell_table = axes.table(cellText=cells, colLabels=named, loc="upper left", cellLoc="left", edges="horizontal")
    cell_table.auto_set_font_size(False)
    cell_table.set_fontsize(6)
    cell_table.auto_set_column_width(list(range(len(named))))
    for (line, _), cell in cell_table.get_celld().items():
        cell.set(edgecolor=FAINT, linewidth=0.5)
        cell.get_text().set(color="#8AB8FF" if line == 0 else INK)


def _overrides(panel: Mapping[str, Any], what: str) -> dict[str, Any]:
    return {
        override["matcher"]["options"]: setting["value"]
        for override in panel["fieldConfig"].get("overrides", [])
        for setting in override["properties"]
        if setting["id"] == what
    }


def _cell(value: Any, unit: str, mappings: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    text, _ = _words({"mappings": mappings or []}, value)
    return text or show(value, unit)


DRAW: Final = {
    "timeseries": draw_lines,
    "stat": draw_numbers,
    "heatmap": draw_heat,
    "state-timeline": draw_lanes,
}
