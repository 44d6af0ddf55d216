# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of panels, with the defaults that all boards share.

A panel has a title, a text that says what it shows and what it does not prove, a unit and queries. Width is in the 24
columns of Grafana's grid. What adds up (`stacked`, `lanes`) is repeated for each run, so that two runs stand side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, Union

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from dashboards.parts.queries import SOURCE
from dashboards.parts.traces import SOURCE as TRACES

Panel = Union[timeseries.Panel, stat.Panel, heatmap.Panel, statetimeline.Panel, table.Panel]
Target = Builder[Dataquery]
Steps = Sequence[tuple[Union[float, None], str]]
_P = TypeVar("_P", timeseries.Panel, stat.Panel, heatmap.Panel, statetimeline.Panel, table.Panel)
_LETTERS: Final = "ABCDEFGHIJKLM"
_HEIGHT: Final = 8
_SMALL: Final = 4


def _fill(panel: _P, title: str, text: str, targets: Sequence[Target], source: shapes.DataSourceRef = SOURCE) -> _P:
    """Say what every panel has."""
    panel.title(title).description(text).datasource(source)
    for letter, target in zip(_LETTERS, targets, strict=False):
        panel.with_target(target.ref_id(letter))  # type: ignore[attr-defined]
    return panel


def thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    """Return bounds and colours; the first bound is None, which is below everything."""
    made = [models.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def lines(
    title: str,
    text: str,
    unit: str,
    *targets: Target,
    width: int = 8,
    steps: Steps = (),
    low: float | None = None,
    high: float | None = None,
    links: Sequence[dashboard.DashboardLink] = (),
) -> timeseries.Panel:
    """Return curves over time.

    Args:
        title: Title.
        text: What it shows, and what it does not prove.
        unit: Grafana's name of the unit.
        *targets: Queries.
        width: Columns, of 24.
        steps: Bounds that are drawn as lines.
        low: Where the axis begins.
        high: Where it ends.
        links: Links of each curve.
    """
    made = _fill(timeseries.Panel(), title, text, targets).unit(unit).span(width).height(_HEIGHT)
    made.line_width(1.5).fill_opacity(0).show_points(shapes.VisibilityMode.AUTO).span_nulls(True)
    made.legend(_legend()).tooltip(_tooltip())
    if steps:
        made.thresholds(thresholds(steps))
        made.thresholds_style(common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED))
    if low is not None:
        made.min(low)
    if high is not None:
        made.max(high)
    return made.data_links(list(links)) if links else made


def _legend() -> common.VizLegendOptions:
    made = common.VizLegendOptions().show_legend(True).display_mode(shapes.LegendDisplayMode.LIST)
    return made.placement(shapes.LegendPlacement.BOTTOM).calcs(["lastNotNull"])


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING)


def stacked(
    title: str, text: str, unit: str, *targets: Target, high: float | None = None, width: int | None = None
) -> timeseries.Panel:
    """Return areas that add up: over the whole width and once for each chosen run, unless there is a width."""
    made = lines(title, text, unit, *targets, width=width or 24, low=0, high=high)
    made.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL).group("A"))
    made.fill_opacity(60).line_width(0).show_points(shapes.VisibilityMode.NEVER)
    return made if width else made.repeat("run").repeat_direction("h").max_per_row(2)


def number(
    title: str,
    text: str,
    unit: str,
    *targets: Target,
    steps: Steps = ((None, "text"),),
    names: Mapping[str, tuple[str, str]] | None = None,
    decimals: int | None = None,
) -> stat.Panel:
    """Return the last value of each run as a number.

    Args:
        title: Title.
        text: What it shows, and what it does not prove.
        unit: Grafana's name of the unit.
        *targets: Queries.
        steps: Bounds that colour the number.
        names: Words and colours for values.
        decimals: Digits behind the point.
    """
    made = _fill(stat.Panel(), title, text, targets).unit(unit).span(4).height(_SMALL)
    made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    made.color_mode(shapes.BigValueColorMode.VALUE).graph_mode(shapes.BigValueGraphMode.NONE)
    made.text_mode(shapes.BigValueTextMode.AUTO).thresholds(thresholds(steps)).no_value("no data")
    if names:
        made.mappings([mapping(names)])
    return made if decimals is None else made.decimals(decimals)


