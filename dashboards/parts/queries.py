# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""PromQL as it stands in a board: selectors and windows by name, one data source.

A query is written as PromQL with four short forms, so that no panel forgets to ask for the chosen runs:

* ``{run}`` or ``{run, ...}``: series of the chosen runs
* ``{process}`` or ``{process, ...}``: of the chosen runs, roles and instances
* ``[rate]``: a window for what happens all the time (Grafana's ``$__rate_interval``)
* ``[window]``: a window for what happens once a step, which may take hours; it grows with the time range of the board
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
RUN: Final = 'verl_run_id=~"$run"'
PROCESS: Final = f'{RUN}, verl_role=~"$role", instance=~"$instance"'
_SELECTORS: Final = {"run": RUN, "process": PROCESS}
_WINDOWS: Final = {"[rate]": "[$__rate_interval]", "[window]": "[$window]", "[range]": "[$__range]"}


def expand(expression: str) -> str:
    """Return the PromQL of a query's short form.

    Example:
        expand("rate(verl_training_steps_total{run}[window])")
        == 'rate(verl_training_steps_total{verl_run_id=~"$run"}[$window])'
    """
    full = re.sub(r"\{(run|process)\b", lambda found: "{" + _SELECTORS[found[1]], expression)
    for short, window in _WINDOWS.items():
        full = full.replace(short, window)
    return " ".join(full.split())


def query(expression: str, legend: str = "{{verl_run_id}}", *, exemplars: bool = False) -> prometheus.Dataquery:
    """Return a query over the time range of the board.

    Args:
        expression: PromQL, with the short forms of this module.
        legend: What a series is called, with ``{{label}}`` for the value of a label.
        exemplars: Whether to ask for the traces of single measurements, too.
    """
    made = prometheus.Dataquery().expr(expand(expression)).legend_format(legend).range().datasource(SOURCE)
    return made.exemplar(True) if exemplars else made


def last(expression: str, legend: str = "{{verl_run_id}}") -> prometheus.Dataquery:
    """Return a query at the end of the time range: one number for each series."""
    return prometheus.Dataquery().expr(expand(expression)).legend_format(legend).instant().datasource(SOURCE)


def row(expression: str) -> prometheus.Dataquery:
    """Return a query at the end of the time range, whose series are rows of a table and whose labels are columns."""
    return last(expression, "").format(PromQueryFormat.TABLE)


def buckets(expression: str) -> prometheus.Dataquery:
    """Return a query of a classic histogram's buckets, for a heatmap."""
    made = prometheus.Dataquery().expr(expand(expression)).legend_format("{{le}}").range().exemplar(True)
    return made.format(PromQueryFormat.HEATMAP).datasource(SOURCE)


def quantile(
    share: float, metric: str, by: str = "verl_run_id", window: str = "[window]", matchers: str = "{run}"
) -> str:
    """Return the estimate of a quantile of a histogram.

    Args:
        share: Between 0 and 1.
        metric: Prometheus name without ``_bucket``.
        by: Labels that stay, with commas.
        window: The window, in its short form.
        matchers: The selector, in its short form.
    """
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{matchers}{window})))"


def mean(metric: str, by: str = "verl_run_id", window: str = "[window]") -> str:
    """Return the mean of what a histogram counted in a window; nothing where it counted nothing."""
    total = f"sum by ({by}) (increase({metric}_sum{{run}}{window}))"
    count = f"sum by ({by}) (increase({metric}_count{{run}}{window}))"
    return f"{total} / ({count} > 0)"


def grouped(how: str, labels: str, inner: str, said: str = "") -> prometheus.Dataquery:
    """Return a query of an aggregation whose series are called by what they are grouped by.

    Example:
        grouped("sum", "verl_run_id, reason", "verl_stalls_total{run}")
        == query("sum by (verl_run_id, reason) (verl_stalls_total{run})", "{{verl_run_id}} {{reason}}")
    """
    return query(f"{how} by ({labels}) ({inner})", _legend(labels, said))


def plain(names: Mapping[str, str], labels: str = "verl_run_id", matchers: str = "{run}") -> list[prometheus.Dataquery]:
    """Return a query of each metric as it is, called by its labels and by what is said of it."""
    return [query(metric + matchers, _legend(labels, said)) for metric, said in names.items()]


def _legend(labels: str, said: str) -> str:
    return " ".join([*(f"{{{{{label}}}}}" for label in labels.split(", ")), said]).rstrip()


def percentiles(
    metric: str, *shares: float, matchers: str = "{run}", exemplars: bool = True
) -> list[prometheus.Dataquery]:
    """Return the percentiles of a histogram, for each run."""
    return [
        query(quantile(share, metric, matchers=matchers), f"{{{{verl_run_id}}}} p{share * 100:g}", exemplars=exemplars)
        for share in shares
    ]


def mean_and(metric: str, *shares: float, exemplars: bool = True) -> list[prometheus.Dataquery]:
    """Return the mean and percentiles of a histogram, for each run."""
    return [query(mean(metric), "{{verl_run_id}} mean"), *percentiles(metric, *shares, exemplars=exemplars)]


def part(some: str, whole: str, on: str = "verl_run_id") -> str:
    """Return series as a part of a whole that has the labels of ``on`` alone; nothing where the whole is 0."""
    return f"{some} / on ({on}) group_left () ({whole} > 0)"
