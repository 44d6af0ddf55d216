# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes, seconds and parts of a weight sync, from the gauges of ranks and replicas."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final, NamedTuple

from verl_otel.analysis.model import Series
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import WEIGHT_SYNC_PART_DURATION, WEIGHT_SYNC_SIZE

SIDES: Final = ("gather", "receive")
"""The first part on each side: that of ranks, and that of replicas with GPUs of their own."""


class WeightSync(NamedTuple):
    """The syncs of one process: medians of what was recorded of each."""

    instance: str
    bytes: float
    parts: dict[str, float]
    """Seconds by part, in their order."""

    @property
    def seconds(self) -> float:
        """Seconds of all parts."""
        return sum(self.parts.values())


def find(series: Iterable[Series]) -> list[WeightSync]:
    """Return the process that took longest on each side; nothing where no sizes were recorded."""
    sizes: dict[str, float] = {}
    parts: dict[str, dict[str, float]] = {}
    for one in series:
        labels = dict(one.labels)
        instance = labels.get("instance", "")
        if one.name == WEIGHT_SYNC_SIZE:
            sizes[instance] = median(one.values)
        elif one.name == WEIGHT_SYNC_PART_DURATION:
            parts.setdefault(instance, {})[labels.get(attr.PART, "")] = median(one.values)
    known = [
        WeightSync(name, sizes[name], dict(sorted(each.items(), key=lambda part: part[0] not in SIDES)))
        for name, each in parts.items()
        if name in sizes
    ]
    sides = ([sync for sync in known if side in sync.parts] for side in SIDES)
    return [max(syncs, key=lambda sync: sync.seconds) for syncs in sides if syncs]
