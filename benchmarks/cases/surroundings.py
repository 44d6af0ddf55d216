# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is paid where nothing is recorded: `import verl` with our plug-in, and a second of a session in which nothing happens.

An idle session's threads hold the interpreter's lock for no longer than their CPU time, so that is what it can take from a training.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Operation, Unavailable, Variant
from benchmarks.jobs import script

_AGAIN: Final = "off, again"
_IMPORT: Final = """
import os, time, warnings
warnings.simplefilter("ignore")
os.environ |= {environment!r}
begin = time.process_time()
import verl
took = time.process_time() - begin
import sys
if ("verl_otel.integrations" in sys.modules) != {loaded}:
    raise SystemExit("the plug-in is not as it is said")
print(took, flush=True)
os._exit(0)
"""
_SECONDS: Final = 3
_IDLE: Final = f"""
import os, time
{{before}}
begin = time.process_time()
time.sleep({_SECONDS})
print((time.process_time() - begin) / {_SECONDS}, flush=True)
os._exit(0)
"""
_OURS: Final = """
import verl_otel
verl_otel.init(exporters={exporters!r})
with verl_otel.span("bench.work"):
    pass
time.sleep(2)
"""
_SDK: Final = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
TracerProvider().add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter(out=open(os.devnull, "w")))])
time.sleep(2)
"""


def _importing(name: str, text: str, *, on: bool) -> Variant:
    def build() -> Operation:
        if importlib.util.find_spec("verl") is None:
            raise Unavailable("verl is not installed")
        environment = {"VERL_OTEL_ENABLED": str(int(on)), "VERL_OTEL_EXPORTERS": "none"}
        return replace(script(_IMPORT.format(environment=environment, loaded=on)), warm=False)

    return Variant(name, text, build)


def _idle(name: str, text: str, before: str) -> Variant:
    return Variant(name, text, lambda: replace(script(_IDLE.format(before=before)), warm=False))


CASES: Final = (
    Case(
        "import-verl",
        "CPU of `import verl`, in a fresh process",
        (
            _importing(BASELINE, "the plug-in installed, the switch off", on=False),
            _importing(_AGAIN, "the same once more", on=False),
            _importing(OURS, "the switch on: hooks registered, the session waiting for its first record", on=True),
        ),
        unit="ms",
        clock="cpu",
        steady=False,
        rounds=1,
        suite="end_to_end",
        null=_AGAIN,
    ),
    Case(
        "idle-session",
        "CPU of one second in which nothing happens",
        (
            _idle(BASELINE, "a process that sleeps", ""),
            _idle(OURS, "file and Prometheus, after its first record", _OURS.format(exporters="file,prometheus")),
            _idle(f"{OURS}, no exporter", "the drain thread and the watcher", _OURS.format(exporters="none")),
            _idle("opentelemetry", "SDK: a batch processor, a periodic reader", _SDK),
        ),
        unit="us",
        clock="cpu",
        steady=False,
        rounds=1,
        suite="end_to_end",
    ),
)
