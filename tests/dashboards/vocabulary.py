# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every name that a query may ask for: the catalogue, verl's scalars, and recorded samples of other exporters."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from verl_otel.model import Instrument
from verl_otel.prometheus_names import label_name, metric_name
from verl_otel.semconv.metric_names import METRICS

SAMPLES = Path(__file__).with_name("samples")
IDENTITY = frozenset({"job", "instance", "verl_role", "verl_run_id"})
TARGET = IDENTITY | {"verl_engine", "verl_replica_rank", "verl_model"}
"""Labels that every scrape of a target of a run has, besides its own."""


@dataclass(frozen=True)
class Name:
    """A name in Prometheus."""

    kind: str
    """counter, gauge, or bucket, sum, count of a histogram"""
    labels: frozenset[str]


def _parts(name, kind, labels):
    """Return the names that one metric of an exporter has in Prometheus."""
    if kind != "histogram":
        return {name: Name("counter" if kind == "counter" else "gauge", labels)}
    ends = {"_bucket": "bucket", "_sum": "sum", "_count": "count"}
    return {f"{name}{end}": Name(kind, labels | ({"le"} if end == "_bucket" else set())) for end, kind in ends.items()}


@cache
def catalogue():
    """Return the names that verl-otel emits."""
    found = {}
    for row in METRICS.values():
        labels = IDENTITY | {label_name(label) for label in row.labels}
        found |= _parts(metric_name(Instrument(row.name, row.kind, row.unit, "")), row.kind, labels)
    return found


@cache
def recorded(stem):
    """Return the names of one sample, with every label that is seen on them."""
    kinds, labels = {}, {}
    for line in (SAMPLES / f"{stem}.prom").read_text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
        elif not line.startswith("#"):
            name = re.match(r"[\w:]+", line)[0]
            known = name if name in kinds else re.sub("_(bucket|sum|count)$", "", name)
            labels.setdefault(known, set()).update(re.findall(r'(\w+)="', line))
    found = {}
    for name, kind in kinds.items():
        found |= _parts(name, kind, TARGET | frozenset(labels.get(name, ())) - {"le"})
    return found


@cache
def names():
    """Return every name."""
    found = dict(catalogue())
    for stem in ("scalars", "vllm", "sglang", "transferqueue", "dcgm", "collector", "prometheus", "thresholds"):
        found |= recorded(stem)
    return found
