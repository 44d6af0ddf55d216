# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One function for each kind of panel: what Grafana would show, drawn by matplotlib."""

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
"""Names in a legend; how many more there are is said."""


def _dates(times: Sequence[float]) -> np.ndarray:
    return date2num([datetime.fromtimestamp(each, tz=timezone.utc) for each in times])


def _frame(axes: Axes, period: tuple[float, float], unit: str) -> None:
    """Set what every panel with a time axis has."""
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


def draw_lines(axes: Axes, panel: Mapping[str, Any], found: Sequence[Curve], period: tuple[float, float]) -> None:
    """Draw curves, stacked where the panel says so."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    _frame(axes, period, unit)
    names = []
    if defaults["custom"].get("stacking", {}).get("mode") == "normal":
        times = sorted({time for curve in found for time in curve.series.times})
        layers = [_on_grid(curve, times) for curve in found]
        drawn = axes.stackplot(_dates(times), *layers, colors=COLORS, alpha=0.75, linewidth=0) if times else []
        names = [(curve.name, COLORS[index % len(COLORS)]) for index, curve in enumerate(found[: len(drawn)])]
    else:
        for index, curve in enumerate(found):
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
    known = dict(zip(curve.series.times, curve.series.values, strict=True))
    return [0.0 if math.isnan(known.get(time, 0.0)) else known.get(time, 0.0) for time in times]


def draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw what happened as upright lines."""
    for mark in marks:
        color = NAMED.get(mark.color, INK)
        axes.axvline(float(_dates([mark.start])[0]), color=color, linewidth=0.7, linestyle=":")


def draw_numbers(axes: Axes, panel: Mapping[str, Any], found: Sequence[Curve], _: tuple[float, float]) -> None:
    """Draw the last value of each curve as a number."""
    axes.axis("off")
    defaults = panel["fieldConfig"]["defaults"]
    for index, curve in enumerate(found[:3]):
        value = next((each for each in reversed(curve.series.values) if not math.isnan(each)), math.nan)
        text, color = _words(defaults, value)
        y = 0.62 - 0.38 * index if len(found) > 1 else 0.5
        size = 11 if len(found) > 1 else 17
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
        if len(found) > 1:
            axes.text(0.5, y - 0.2, curve.name, color=INK, fontsize=5, ha="center", va="center")


def _words(defaults: Mapping[str, Any], value: float) -> tuple[str, str]:
    """Return what a value is called, if it has a name, and its colour."""
    for mapping in defaults.get("mappings", []):
        said = mapping["options"].get(f"{value:g}")
        if said:
            return said["text"], NAMED.get(said["color"], INK)
    color = "text"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return "", NAMED.get(color, INK)


def draw_heat(axes: Axes, panel: Mapping[str, Any], found: Sequence[Curve], period: tuple[float, float]) -> None:
    """Draw a histogram over time: each series is one bound, whose count is less that of the bound below."""
    _frame(axes, period, "short")
    found = sorted(found, key=lambda curve: float(curve.series.labels.get("le", "inf")))
    times = sorted({time for curve in found for time in curve.series.times})
    if not times:
        return
    counts = np.diff(np.array([_on_grid(curve, times) for curve in found]), axis=0, prepend=0).clip(min=0)
    filled = np.nonzero(counts.sum(axis=1))[0]
    first, last = (int(filled.min()), int(filled.max()) + 1) if filled.size else (0, len(found))
    shown = np.where(counts[first:last] > 0, counts[first:last], np.nan)
    extent = (*_dates((times[0], times[-1] + 1e-3)), 0, last - first)
    axes.imshow(
        np.sqrt(shown), aspect="auto", origin="lower", cmap="Oranges", extent=extent, interpolation="nearest", vmin=0
    )
    axes.set_xlim(*_dates(period))
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    names = [show(float(curve.series.labels.get("le", "inf")), unit) for curve in found[first:last]]
    axes.set_yticks(np.arange(1, last - first + 1), names)
    axes.grid(visible=False)


def draw_lanes(axes: Axes, panel: Mapping[str, Any], found: Sequence[Curve], period: tuple[float, float]) -> None:
    """Draw one lane for each series, in the colours of its values."""
    _frame(axes, period, "none")
    defaults = panel["fieldConfig"]["defaults"]
    for index, curve in enumerate(found):
        dates = _dates(curve.series.times)
        width = (dates[1] - dates[0]) if len(dates) > 1 else 1e-4
        for date, value in zip(dates, curve.series.values, strict=True):
            _, color = _words(defaults, value)
            if color != GROUND:
                axes.barh(index, width, left=date, height=0.8, color=color, linewidth=0)
    axes.set_yticks(range(len(found)), [curve.name for curve in found])
    axes.set_ylim(max(len(found), 1) - 0.5, -0.5)
    axes.grid(visible=False)
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"].values()
    _name(axes, [(each["text"], NAMED.get(each["color"], INK)) for each in words if each["color"] != "transparent"])


def draw_table(axes: Axes, panel: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Draw the rows of a table, as many as there is room for."""
    axes.axis("off")
    named = columns(rows, panel)
    units = _overrides(panel, "unit")
    words = _overrides(panel, "mappings")
    cells = [[_cell(row.get(name, ""), units.get(name, "none"), words.get(name)) for name in named] for row in rows[:7]]
    if not cells:
        return
    made = axes.table(cellText=cells, colLabels=named, loc="upper left", cellLoc="left", edges="horizontal")
    made.auto_set_font_size(False)
    made.set_fontsize(6)
    made.auto_set_column_width(list(range(len(named))))
    for (line, _), cell in made.get_celld().items():
        cell.set(edgecolor=FAINT, linewidth=0.5)
        cell.get_text().set(color="#8AB8FF" if line == 0 else INK)


def _overrides(panel: Mapping[str, Any], what: str) -> dict[str, Any]:
    return {
        each["matcher"]["options"]: setting["value"]
        for each in panel["fieldConfig"].get("overrides", [])
        for setting in each["properties"]
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