def mapping(names: Mapping[str, tuple[str, str]]) -> models.ValueMap:
    """Return words and colours for values."""
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(names.items())
        }
    )


def heat(title: str, text: str, unit: str, target: Target) -> heatmap.Panel:
    """Return a histogram over time; each diamond is one measurement, whose trace it opens."""
    made = _fill(heatmap.Panel(), title, text, [target]).span(12).height(_HEIGHT).unit(unit)
    colors = heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    made.calculate(False).color(colors.exponent(0.5)).y_axis(heatmap.YAxisConfig().unit(unit))
    return (
        made.cell_gap(1)
        .exemplars_color("rgba(255,0,255,0.7)")
        .hide_legend()
        .filter_values(heatmap.FilterValueRange().le(1e-9))
    )


def lanes(
    title: str, text: str, *targets: Target, names: Mapping[str, tuple[str, str]], height: int = _HEIGHT
) -> statetimeline.Panel:
    """Return one lane for each series, over the whole width and once for each chosen run.

    Args:
        title: Title.
        text: What it shows, and what it does not prove.
        *targets: Queries.
        names: Words and colours for values.
        height: Height, in Grafana's units of 30 pixels.
    """
    made = _fill(statetimeline.Panel(), title, text, targets).unit("none").span(24).height(height)
    made.mappings([mapping(names)]).show_value(shapes.VisibilityMode.NEVER).row_height(0.8).fill_opacity(80).line_width(
        0
    )
    made.merge_values(True).legend(_legend()).thresholds(thresholds([(None, "transparent")]))
    return made.repeat("run").repeat_direction("h").max_per_row(2)


def rows(
    title: str,
    text: str,
    *targets: Target,
    columns: Mapping[str, str],
    units: Mapping[str, str] | None = None,
    names: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    cell_links: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    sort: str,
) -> table.Panel:
    """Return a table that joins its queries by their common labels.

    Args:
        title: Title.
        text: What it shows, and what it does not prove.
        *targets: Queries.
        columns: What each field is called, in their order; other fields are hidden.
        units: Units of columns.
        names: Words and colours for values of columns.
        cell_links: Links of columns.
        sort: The column by which rows are sorted, the greatest first.
    """
    made = _fill(table.Panel(), title, text, targets).unit("none").span(24).height(_HEIGHT)
    made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    kept = models.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}})
    order = {field: index for index, field in enumerate(columns)}
    named = models.DataTransformerConfig(
        id_val="organize",
        options={"excludeByName": {}, "indexByName": order, "renameByName": dict(columns)},
    )
    made.with_transformation(kept).with_transformation(named)
    for column, unit in (units or {}).items():
        made.override_by_name(column, [models.DynamicConfigValue(id_val="unit", value=unit)])
    for column, words in (names or {}).items():
        said = [mapping(words).to_json()]
        made.override_by_name(column, [models.DynamicConfigValue(id_val="mappings", value=said)])
    for column, said_links in (cell_links or {}).items():
        made.override_by_name(column, [models.DynamicConfigValue(id_val="links", value=list(said_links))])
    return made.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])


def spans(title: str, text: str, target: Target, *, sort: str, width: int = 24) -> table.Panel:
    """Return a table of spans as Tempo gives it: with its own columns, of which one leads to the trace.

    Args:
        title: Title.
        text: What it shows, and what it does not prove.
        target: One of the queries of `traces`.
        sort: The column by which rows are sorted, the greatest first.
        width: Columns of the grid, of 24.
    """
    made = _fill(table.Panel(), title, text, [target], TRACES).unit("none").span(width).height(_HEIGHT)
    return made.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
