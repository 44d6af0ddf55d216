# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every metric that verl-otel emits: name, kind, unit, labels, bounds, and how many series it may make.

A panel, a rule or a recorder that uses a name which is not here fails the tests. ``series`` counts the series of one run
with 1, 8 and 64 GPUs (histograms: bounds + 3), summed over its processes.
"""

from typing import Final

from verl_otel.semconv import hardware, health, rollout, training
from verl_otel.semconv.specs import Kind, MetricSpec

__all__ = [
    "MAX_LABELS",
    "MAX_LABEL_BYTES",
    "MAX_LABEL_NAME_BYTES",
    "METRICS",
    "ROWS",
    "SCALAR_PREFIX",
    "Kind",
    "MetricSpec",
]

ROWS: Final = (*training.ROWS, *rollout.ROWS, *hardware.ROWS, *health.ROWS)
"""Every row; a name stands in one of them."""

METRICS: Final = {row.name: row for row in ROWS}
"""The catalogue by name."""

SCALAR_PREFIX: Final = "verl."
"""Scalars of `Tracking.log` become gauges with this prefix and their key, with ``.`` for ``/``."""

MAX_LABEL_BYTES: Final = 256
"""Bytes of a label's value; Prometheus counts bytes, and the scrape jobs that we ship reject a whole scrape beyond 512."""
MAX_LABEL_NAME_BYTES: Final = 128
"""Bytes of a label's name."""
MAX_LABELS: Final = 20
"""Labels of a series; the scrape jobs that we ship reject a whole scrape beyond 40, those of the target among them."""
