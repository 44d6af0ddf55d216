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

KINDS: Final = (("gather", "load"), ("gather", "send"), ("receive", "load"))
"""The parts of each kind of sync: of a rank into the engine of its own GPU, of a rank to replicas with GPUs of their own, and of such a replica. A rank
may have both of the first ones."""


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
    """Return the process that took longest in each of `KINDS`; nothing where no sizes were recorded."""
    sizes: dict[str, float] = {}
    parts: dict[str, dict[str, float]] = {}
    for one in series:
        labels = dict(one.labels)
        instance = labels.get("instance", "")
        if one.name == WEIGHT_SYNC_SIZE:
            sizes[instance] = median(one.values)
        elif one.name == WEIGHT_SYNC_PART_DURATION:
            parts.setdefault(instance, {})[labels.get(attr.PART, "")] = median(one.values)
    found = []
    for kind in KINDS:
        syncs = [
            WeightSync(name, sizes[name], {part: each[part] for part in kind})
            for name, each in parts.items()
            if name in sizes and each.keys() >= set(kind)
        ]
        found += [max(syncs, key=lambda sync: sync.seconds)] if syncs else []
    return found
