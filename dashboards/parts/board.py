# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A board: rows of panels, laid out from left to right, with the variables, links and annotations that all boards share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import Dashboard, DashboardCursorSync, GridPos
from grafana_foundation_sdk.models.dashboard import Panel as PanelModel

from dashboards.parts import annotations, links, variables
from dashboards.parts.panels import Panel

COLUMNS: Final = 24
SCHEMA: Final = 39
"""Version of Grafana's schema: that of Grafana 10.3. Older ones read what they know of it; newer ones bring it up to date."""
Make = Callable[[], Panel]


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Make, ...]
    folded: bool = False
    """Whether it is collapsed at first: its queries run only when it is opened."""


@dataclass(frozen=True)
class Board:
    """What one board is made of."""

    name: str
    """A key of `links.UIDS`, and the name of the file."""
    title: str
    text: str
    rows: tuple[Row, ...]
    variables: tuple[Callable[[], variables.Variable], ...]

    def build(self) -> Dashboard:
        """Return the board as Grafana's classic model."""
        builder = dashboard.Dashboard(self.title)
        self._describe(builder)
        self._place(builder)
        board = builder.build()
        board.schema_version = SCHEMA
        return board

    def _describe(self, builder: dashboard.Dashboard) -> None:
        """Set what is above the panels."""
        builder.uid(links.UIDS[self.name]).description(self.text).tags([links.TAG, "generated"]).readonly()
        builder.refresh("30s").time("now-6h", "now").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
        for variable in self.variables:
            builder.with_variable(variable())
        for annotation in annotations.make_all():
            builder.annotation(annotation)
        builder.link(links.boards())

    def _place(self, builder: dashboard.Dashboard) -> None:
        """Add the rows, each below the last."""
        y, number = 0, 0
        for row in self.rows:
            number += 1
            heading = (
                dashboard.Row(row.title).id(number).grid_pos(GridPos(x=0, y=y, w=COLUMNS, h=1)).collapsed(row.folded)
            )
            placed, bottom = _lay_out(row.panels, y + 1, number)
            number += len(placed)
            if row.folded:
                for panel in placed:
                    heading.with_panel(_Built(panel))  # type: ignore[arg-type]
            builder.with_row(heading)
            if not row.folded:
                for panel in placed:
                    builder.with_panel(_Built(panel))  # type: ignore[arg-type]
            y = y + 1 if row.folded else bottom


class _Built:
    """Adapts a built panel to an interface that expects a builder."""

    def __init__(self, panel: PanelModel) -> None:
        self._panel = panel

    def build(self) -> PanelModel:
        return self._panel


def _lay_out(makes: tuple[Make, ...], top: int, number: int) -> tuple[list[PanelModel], int]:
    """Return panels with places and numbers, and where the next row begins.

    Args:
        makes: Functions that make the panels.
        top: Where the first line begins.
        number: The number that was given last.
    """
    lines: list[list[PanelModel]] = [[]]
    for panel in (make().build() for make in makes):
        if _sum_widths([*lines[-1], panel]) > COLUMNS:
            lines.append([])
        lines[-1].append(panel)
    placed: list[PanelModel] = []
    y = top
    for line in lines:
        x, rest = 0, COLUMNS - _sum_widths(line)
        for left, panel in zip(range(len(line), 0, -1), line, strict=True):
            number += 1
            panel.id_val = number
            more, size = rest // left, _size(panel)  # the line has no hole at its end
            panel.grid_pos = GridPos(x=x, y=y, w=size.w + more, h=size.h)
            x, rest = x + size.w + more, rest - more
        placed += line
        y += max((_size(panel).h for panel in line), default=0)
    return placed, y


def _size(panel: PanelModel) -> GridPos:
    return panel.grid_pos or GridPos()


def _sum_widths(line: Iterable[PanelModel]) -> int:
    return sum(_size(panel).w for panel in line)
