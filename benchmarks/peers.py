# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who is compared. Each is loaded only in a process that measures it, so that none makes the start of another slower."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.case import BASELINE, OURS, Operation, Variant
from benchmarks.telemetry import Telemetry

Workload = Callable[[Telemetry], Operation]
"""One definition of the work, with the telemetry as its parameter."""


@dataclass(frozen=True)
class Peer:
    """A telemetry, set up in one way."""

    name: str
    text: str
    """How it is set up."""
    open: Callable[[], Telemetry]

    def doing(self, workload: Workload) -> Variant:
        """Return the variant of this telemetry doing some work."""
        return Variant(self.name, self.text, lambda: workload(self.open()))


def load(module: str, name: str, **options: Any) -> Callable[[], Telemetry]:
    """Return what imports a telemetry and makes it, when it is called.

    Args:
        module: One of `benchmarks.telemetries`.
        name: Its class.
        **options: Arguments of that class.

    Example:
        load("ours", "Ours", exporters="prometheus")
    """

    def make() -> Telemetry:
        made: Telemetry = getattr(importlib.import_module(f"benchmarks.telemetries.{module}"), name)(**options)
        return made

    return make


NOTHING: Final = Peer(BASELINE, "no telemetry", Telemetry)
FLOOR: Final = Peer(
    "floor",
    "a frame, two readings of the clock, an append: no wrapper in Python can be below, and none may be so bare",
    load("floor", "Floor"),
)
VERL_OTEL: Final = Peer(OURS, "init(), its drain thread and its watcher at work, exporters: none", load("ours", "Ours"))
NEVER_DRAINED: Final = Peer(
    f"{OURS}, folding itself",
    "nobody drains: the caller folds its buffer every 1,000 calls",
    load("ours", "OursNeverDrained"),
)
ONE_TIMER: Final = Peer(
    f"{OURS}, one timer", "the timer is made once, as a module's constant", load("ours", "OursOneTimer")
)
LEAF: Final = Peer(f"{OURS}, leaf", "span and histogram of a leaf: never the current span", load("ours", "OursLeaf"))
TOOL: Final = Peer(f"{OURS}, tool", "span with attributes and a histogram with a label", load("ours", "OursTool"))
SPANS_ONLY: Final = Peer(f"{OURS}, span only", "a span without a histogram", load("ours", "OursSpansOnly"))
OFF: Final = Peer(OURS, "decorated, the switch off", load("ours", "OursOff"))
OPENTELEMETRY: Final = Peer(
    "opentelemetry",
    "SDK, 4 attributes, Prometheus reader; all spans sampled, batch processor, dropped",
    load("opentelemetry_sdk", "OpenTelemetry"),
)
OPENTELEMETRY_SPANS: Final = Peer(
    "opentelemetry, span only",
    "SDK, 4 attributes, all sampled, batch processor, dropped",
    load("opentelemetry_sdk", "OpenTelemetry", histogram=False),
)
PROMETHEUS: Final = Peer("prometheus_client", "the child of 4 labels, bound once", load("prometheus", "Prometheus"))
LOGFIRE: Final = Peer("logfire", "sends nothing, no console: a lower bound", load("logfire_spans", "Logfire"))


def variants(workload: Workload, *peers: Peer) -> tuple[Variant, ...]:
    """Return one variant of the same work for each telemetry."""
    return tuple(peer.doing(workload) for peer in peers)
