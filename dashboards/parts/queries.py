# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""PromQL of the boards: placeholders for selectors and windows, one data source.

A query is PromQL with four placeholders, so that every panel selects the chosen runs:

* ``{run}`` or ``{run, ...}``: series of the chosen runs
* ``{process}`` or ``{process, ...}``: of the chosen runs, roles and instances
* ``[rate]``: a window for frequent events (Grafana's ``$__rate_interval``)
* ``[window]``: a window for events that happen once a step, which may take hours; it grows with the time range of the board
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.parts.names import label
from dashboards.parts.names import legend as legend_of

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
RUN: Final = f'{label.RUN_ID}=~"$run"'
PROCESS: Final = f'{RUN}, {label.ROLE}=~"$role", instance=~"$instance"'
_SELECTORS: Final = {"run": RUN, "process": PROCESS}
TRAINED: Final = f'{{run, {label.VALIDATE}!="true"}}'
"""A selector, as a placeholder: without what belongs to a validation."""
_WINDOWS: Final = {"[rate]": "[$__rate_interval]", "[window]": "[$window]", "[range]": "[$__range]"}


def expand(expression: str) -> str:
    """Return PromQL with the placeholders of this module replaced.

    Example:
        expand("rate(verl_training_steps_total{run}[window])")
        == 'rate(verl_training_steps_total{verl_run_id=~"$run"}[$window])'
    """
    promql = re.sub(r"\{(run|process)\b", lambda match: "{" + _SELECTORS[match[1]], expression)
    for placeholder, window in _WINDOWS.items():
        promql = promql.replace(placeholder, window)
    return " ".join(promql.split())


def query(expression: str, legend: str = legend_of.RUN_ID, *, exemplars: bool = False) -> prometheus.Dataquery:
    """Return a query over the time range of the board.

    Args:
        expression: PromQL, with the placeholders of this module.
        legend: Name of a series, with ``{{label}}`` for the value of a label.
        exemplars: Whether to query exemplars, too.
    """
    target = prometheus.Dataquery().expr(expand(expression)).legend_format(legend).range().datasource(SOURCE)
    return target.exemplar(True) if exemplars else target


def last(expression: str, legend: str = legend_of.RUN_ID) -> prometheus.Dataquery:
    """Return an instant query at the end of the time range: one value for each series."""
    return prometheus.Dataquery().expr(expand(expression)).legend_format(legend).instant().datasource(SOURCE)


def row(expression: str) -> prometheus.Dataquery:
    """Return a query at the end of the time range, as rows of a table with labels as columns."""
    return last(expression, "").format(PromQueryFormat.TABLE)


def buckets(expression: str) -> prometheus.Dataquery:
    """Return a query of a classic histogram's buckets, for a heatmap."""
    target = prometheus.Dataquery().expr(expand(expression)).legend_format("{{le}}").range().exemplar(True)
    return target.format(PromQueryFormat.HEATMAP).datasource(SOURCE)


def quantile(
    share: float, metric: str, by: str = label.RUN_ID, window: str = "[window]", matchers: str = "{run}"
) -> str:
    """Return the estimate of a quantile of a histogram.

    Args:
        share: Between 0 and 1.
        metric: Prometheus name without ``_bucket``.
        by: Labels to keep, separated by commas.
        window: The window, as a placeholder.
        matchers: The selector, as a placeholder.
    """
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{matchers}{window})))"


def mean(metric: str, by: str = label.RUN_ID, window: str = "[window]", matchers: str = "{run}") -> str:
    """Return the mean of a histogram's observations in a window; no series where there are none."""
    total = f"sum by ({by}) (increase({metric}_sum{matchers}{window}))"
    count = f"sum by ({by}) (increase({metric}_count{matchers}{window}))"
    return f"{total} / ({count} > 0)"


def grouped(aggregation: str, labels: str, expression: str, suffix: str = "") -> prometheus.Dataquery:
    """Return a query of an aggregation, with the grouping labels as legend.

    Example:
        grouped("sum", "verl_run_id, reason", "verl_stalls_total{run}")
        == query("sum by (verl_run_id, reason) (verl_stalls_total{run})", "{{verl_run_id}} {{reason}}")
    """
    return query(f"{aggregation} by ({labels}) ({expression})", _legend(labels, suffix))


def plain(names: Mapping[str, str], labels: str = label.RUN_ID, matchers: str = "{run}") -> list[prometheus.Dataquery]:
    """Return a query of each metric without aggregation, with its labels and its text as legend."""
    return [query(metric + matchers, _legend(labels, suffix)) for metric, suffix in names.items()]


def _legend(labels: str, suffix: str) -> str:
    return " ".join([*(f"{{{{{label}}}}}" for label in labels.split(", ")), suffix]).rstrip()


def percentiles(
    metric: str, *shares: float, matchers: str = "{run}", exemplars: bool = True
) -> list[prometheus.Dataquery]:
    """Return the percentiles of a histogram, for each run."""
    return [
        query(quantile(share, metric, matchers=matchers), f"{legend_of.RUN_ID} p{share * 100:g}", exemplars=exemplars)
        for share in shares
    ]


def mean_and(
    metric: str, *shares: float, matchers: str = "{run}", exemplars: bool = True
) -> list[prometheus.Dataquery]:
    """Return the mean and percentiles of a histogram, for each run."""
    return [
        query(mean(metric, matchers=matchers), f"{legend_of.RUN_ID} mean"),
        *percentiles(metric, *shares, matchers=matchers, exemplars=exemplars),
    ]


def part(series: str, total: str, on: str = label.RUN_ID) -> str:
    """Return the ratio of series to a total that has the labels ``on`` only; no series where the total is 0."""
    return f"{series} / on ({on}) group_left () ({total} > 0)"
