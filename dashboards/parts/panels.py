# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of panels, with the defaults that all boards share.

A panel has a title, a description of what it shows and of its limits, a unit and queries. Width is in the 24
columns of Grafana's grid. Panels of what adds up (`stacked`, `state_timeline`) are repeated for each run, so that two runs are shown side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, Union

from grafana_foundation_sdk.builders import common, dashboard, statetimeline
from grafana_foundation_sdk.builders import heatmap as heatmap_builders
from grafana_foundation_sdk.builders import stat as stat_builders
from grafana_foundation_sdk.builders import table as table_builders
from grafana_foundation_sdk.builders import timeseries as timeseries_builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from dashboards.parts.queries import SOURCE
from dashboards.parts.traces import SOURCE as TRACES

Panel = Union[
    timeseries_builders.Panel, stat_builders.Panel, heatmap_builders.Panel, statetimeline.Panel, table_builders.Panel
]
Target = Builder[Dataquery]
Steps = Sequence[tuple[Union[float, None], str]]
_P = TypeVar(
    "_P",
    timeseries_builders.Panel,
    stat_builders.Panel,
    heatmap_builders.Panel,
    statetimeline.Panel,
    table_builders.Panel,
)
_LETTERS: Final = "ABCDEFGHIJKLM"
_HEIGHT: Final = 8
_SMALL: Final = 4


def _fill(
    panel: _P, title: str, text: str, targets: Sequence[Target], source: common_models.DataSourceRef = SOURCE
) -> _P:
    """Set what every panel has."""
    panel.title(title).description(text).datasource(source)
    for letter, target in zip(_LETTERS, targets, strict=False):
        panel.with_target(target.ref_id(letter))  # type: ignore[attr-defined]
    return panel


def make_thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    """Return thresholds with their colours; the first threshold is None, which is below every value."""
    thresholds = [models.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(thresholds)


def timeseries(
    title: str,
    text: str,
    unit: str,
    *targets: Target,
    width: int = 8,
    steps: Steps = (),
    low: float | None = None,
    high: float | None = None,
    links: Sequence[dashboard.DashboardLink] = (),
) -> timeseries_builders.Panel:
    """Return a time series panel.

    Args:
        title: Title.
        text: Description: what it shows, and its limits.
        unit: Grafana's name of the unit.
        *targets: Queries.
        width: Columns, of 24.
        steps: Thresholds, drawn as lines.
        low: Minimum of the axis.
        high: Maximum of the axis.
        links: Links of each series.
    """
    panel = _fill(timeseries_builders.Panel(), title, text, targets).unit(unit).span(width).height(_HEIGHT)
    panel.line_width(1.5).fill_opacity(0).show_points(common_models.VisibilityMode.AUTO).span_nulls(True)
    panel.legend(_legend()).tooltip(_tooltip())
    if steps:
        panel.thresholds(make_thresholds(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED))
    if low is not None:
        panel.min(low)
    if high is not None:
        panel.max(high)
    return panel.data_links(list(links)) if links else panel


def _legend() -> common.VizLegendOptions:
    options = common.VizLegendOptions().show_legend(True).display_mode(common_models.LegendDisplayMode.LIST)
    return options.placement(common_models.LegendPlacement.BOTTOM).calcs(["lastNotNull"])


def _tooltip() -> common.VizTooltipOptions:
    return (
        common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    )


def stacked(
    title: str, text: str, unit: str, *targets: Target, high: float | None = None, width: int | None = None
) -> timeseries_builders.Panel:
    """Return a stacked time series panel: of full width and repeated for each chosen run, unless ``width`` is given."""
    panel = timeseries(title, text, unit, *targets, width=width or 24, low=0, high=high)
    panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    panel.fill_opacity(60).line_width(0).show_points(common_models.VisibilityMode.NEVER)
    return panel if width else panel.repeat("run").repeat_direction("h").max_per_row(2)


def stat(
    title: str,
    text: str,
    unit: str,
    *targets: Target,
    steps: Steps = ((None, "text"),),
    names: Mapping[str, tuple[str, str]] | None = None,
    decimals: int | None = None,
) -> stat_builders.Panel:
    """Return a stat panel with the last value of each run.

    Args:
        title: Title.
        text: Description: what it shows, and its limits.
        unit: Grafana's name of the unit.
        *targets: Queries.
        steps: Thresholds that colour the number.
        names: Texts and colours of values.
        decimals: Decimal places.
    """
    panel = _fill(stat_builders.Panel(), title, text, targets).unit(unit).span(4).height(_SMALL)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_mode(common_models.BigValueColorMode.VALUE).graph_mode(common_models.BigValueGraphMode.NONE)
    panel.text_mode(common_models.BigValueTextMode.AUTO).thresholds(make_thresholds(steps)).no_value("no data")
    if names:
        panel.mappings([mapping(names)])
    return panel if decimals is None else panel.decimals(decimals)


def mapping(names: Mapping[str, tuple[str, str]]) -> models.ValueMap:
    """Return the mapping of values to texts and colours."""
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(names.items())
        }
    )


