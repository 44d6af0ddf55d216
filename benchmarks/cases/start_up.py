# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is forgotten: starting, and the hooks that wait for the host's modules to be imported."""

from __future__ import annotations

from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Variant
from benchmarks.jobs import script, timed_script

_IMPORTS: Final = """
import importlib, sys, tempfile, time
from pathlib import Path
{before}
with tempfile.TemporaryDirectory() as folder:
    names = [f"bench_module_{{number}}" for number in range(300)]
    for name in names:
        Path(folder, f"{{name}}.py").write_text("")
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    begin = time.perf_counter()
    for name in names:
        importlib.import_module(name)
    print((time.perf_counter() - begin) / len(names))
"""
_HOOKS: Final = """
import os
os.environ["VERL_OTEL_ENABLED"] = "1"
os.environ["VERL_OTEL_EXPORTERS"] = "none"
import verl_otel.plugin
"""
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


def _importing(name: str, text: str, before: str) -> Variant:
    return Variant(name, text, lambda: script(_IMPORTS.format(before=before)))


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
        quick=False,
    ),
    Case(
        "import-hooks",
        "importing an empty module, with our hooks registered",
        (_importing(BASELINE, "plain Python", ""), _importing(OURS, "the plug-in on, waiting for verl", _HOOKS)),
        unit="us",
        rounds=3,
        quick=False,
    ),
)
