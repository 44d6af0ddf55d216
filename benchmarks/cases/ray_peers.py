# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What reports through Ray: RL-Insight 0.3.0 with its real actor, and Ray's own metrics. What the caller pays; the actor's work is apart.

RL-Insight's server is stood for by a sink that answers as it does, so its actor registers itself and sends its spans there.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from benchmarks.backend import LABELS
from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Unavailable, Variant
from benchmarks.cases.decorators import work
from benchmarks.rounds import loop
from benchmarks.sink import Sink

CALLS: Final = 100
"""Events of a round: an actor that falls behind for minutes would not be what a caller meets."""


class Cluster:
    """A Ray of one node for this process, with RL-Insight in it; started once."""

    sink: Sink | None = None
    hub: Any = None

    @classmethod
    def start(cls) -> None:
        """Start it, unless it runs."""
        if cls.sink is not None:
            return
        try:
            import ray
            from rl_insight import api
        except ImportError as error:
            raise Unavailable(f"{error.name} is not installed") from None
        cls.sink = Sink()
        folder = os.environ.get("VERL_OTEL_RUN_DIR") or tempfile.mkdtemp()  # goes away with the process that measures
        ray.init(
            num_cpus=2, include_dashboard=False, logging_level="ERROR", _temp_dir=folder, object_store_memory=2**27
        )
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        config = {"server": {"url": cls.sink.url}, "prometheus": {"metrics_report_port": port}}
        api.init("project", "experiment", config)
        cls.hub = api._STATE.client._actor
        if not ray.get(cls.hub.get_status.remote(), timeout=60)["otel_traces_enabled"]:
            raise RuntimeError("RL-Insight's actor drops its spans: the measurement would be invalid")

    @classmethod
    def rest(cls) -> None:
        """Let the actor do what it was asked for; off the clock."""
        import ray

        ray.get(cls.hub.get_status.remote(), timeout=120)

    @classmethod
    def stop(cls) -> None:
        """Stop it, if it runs."""
        sink, cls.sink = cls.sink, None
        if sink is None:
            return
        import ray

        with suppress(Exception):
            ray.shutdown()
        sink.close()


def _reporting(make: Callable[[], tuple[str, dict[str, Any]]]) -> Callable[[], Operation]:
    """Return what builds the operation of one of RL-Insight's or Ray's calls."""

    def build() -> Operation:
        Cluster.start()
        statement, names = make()
        operation = loop(statement, before=Cluster.rest, **names)
        return Operation(operation.run, CALLS, Cluster.stop)

    return build


def _metric() -> tuple[str, dict[str, Any]]:
    from rl_insight import api

    return "m('h', 0.31, **labels)", {"m": api.metric_histogram, "labels": LABELS}


def _trace() -> tuple[str, dict[str, Any]]:
    from rl_insight import api

    return "f()", {"f": api.trace_op("x", **LABELS)(work)}


def _observe() -> tuple[str, dict[str, Any]]:
    from ray.util.metrics import Histogram

    histogram = Histogram("bench_work", "what it measures", [0.01, 0.1, 1, 10], tuple(LABELS))
    histogram.set_default_tags(LABELS)
    return "o(0.31)", {"o": histogram.observe}


def _increase() -> tuple[str, dict[str, Any]]:
    from ray.util.metrics import Counter

    counter = Counter("bench_things", "what it counts", tuple(LABELS))
    counter.set_default_tags(LABELS)
    return "i(5)", {"i": counter.inc}


def _ours(decorator: str) -> Callable[[], Operation]:
    def build() -> Operation:
        from benchmarks.backends.ours import Ours

        backend = Ours()
        function = getattr(backend, decorator)(work)
        return loop("f()", before=backend.empty, close=backend.close, f=function)

    return build


_INSIGHT: Final = "rl_insight"
_RAY: Final = "ray.util.metrics"
_SPANS: Final = f"{OURS}, span"
_ACTOR: Final = "0.3.0, its real actor, its server stood for by a sink"

CASES: Final = (
    Case(
        "ray-peers",
        "a call that is reported through Ray, caller side",
        (
            Variant(BASELINE, "no telemetry", lambda: loop("f()", f=work)),
            Variant(OURS, "init(), `timed`", _ours("timed")),
            Variant(_SPANS, "init(), a span and a histogram", _ours("traced")),
            Variant(f"{_INSIGHT} metric_histogram", f"{_ACTOR}; the value is given, not measured", _reporting(_metric)),
            Variant(f"{_INSIGHT} trace_op", _ACTOR, _reporting(_trace)),
            Variant(f"{_RAY} observe", "default tags; the value is given, not measured", _reporting(_observe)),
            Variant(f"{_RAY} inc", "default tags", _reporting(_increase)),
        ),
        (
            Target(
                "RL-Insight 0.3.0 `metric_histogram`, real Ray actor, caller side",
                None,
                {f"{_INSIGHT} metric_histogram": 400},
            ),
            Target(
                "RL-Insight 0.3.0 `trace_op`, real Ray actor, caller side",
                None,
                {f"{_INSIGHT} trace_op": 400},
                ours=_SPANS,
            ),
        ),
        quick=False,
        rounds=15,
    ),
)
