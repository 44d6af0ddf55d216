# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fork, until its child has ended: what the hooks around it cost, and the session that begins anew in the child."""

from __future__ import annotations

from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Variant
from benchmarks.jobs import script

_FORKS: Final = """
import os, time, warnings
warnings.simplefilter("ignore")
{before}
begin = time.perf_counter()
for _ in range(8):
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
print((time.perf_counter() - begin) / 8, flush=True)
os._exit(0)
"""
_SDK: Final = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
"""
_OURS: Final = """
import verl_otel
verl_otel.init(exporters="none")
work = verl_otel.timed("bench.work")(lambda: None)
work()
"""


def _forking(name: str, text: str, before: str) -> Variant:
    return Variant(name, text, lambda: script(_FORKS.format(before=before)))


CASES: Final = (
    Case(
        "fork",
        "fork and wait for a child that ends at once",
        (
            _forking(BASELINE, "plain Python", ""),
            _forking(OURS, "init(), a session in the child, too", _OURS),
            _forking("opentelemetry", "SDK with a batch processor", _SDK),
        ),
        unit="ms",
        rounds=2,
    ),
)
