# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the catalogue: what stands still, and the library's own health."""

from typing import Final

from verl_otel.semconv import attributes as attr
from verl_otel.semconv.specs import MetricSpec

ROWS: Final = (
    MetricSpec(
        "verl.stalls",
        "counter",
        "{stall}",
        (attr.REASON,),
        (5, 5, 5),
        "Stalls and crashes that were reported, by reason: overdue, frozen, stopped, never arrived, died.",
    ),
    MetricSpec(
        "verl.otel.errors", "counter", "{error}", (attr.REASON,), (1, 1, 1), "Failures of verl-otel itself, by place."
    ),
    MetricSpec(
        "verl.otel.spans.dropped",
        "counter",
        "{span}",
        (attr.REASON,),
        (1, 1, 1),
        "Spans that were recorded and could not be kept or sent.",
    ),
    MetricSpec(
        "verl.otel.points.dropped",
        "counter",
        "{point}",
        (attr.REASON,),
        (1, 1, 1),
        "Measurements that were recorded and could not be kept or sent.",
    ),
    MetricSpec(
        "verl.otel.export.duration",
        "counter",
        "s",
        ("exporter",),
        (19, 29, 113),
        "Time spent sending, on the export threads.",
    ),
    MetricSpec(
        "verl.otel.overhead",
        "counter",
        "s",
        (attr.REASON,),
        (57, 87, 339),
        "CPU time of draining and exporting, and of recording by its number of events.",
    ),
    MetricSpec(
        "verl.otel.budget.used",
        "gauge",
        "1",
        (),
        (19, 29, 113),
        "CPU time of telemetry in the last minute as a share of what it may take.",
    ),
)
