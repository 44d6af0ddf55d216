# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Total CPU: the stand-ins are hooked as verl is, each side records the same, and what is missing is refused."""

import asyncio
import json
import subprocess
import sys
from collections import Counter

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import verl_otel
from benchmarks import calls
from benchmarks.backend import ATTRIBUTES
from benchmarks.hooks import __main__ as hooks
from benchmarks.hooks import stand_ins
from benchmarks.hooks.opentelemetry_sdk import OpenTelemetryWorker
from benchmarks.processes import TOP


def run(module, *arguments):
    """Run a module in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


EDGES = {
    ("verl.trajectory", ""): 3,
    ("verl.turn", "verl.trajectory"): 3 * stand_ins.TURNS,
    ("chat qwen3-8b", "verl.turn"): 3 * stand_ins.TURNS,
    ("execute_tool python", "verl.turn"): 3 * stand_ins.TURNS,
    ("verl.reward", "verl.trajectory"): 3,
}
"""Of three trajectories: names of a span and of its parent, and how many."""


def test_the_hooks_record_every_trajectory(recorded):
    """A trajectory through the hooks has as many spans as documented, each below the one that it belongs to."""
    worker = hooks.install_hooks(stand_ins.make_module())
    asyncio.run(stand_ins.run_trajectories(worker, 3))
    names = {span.span_id: span.name for span in recorded.spans}
    assert Counter((span.name, names.get(span.parent_id, "")) for span in recorded.spans) == EDGES
    assert sum(EDGES.values()) == 3 * stand_ins.SPANS


def test_the_sdk_records_the_same_trajectories():
    """By hand it has the same spans in the same trees."""
    kept = InMemorySpanExporter()
    sdk = OpenTelemetryWorker()
    sdk._tracers.add_span_processor(SimpleSpanProcessor(kept))
    asyncio.run(stand_ins.run_trajectories(sdk.make_worker(), 3))
    sdk.close()
    spans = kept.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    assert Counter((span.name, names[span.parent.span_id] if span.parent else "") for span in spans) == EDGES


@pytest.mark.full
@pytest.mark.parametrize("kind", ["file", "prometheus", "opentelemetry-otlp", "opentelemetry-metrics"])
def test_trajectories_are_delivered(kind):
    """The command measures trajectories on each side, and what is not kept is neither written nor sent."""
    result = run("benchmarks.hooks", kind, "--trajectories", 64)
    assert result["cpu"] > 0
    assert (result["bytes"] > hooks.LEAST_BYTES * stand_ins.SPANS * 64) == (kind in hooks.SENDING)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["none", "ours-metrics", "ours-file", "ours-otlp"])
def test_calls_are_delivered(kind):
    """The command measures calls; spans arrive where they are kept, with all four attributes."""
    result = run("benchmarks.calls", kind, "--calls", calls.PART)
    assert (result["bytes"] > calls.LEAST_BYTES * calls.PART) == (kind in calls.SENDING)


def test_both_sides_say_the_same(recorded):
    """Our span and our value of the histogram have the four attributes that the SDK's have."""
    from benchmarks.backends.ours import OursLabelled

    backend = OursLabelled.__new__(OursLabelled)
    backend._histogram = verl_otel.histogram("bench.work", unit="s")  # without a session, which the constructor starts
    backend.traced(calls.work)()
    assert dict(recorded.span("bench.work").attributes) == dict(ATTRIBUTES)
    (point,) = [point for point in recorded.points if point.instrument.name == "bench.work"]
    assert len(point.labels) == len(ATTRIBUTES)


@pytest.mark.full
def test_a_second_is_measured():
    """An idle process and one with open trajectories take CPU and threads, and write; a node is all of its processes."""
    command = ("benchmarks.hooks", "file", "--seconds", 2)
    busy = run(*command, "--open", 4)
    assert busy["cpu"] > 0
    assert busy["bytes"] > 0
    assert busy["threads"] > 2
    node = run(*command, "--processes", 2)
    assert node["threads"] > busy["threads"]
    assert node["mib"] > busy["mib"]
