# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Total CPU: what the caller pays and what every thread of the process pays for it later, with equal attributes on both sides.

The cases of one call (`decorators`, `blocks`) show the caller's share only; verl-otel does most of its work later, on its drain thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Final

from benchmarks.backend import Backend
from benchmarks.calls import CALLS, PART, work
from benchmarks.case import BASELINE, OURS, Case, Operation, Variant
from benchmarks.contenders import NOTHING, PROMETHEUS, Contender, load, variants
from benchmarks.hooks.stand_ins import SPANS as SPANS_OF_TRAJECTORY
from benchmarks.jobs import module

TRAJECTORIES: Final = 1000
OPEN: Final = 128
"""Trajectories that a busy worker has open."""
NODE: Final = 13
"""Processes of a node with eight GPUs."""
FILES, OTLP, OPENTELEMETRY_OTLP = f"{OURS}, files", f"{OURS}, otlp", "opentelemetry, otlp"
_BESIDES: Final = {"files a second": "B", "threads": "", "memory (PSS)": "MiB"}
"""Figures of processes: files of one, threads and memory of all."""
_READING: Final = {"the run": "s", "the run again": "s", "one step": "s", "memory": "MiB", "state": "MiB"}
"""Figures of a reader."""
_SPANS: Final = (
    (BASELINE, "no telemetry", "none"),
    (OURS, "span not kept; exporters: prometheus, a scrape every 4,000 calls", "ours-metrics"),
    (FILES, "span kept and written: the default", "ours-file"),
    (OTLP, "span kept and sent", "ours-otlp"),
    ("opentelemetry", "SDK, span not sampled; Prometheus reader, a scrape every 4,000 calls", "opentelemetry-metrics"),
    (OPENTELEMETRY_OTLP, "SDK, span sampled and sent by a batch processor", "opentelemetry-otlp"),
)
_HOOKS: Final = (
    (BASELINE, "stand-ins of verl's classes, without hooks", "none"),
    (OURS, "all spans kept, exporters: file, the default", "file"),
    (OTLP, "all spans kept, exporters: otlp", "otlp"),
    (f"{OURS}, metrics", "no span kept, exporters: prometheus", "prometheus"),
    ("opentelemetry", "SDK by hand, no span sampled; Prometheus reader", "opentelemetry-metrics"),
    (OPENTELEMETRY_OTLP, "SDK by hand, all spans sampled and sent by a batch processor", "opentelemetry-otlp"),
)
_SECONDS: Final = (
    (BASELINE, "no telemetry", "none"),
    (OURS, "exporters: file, the default", "file"),
    (OPENTELEMETRY_OTLP, "SDK by hand, batch processor and Prometheus reader", "opentelemetry-otlp"),
)


def _variants(rows: Iterable[tuple[str, str, str]], build: Callable[[str], Operation]) -> tuple[Variant, ...]:
    return tuple(Variant(name, text, partial(build, kind)) for name, text, kind in rows)


def _calls(kind: str) -> Operation:
    return module(["benchmarks.calls", kind, "--calls", str(CALLS)], CALLS, (), lambda output: (output["cpu"], ()))


def _timed_calls(backend: Backend) -> Operation:
    function = backend.timed(work)

    def run(number: int) -> float:
        begin = time.process_time()
        for _ in repeat(None, number):
            function()
        backend.deliver()
        return time.process_time() - begin

    return Operation(run, PART, backend.close)


def _hooks(kind: str) -> Operation:
    arguments = ["benchmarks.hooks", kind, "--trajectories", str(TRAJECTORIES)]
    return module(arguments, TRAJECTORIES, (), lambda output: (output["cpu"], ()))


def _second(arguments: Sequence[str], seconds: Mapping[str, float], kind: str) -> Operation:
    def read(output: Mapping[str, float]) -> tuple[float, Sequence[float]]:
        return output["cpu"], (output["bytes"], output["threads"], output["mib"])

    length = seconds.get(kind, seconds[""])
    return module(["benchmarks.hooks", kind, *arguments, "--seconds", str(length)], 1, tuple(_BESIDES), read)


def _by_the_second(name: str, title: str, arguments: Sequence[str], seconds: Mapping[str, float]) -> Case:
    return Case(
        name,
        title,
        _variants(_SECONDS, partial(_second, arguments, seconds)),
        unit="ms",
        steady=False,
        rounds=1,
        processes=1,
        suite="total",
        seconds=900,
        figures=_BESIDES,
    )


def _reader() -> Operation:
    def read(output: Mapping[str, float]) -> tuple[float, Sequence[float]]:
        names = ("cpu_seconds", "again_seconds", "step_seconds", "peak_mib", "state_mib")
        return output["cpu_seconds"] / output["spans"], [output[name] for name in names]

    return module(["benchmarks.scale.probes", "reader"], 1, tuple(_READING), read)


CASES: Final = (
    Case(
        "total-span",
        "total CPU of a call with a span and a histogram, four attributes on each, until everything is delivered",
        _variants(_SPANS, _calls),
        unit="us",
        steady=False,
        rounds=1,
        suite="total",
    ),
    Case(
        "total-metrics",
        "total CPU of a timed call, four labels, a scrape every 4,000 calls",
        variants(
            _timed_calls,
            NOTHING,
            Contender(OURS, "labels given at each call", load("ours", "OursLabelled", exporters="prometheus")),
            Contender(
                f"{OURS}, decorator", "`timed`, which has no labels", load("ours", "Ours", exporters="prometheus")
            ),
            Contender("opentelemetry", "SDK, labels given at each call", load("opentelemetry_sdk", "OpenTelemetry")),
            PROMETHEUS,
        ),
        unit="us",
        steady=False,
        rounds=5,
        suite="total",
    ),
    Case(
        "total-hooks",
        f"total CPU of a trajectory of {SPANS_OF_TRAJECTORY} spans through the hooks in verl's classes",
        _variants(_HOOKS, _hooks),
        unit="us",
        steady=False,
        rounds=1,
        suite="total",
    ),
    _by_the_second(
        "node",
        f"an idle process, one of {NODE} of a node: total CPU of a second; threads and memory of all {NODE}",
        ["--processes", str(NODE)],
        {"file": 60.0, "": 20.0},  # metrics of itself are written once a minute
    ),
    _by_the_second(
        "busy",
        f"an agent loop worker with {OPEN} trajectories open: total CPU of a second",
        ["--open", str(OPEN)],
        {"": 20.0},
    ),
    Case(
        "reader",
        "`explain` of two million spans: CPU of a span; CPU seconds for the run, the run again, one of its steps",
        (Variant(OURS, "a run that was not read before, in one process", _reader),),
        unit="us",
        steady=False,
        rounds=1,
        processes=1,
        suite="total",
        seconds=1800,
        figures=_READING,
    ),
)
