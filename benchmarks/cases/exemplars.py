# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Exemplars on and off: CPU time of a span with a histogram, drained and scraped."""

from __future__ import annotations

import os
from typing import Final

from benchmarks.backend import Backend
from benchmarks.case import OURS, Case
from benchmarks.cases.decorators import calls_and_delivery
from benchmarks.contenders import NOTHING, Contender, load, variants

SPANS: Final = 1000


def _ours(filter_name: str) -> Backend:
    os.environ["OTEL_METRICS_EXEMPLAR_FILTER"] = filter_name
    return load("ours", "Ours", exporters="prometheus")()


def _case(state: str, filter_name: str) -> Case:
    return Case(
        f"exemplars-{state}",
        f"total CPU of a span with a histogram, drained and scraped, exemplars {state}",
        variants(
            calls_and_delivery(lambda backend: backend.traced, SPANS),
            NOTHING,
            Contender(OURS, f"OTEL_METRICS_EXEMPLAR_FILTER={filter_name}", lambda: _ours(filter_name)),
            Contender(
                "opentelemetry",
                f"SDK, exemplar filter {filter_name}",
                load("opentelemetry_sdk", "OpenTelemetry", exemplars=state == "on"),
            ),
        ),
        clock="cpu",
        steady=False,
        rounds=5,
        quick=False,
    )


CASES: Final = (_case("on", "trace_based"), _case("off", "always_off"))
