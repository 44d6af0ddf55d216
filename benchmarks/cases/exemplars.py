# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Exemplars on and off: CPU time of a span with a histogram, drained and scraped."""

from __future__ import annotations

import os
from typing import Final

from benchmarks.case import OURS, Case
from benchmarks.cases.decorators import calls_and_delivery
from benchmarks.peers import NOTHING, Peer, load, variants
from benchmarks.telemetry import Telemetry

SPANS: Final = 1000


def _ours(filter_name: str) -> Telemetry:
    os.environ["OTEL_METRICS_EXEMPLAR_FILTER"] = filter_name
    return load("ours", "Ours", exporters="prometheus")()


def _case(word: str, filter_name: str) -> Case:
    return Case(
        f"exemplars-{word}",
        f"total CPU of a span with a histogram, drained and scraped, exemplars {word}",
        variants(
            calls_and_delivery(lambda each: each.traced, SPANS),
            NOTHING,
            Peer(OURS, f"OTEL_METRICS_EXEMPLAR_FILTER={filter_name}", lambda: _ours(filter_name)),
            Peer(
                "opentelemetry",
                f"SDK, exemplar filter {filter_name}",
                load("opentelemetry_sdk", "OpenTelemetry", exemplars=word == "on"),
            ),
        ),
        clock="cpu",
        steady=False,
        rounds=5,
        quick=False,
    )


CASES: Final = (_case("on", "trace_based"), _case("off", "always_off"))
