# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The contenders: backends with their settings. Each is loaded only in a process that measures it, so that none slows the start of another."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.backend import Backend
from benchmarks.case import BASELINE, OURS, Operation, Variant

Workload = Callable[[Backend], Operation]
"""One definition of the work, with the telemetry as its parameter."""


@dataclass(frozen=True)
class Contender:
    """A backend, set up in one way."""

    name: str
    text: str
    """How it is set up."""
    open: Callable[[], Backend]

    def doing(self, workload: Workload) -> Variant:
        """Return the variant of this backend doing some work."""
        return Variant(self.name, self.text, lambda: workload(self.open()))


def load(module: str, name: str, **options: Any) -> Callable[[], Backend]:
    """Return what imports a telemetry and makes it, when it is called.

    Args:
        module: One of `benchmarks.backends`.
        name: Its class.
        **options: Arguments of that class.

    Example:
        load("ours", "Ours", exporters="prometheus")
    """

    def make() -> Backend:
        backend: Backend = getattr(importlib.import_module(f"benchmarks.backends.{module}"), name)(**options)
        return backend

    return make


NOTHING: Final = Contender(BASELINE, "no telemetry", Backend)
VERL_OTEL: Final = Contender(
    OURS, "init(), its drain thread and its watcher at work, exporters: none", load("ours", "Ours")
)
ONE_TIMER: Final = Contender(
    f"{OURS}, one timer", "the timer is made once, as a module's constant", load("ours", "OursOneTimer")
)
LABELLED: Final = Contender(f"{OURS}, labels", "a histogram, 4 labels given at each call", load("ours", "OursLabelled"))
LEAF: Final = Contender(
    f"{OURS}, leaf", "span and histogram of a leaf: never the current span", load("ours", "OursLeaf")
)
OFF: Final = Contender(OURS, "decorated, the switch off", load("ours", "OursOff"))
OPENTELEMETRY: Final = Contender(
    "opentelemetry",
    "SDK, 4 attributes, Prometheus reader; all spans sampled, batch processor, dropped",
    load("opentelemetry_sdk", "OpenTelemetry"),
)
PROMETHEUS: Final = Contender(
    "prometheus_client", "the child of 4 labels, bound once", load("prometheus", "Prometheus")
)


def variants(workload: Workload, *contenders: Contender) -> tuple[Variant, ...]:
    """Return one variant of the same work for each backend."""
    return tuple(contender.doing(workload) for contender in contenders)