def heatmap(title: str, text: str, unit: str, target: Target) -> heatmap_builders.Panel:
    """Return a heatmap of a histogram over time; each diamond is an exemplar, which links to its trace."""
    panel = _fill(heatmap_builders.Panel(), title, text, [target]).span(12).height(_HEIGHT).unit(unit)
    colors = (
        heatmap_builders.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    )
    panel.calculate(False).color(colors.exponent(0.5)).y_axis(heatmap_builders.YAxisConfig().unit(unit))
    return (
        panel.cell_gap(1)
        .exemplars_color("rgba(255,0,255,0.7)")
        .hide_legend()
        .filter_values(heatmap_builders.FilterValueRange().le(1e-9))
    )


def state_timeline(
    title: str, text: str, *targets: Target, names: Mapping[str, tuple[str, str]], height: int = _HEIGHT
) -> statetimeline.Panel:
    """Return a state timeline with one lane for each series, of full width and repeated for each chosen run.

    Args:
        title: Title.
        text: Description: what it shows, and its limits.
        *targets: Queries.
        names: Texts and colours of values.
        height: Height, in Grafana's units of 30 pixels.
    """
    panel = _fill(statetimeline.Panel(), title, text, targets).unit("none").span(24).height(height)
    panel.mappings([mapping(names)]).show_value(common_models.VisibilityMode.NEVER).row_height(0.8).fill_opacity(
        80
    ).line_width(0)
    panel.merge_values(True).legend(_legend()).thresholds(make_thresholds([(None, "transparent")]))
    return panel.repeat("run").repeat_direction("h").max_per_row(2)


def table(
    title: str,
    text: str,
    *targets: Target,
    columns: Mapping[str, str],
    units: Mapping[str, str] | None = None,
    names: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    cell_links: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    sort: str,
) -> table_builders.Panel:
    """Return a table that joins its queries by their common labels.

    Args:
        title: Title.
        text: Description: what it shows, and its limits.
        *targets: Queries.
        columns: Header of each field, in display order; other fields are hidden.
        units: Units of columns.
        names: Texts and colours of the values of columns.
        cell_links: Links of columns.
        sort: Column to sort rows by, in descending order.
    """
    panel = _fill(table_builders.Panel(), title, text, targets).unit("none").span(24).height(_HEIGHT)
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    filtered = models.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}})
    order = {field: index for index, field in enumerate(columns)}
    renamed = models.DataTransformerConfig(
        id_val="organize", options={"excludeByName": {}, "indexByName": order, "renameByName": dict(columns)}
    )
    panel.with_transformation(filtered).with_transformation(renamed)
    for column, unit in (units or {}).items():
        panel.override_by_name(column, [models.DynamicConfigValue(id_val="unit", value=unit)])
    for column, texts in (names or {}).items():
        mappings = [mapping(texts).to_json()]
        panel.override_by_name(column, [models.DynamicConfigValue(id_val="mappings", value=mappings)])
    for column, links in (cell_links or {}).items():
        panel.override_by_name(column, [models.DynamicConfigValue(id_val="links", value=list(links))])
    return panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])


def spans(title: str, text: str, target: Target, *, sort: str, width: int = 24) -> table_builders.Panel:
    """Return a table of spans with the columns of Tempo, one of which links to the trace.

    Args:
        title: Title.
        text: Description: what it shows, and its limits.
        target: One of the queries of `traces`.
        sort: Column to sort rows by, in descending order.
        width: Columns of the grid, of 24.
    """
    panel = _fill(table_builders.Panel(), title, text, [target], TRACES).unit("none").span(width).height(_HEIGHT)
    return panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
