# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Switched off: decorated functions that record nothing, and what importing adds to the start of a process."""

from __future__ import annotations

from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Target, Variant
from benchmarks.cases.decorators import timed, timed_async, traced
from benchmarks.contenders import NOTHING, OFF, variants
from benchmarks.jobs import timed_script


def _importing(name: str, what: str) -> Variant:
    return Variant(name, f"`{what}`", lambda: timed_script(what))


CASES: Final = (
    Case(
        "off-metrics",
        "decorated function, metrics only, switched off",
        variants(timed, NOTHING, OFF),
        (Target("switched off, metrics only", 100),),
    ),
    Case(
        "off-metrics-async",
        "decorated coroutine function, metrics only, switched off",
        variants(timed_async, NOTHING, OFF),
    ),
    Case(
        "off-span",
        "decorated function with a span, switched off",
        variants(traced, NOTHING, OFF),
        (Target("switched off, with a span", 100),),
    ),
    Case(
        "import",
        "importing, in a fresh process",
        (
            _importing(BASELINE, "pass"),
            _importing(OURS, "import verl_otel"),
            _importing(f"{OURS}, plug-in", "import verl_otel.plugin"),
            _importing(f"{OURS}, first decorator", "import verl_otel; verl_otel.timed('x')(print)"),
            _importing("opentelemetry", "import opentelemetry.sdk.trace, opentelemetry.sdk.metrics"),
            _importing("prometheus_client", "import prometheus_client"),
        ),
        (Target("`import verl_otel`", 10),),
        unit="ms",
        rounds=3,
    ),
)
