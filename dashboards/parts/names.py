# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Names in Prometheus, derived from those of the catalogue.

Example:
    f"sum by ({label.RUN_ID}) (rate({metric.TRAINING_STEPS}{{run}}[window]))"
    == "sum by (verl_run_id) (rate(verl_training_steps_total{run}[window]))"
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Final

from verl_otel.model import Instrument
from verl_otel.prometheus_names import label_name, metric_name
from verl_otel.semconv import attributes, metric_names
from verl_otel.semconv.metric_names import METRICS, SCALAR_PREFIX


def _constants(module: ModuleType) -> dict[str, str]:
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def _metric(name: str) -> str:
    row = METRICS[name]
    return metric_name(Instrument(row.name, row.kind, row.unit, ""))


metric: Final = SimpleNamespace(
    **{key: _metric(name) for key, name in _constants(metric_names).items() if name in METRICS}
)
"""Metrics, by their constants in `metric_names`; a histogram without ``_bucket``, ``_count`` and ``_sum``."""
label: Final = SimpleNamespace(**{key: label_name(name) for key, name in _constants(attributes).items()})
"""Labels, by their constants in `attributes`."""
legend: Final = SimpleNamespace(**{key: f"{{{{{name}}}}}" for key, name in vars(label).items()})
"""The value of a label in Grafana's legends: ``{{verl_run_id}}``."""


def scalar(key: str) -> str:
    """Return the gauge of a value that verl logs.

    Args:
        key: Its key in ``Tracking.log``.

    Example:
        scalar("actor/pg_loss") == "verl_actor_pg_loss"
    """
    return metric_name(Instrument(f"{SCALAR_PREFIX}{key.replace('/', '.')}", "gauge", "", ""))
