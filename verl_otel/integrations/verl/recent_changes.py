# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What became slower, or larger, all of a sudden: the last three steps against the twenty before, as `verl.training.change`.

Durations, of 0.1 s at least, are those of the step (``timing_s/step``), and the mean time that a trajectory of the step waited for the model and for tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from verl_otel.health.recent_past import RecentChanges
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.model import Point
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.series_registry import INSTRUMENTS, gauge
from verl_otel.recording.step_statistics import measure_waits
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

POLICY_LOSS: Final = "policy_loss"
_CHANGE: Final = INSTRUMENTS[metric_names.TRAINING_CHANGE]


class _Run:
    """State of the run in this process."""

    changes = RecentChanges()


def begin_run() -> None:
    """Reset the state."""
    _Run.changes = RecentChanges()


def follow(data: Mapping[str, Any], now: int) -> Iterable[Point]:
    """Add the scalars of one ``Tracking.log`` and return the points of the metric.

    Args:
        data: Scalars by verl's key.
        now: Unix time in nanoseconds.
    """
    seconds, loss = (to_number(data.get(key)) for key in ("timing_s/step", "actor/pg_loss"))
    ratios = {
        "step": None if seconds is None else _Run.changes.add_seconds("step", float(seconds)),
        POLICY_LOSS: None if loss is None else _Run.changes.add(POLICY_LOSS, float(loss), largest=True),
    }
    for name, ratio in ratios.items():
        if ratio is not None:
            yield Point(_CHANGE, ((attr.METRIC, name),), now, now, ratio)


def follow_trajectories(origins: Sequence[Origin]) -> None:
    """Add the trajectories that a step trains on."""
    for name, seconds in measure_waits(origins).items():
        ratio = _Run.changes.add_seconds(name, seconds)
        if ratio is not None:
            gauge(metric_names.TRAINING_CHANGE, ((attr.METRIC, name),)).set(ratio)
