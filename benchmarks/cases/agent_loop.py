# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An agent's training step, from the first trajectory until everything that was told of it has arrived: CPU, bytes, memory, delay.

`benchmarks.agents` has the work: 1,024 prompts, eight trajectories each, ten turns a trajectory, 32 spans a trajectory, 1,024 at a time. A
part of it stands for the whole where a whole one would take too long; the whole one is in the suite ``end_to_end``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.agents.step import SPANS, STEP
from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Variant
from benchmarks.jobs import module

PART: Final = 512
"""Trajectories: a sixteenth of a step."""
FEW: Final = 64
"""For who calls an actor for every span; what it takes is proportional to the spans."""
FIGURES: Final = {"sent or written": "MB", "peak memory": "MB", "event loop's pass, p99": "ms", "CPU of a span": "us"}
_NEEDED: Final = {"opentelemetry": "opentelemetry.exporter.otlp.proto.http", "rl_insight": "rl_insight"}
"""Backend -> what has to be installed for it."""


def step(kind: str, trajectories: int, parts: int) -> Operation:
    """Return the operation of doing a step in a process of its own.

    Args:
        kind: The backend, one of `benchmarks.agents.__main__.KINDS`.
        trajectories: How many.
        parts: What one operation is: the whole of them (1), or one of so many.
    """
    needed = _NEEDED.get(kind, "")
    if needed:
        importlib.import_module(needed)  # raises what the caller takes for "not installed"

    def read(output: Mapping[str, float]) -> tuple[float, Sequence[float]]:
        cpu = output["cpu"]
        per_span = cpu / (SPANS * trajectories) * 1e6
        return cpu, (output["bytes"] / 1e6, output["memory"] / 1e6, output["delay"] * 1e3, per_span)

    return module(["benchmarks.agents", kind, "--trajectories", str(trajectories)], parts, FIGURES, read)


def _doing(trajectories: int, parts: int, rows: Sequence[tuple[str, str, str]]) -> tuple[Variant, ...]:
    def variant(name: str, kind: str, text: str) -> Variant:
        return Variant(name, text, lambda: step(kind, trajectories, parts))

    return tuple(variant(*row) for row in rows)


_ALL: Final = (
    (BASELINE, "none", "no telemetry: what an event loop takes"),
    (OURS, "ours-otlp", "exporters: otlp; every span kept and sent; limit of memory raised"),
    (
        f"{OURS}, files",
        "ours-file",
        "exporters: file; beyond its number of whole trajectories only their roots are written",
    ),
    (f"{OURS}, metrics", "ours-prometheus", "exporters: prometheus: spans are made, and go nowhere"),
    ("opentelemetry", "opentelemetry", "SDK, the same spans and histograms by hand, OTLP over HTTP, none dropped"),
)
_RAY: Final = (
    *_ALL[:2],
    (
        "rl_insight",
        "rl_insight",
        "0.3.0, a call of its actor for each span; the actor's CPU is included, Ray's own is not",
    ),
)
_TITLE: Final = "an agent's training step cheaper than with the OpenTelemetry SDK, CPU"

CASES: Final = (
    Case(
        "agent-loop",
        f"CPU of a trajectory of {SPANS} spans, {PART} of them at a time, until everything has arrived",
        _doing(PART, PART, _ALL),
        (Target(_TITLE, None, {"opentelemetry": 20}),),
        unit="us",
        clock="cpu",
        steady=False,
        rounds=1,
        figures=FIGURES,
    ),
    Case(
        "agent-loop-step",
        f"CPU of a whole step: {STEP:,} trajectories, {SPANS * STEP:,} spans, until everything has arrived",
        _doing(STEP, 1, _ALL),
        (Target(f"{_TITLE}, whole", None, {"opentelemetry": 20}),),
        unit="s",
        clock="cpu",
        steady=False,
        rounds=1,
        suite="end_to_end",
        seconds=1200,
        figures=FIGURES,
    ),
    Case(
        "agent-loop-ray",
        f"CPU of a trajectory of {SPANS} spans, {FEW} of them: what proportion has a step of {STEP:,}",
        _doing(FEW, FEW, _RAY),
        unit="us",
        clock="cpu",
        steady=False,
        rounds=1,
        suite="ray",
        figures=FIGURES,
    ),
)
