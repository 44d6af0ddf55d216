# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics from the call to the answer to a scrape: the CPU time of the whole process, all its threads, drain and scrape included.

20,000 calls to a scrape are 1,300 a second at Prometheus' usual 15 seconds. The scrape is formatted in the process, as always, but not
carried by HTTP, so that nobody's client is counted.
"""

from __future__ import annotations

from typing import Final

from benchmarks.case import OURS, Case, Target
from benchmarks.cases.decorators import calls_and_delivery
from benchmarks.contenders import NOTHING, OPENTELEMETRY, PROMETHEUS, Contender, load, variants

CALLS: Final = 20_000

CASES: Final = (
    Case(
        "drain-and-scrape",
        "total CPU of a timed call, drain and scrape included",
        variants(
            calls_and_delivery(lambda backend: backend.timed, CALLS),
            NOTHING,
            Contender(OURS, "init(), /metrics on the loopback", load("ours", "Ours", exporters="prometheus")),
            OPENTELEMETRY,
            PROMETHEUS,
        ),
        (Target("total CPU, metrics, drain and scrape included", 260, {OPENTELEMETRY.name: 30}),),
        clock="cpu",
        steady=False,
        rounds=5,
    ),
)
