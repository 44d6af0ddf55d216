# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What importing and starting add to the start of a process."""

from __future__ import annotations

from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Target, Variant
from benchmarks.jobs import timed_script

_SDK: Final = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
MeterProvider()
"""


def _starting(name: str, text: str, what: str) -> Variant:
    return Variant(name, text, lambda: timed_script(what))


def _importing(name: str, what: str) -> Variant:
    return _starting(name, f"`{what}`", what)


CASES: Final = (
    Case(
        "start-up",
        "starting in a fresh process, imports included",
        (
            _starting(BASELINE, "nothing", "pass"),
            _starting(OURS, "import and init()", "import verl_otel\nverl_otel.init(exporters='none')"),
            _starting("opentelemetry", "SDK: import, two providers, a batch processor", _SDK),
        ),
        unit="ms",
        rounds=2,
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
