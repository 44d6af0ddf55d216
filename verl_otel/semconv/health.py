# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the catalogue: what stands still, and the library's own health."""

from typing import Final

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.specs import MetricSpec

ROWS: Final = (
    MetricSpec(
        metric_names.STALLS,
        "counter",
        "{stall}",
        (attr.REASON,),
        (5, 5, 5),
        "Stalls and crashes that were reported, by reason: overdue, frozen, stopped, never arrived, died.",
    ),
    MetricSpec(
        metric_names.OTEL_ERRORS,
        "counter",
        "{error}",
        (attr.REASON,),
        (1, 1, 1),
        "Failures of verl-otel itself, by place.",
    ),
    MetricSpec(
        metric_names.OTEL_SPANS_DROPPED,
        "counter",
        "{span}",
        (attr.REASON,),
        (1, 1, 1),
        "Spans that were recorded and could not be kept or sent.",
    ),
    MetricSpec(
        metric_names.OTEL_POINTS_DROPPED,
        "counter",
        "{point}",
        (attr.REASON,),
        (1, 1, 1),
        "Measurements that were recorded and could not be kept or sent.",
    ),
    MetricSpec(
        metric_names.OTEL_EXPORT_DURATION,
        "counter",
        "s",
        (attr.EXPORTER,),
        (19, 29, 113),
        "Time spent sending, on the export threads.",
    ),
    MetricSpec(
        metric_names.OTEL_OVERHEAD,
        "counter",
        "s",
        (attr.REASON,),
        (57, 87, 339),
        "CPU time of draining and exporting, and of recording by its number of events.",
    ),
    MetricSpec(
        metric_names.OTEL_BUDGET_USED,
        "gauge",
        "1",
        (),
        (19, 29, 113),
        "CPU time of telemetry in the last minute as a share of what it may take.",
    ),
)
