# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders a board as one image: Grafana's grid, headings, titles and panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dashboards.loader import walk
from dashboards.preview import answers, drawing, interpolation
from dashboards.preview.client import Prometheus, QueryError

WIDTH: Final = 13.0
"""Width of an image in inches."""
UNIT: Final = 0.3
"""Height of one row of Grafana's grid in inches."""
COLUMNS: Final = 24
HEAD: Final = 2.2
"""Grid rows above the first panel: title and variables."""


@dataclass(frozen=True)
class Drawn:
    """The result of rendering a board."""

    path: Path
    empty: tuple[str, ...]
    """Titles of panels without data."""
    refused: tuple[str, ...]
    """Titles of panels whose queries Prometheus rejected, with its messages."""


def draw(board: Mapping[str, Any], values: interpolation.Values, prometheus: Prometheus, path: Path) -> Drawn:
    """Render a board to a PNG file.

    Args:
        board: Grafana's classic JSON.
        values: What its variables are set to.
        prometheus: Where its data is.
        path: The PNG.
    """
    height = HEAD + max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = Figure(figsize=(WIDTH, height * UNIT), dpi=110, facecolor=drawing.PAPER)
    _head(figure, board, values, height)
    empty, refused = [], []
    marks = answers.marks(board, values, prometheus)
    for panel in walk(board["panels"]):
        place = _place(panel["gridPos"], height)
        if panel["type"] == "row":
            mark = "+" if panel["collapsed"] else "-"
            figure.text(
                place[0],
                place[1] + 0.3 / height,
                f"{mark} {panel['title']}",
                color=drawing.INK,
                fontsize=9,
                weight="bold",
            )
        elif _is_of_traces(panel):
            continue
        else:
            try:
                if not _draw_panel(figure, panel, place, height, values, prometheus, marks):
                    empty.append(panel["title"])
            except QueryError as error:
                refused.append(f"{panel['title']}: {error}")
    figure.savefig(path, facecolor=figure.get_facecolor())
    return Drawn(path, tuple(empty), tuple(refused))


def _is_of_traces(panel: Mapping[str, Any]) -> bool:
    return bool(panel.get("datasource", {}).get("type") == "tempo")


def _place(grid: Mapping[str, int], height: float) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of a panel, as fractions of the image."""
    bottom = 1 - (HEAD + grid["y"] + grid["h"]) / height
    return grid["x"] / COLUMNS + 0.004, bottom, grid["w"] / COLUMNS - 0.008, grid["h"] / height


def _head(figure: Figure, board: Mapping[str, Any], values: interpolation.Values, height: float) -> None:
    figure.text(0.006, 1 - 0.8 / height, board["title"], color="white", fontsize=13, weight="bold")
    chosen = [
        f"{variable.get('label', variable['name'])}: {', '.join(values.chosen[variable['name']]) or '-'}".replace(
            "$__all", "All"
        )
        for variable in board["templating"]["list"]
        if variable["type"] not in ("datasource", "adhoc")
    ]
    figure.text(0.006, 1 - 1.7 / height, "    ".join(chosen), color=drawing.INK, fontsize=7.5)


def _draw_panel(
    figure: Figure,
    panel: Mapping[str, Any],
    place: tuple[float, float, float, float],
    height: float,
    values: interpolation.Values,
    prometheus: Prometheus,
    marks: Sequence[answers.Mark],
) -> bool:
    """Draw one panel; return whether it has data."""
    left, bottom, width, tall = place
    gap = 0.15 / height
    figure.add_artist(
        Rectangle(
            (left, bottom + gap),
            width,
            tall - 2 * gap,
            facecolor=drawing.GROUND,
            edgecolor=drawing.FAINT,
            linewidth=0.6,
            zorder=-1,
        )
    )
    figure.text(left + 0.005, bottom + tall - 0.95 / height, panel["title"], color="white", fontsize=7.5, weight="bold")
    scoped = {name: values.chosen[name][0] for name in [panel.get("repeat", "")] if values.chosen.get(name)}
    small = panel["gridPos"]["h"] <= 4  # noqa: PLR2004 - a number has no axes
    lane = panel["type"] == "state-timeline"
    inner = (
        left + (0.11 if lane else 0.004 if small or panel["type"] == "table" else 0.05),
        bottom + (0.4 if small else 2.3) / height,
        width - (0.12 if lane else 0.008 if small or panel["type"] == "table" else 0.06),
        tall - (1.5 if small else 3.6) / height,
    )
    axes = figure.add_axes(inner, facecolor=drawing.GROUND)
    for side in axes.spines.values():
        side.set_visible(False)
    period = (values.period.start, values.period.end)
    if panel["type"] == "table":
        data: Sequence[Any] = answers.table(panel, values, prometheus)
        drawing.draw_table(axes, panel, data)
    else:
        data = answers.curves(panel, values, prometheus, scoped)
        drawing.DRAW[panel["type"]](axes, panel, data, period)
        if not small:
            drawing.draw_marks(axes, marks)
    if not data:
        axes.text(
            0.5, 0.5, "No data", color=drawing.INK, fontsize=9, ha="center", va="center", transform=axes.transAxes
        )
    return bool(data)
