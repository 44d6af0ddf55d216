# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the recording tests: fresh interpreters, both ways to reach OpenTelemetry's context, a real SDK."""

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import opentelemetry.context
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import verl_otel
from verl_otel.recording import api, context, series, span_metrics
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.sampling import POLICY
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER


@pytest.fixture(autouse=True)
def clean_context(monkeypatch):
    """Start with an empty context and default settings, and put both back, whatever a test leaves behind."""
    for holder, name in (
        (POLICY, "ratio"),
        (POLICY, "whole_per_step"),
        (POLICY, "share_above"),
        (RECORDER, "capacity"),
        (RECORDER, "capture_content"),
    ):
        monkeypatch.setattr(holder, name, getattr(holder, name))
    token = opentelemetry.context.attach(opentelemetry.context.Context())
    yield
    opentelemetry.context.detach(token)
    RECORDER.open_spans.clear()
    RECORDER.ended.clear()


class _Hidden:
    """OpenTelemetry's runtime context without the private variable that we would like to find."""

    def __init__(self, real):
        self.attach, self.get_current, self.detach = real.attach, real.get_current, real.detach


@pytest.fixture(params=["private", "public"])
def context_path(request, monkeypatch):
    """Reach the current context by OpenTelemetry's private variable, and by its public functions."""
    if request.param == "public":
        monkeypatch.setattr(opentelemetry.context, "_RUNTIME_CONTEXT", _Hidden(opentelemetry.context._RUNTIME_CONTEXT))
    context.load()
    assert context.context_access().private is (request.param == "private")
    yield request.param
    monkeypatch.undo()
    context.load()


@pytest.fixture
def both_paths(context_path, recorded):
    """Record in memory, once for each way to reach the current context."""
    return recorded


@pytest.fixture
def no_series(monkeypatch):
    """Start as a process that has no series yet, and forget those of the test: they live as long as a process."""
    monkeypatch.setattr(series._Registry, "series", {})
    monkeypatch.setattr(series._Registry, "sizes", {})
    _forget_usual_series()
    yield
    _forget_usual_series()


def _forget_usual_series():
    """Have every site look for its series again: it would record to one that is never drained."""
    span_metrics._cache.clear()
    api._find_timed.cache_clear()
    for thing in gc.get_objects():
        if type(thing) is CallSite:
            thing.default_series.clear()
            thing.token_series.clear()


@pytest.fixture
def is_outside():
    """Return whether no span is current, as OpenTelemetry sees it."""
    return lambda: trace.get_current_span() is trace.INVALID_SPAN


@pytest.fixture
def alive_spans():
    """Return the number of spans that something in this process still holds."""

    def count():
        gc.collect()
        # no isinstance: it asks objects of others for their class, and some of those raise
        return sum(issubclass(type(thing), Span) for thing in gc.get_objects())

    return count


@pytest.fixture
def sdk():
    """Return a tracer of the real OpenTelemetry SDK and the exporter that collects its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("user"), exporter
    provider.shutdown()


@pytest.fixture
def run_python(tmp_path):
    """Run a script in a fresh interpreter and return what it printed. It must end in time and without an error."""

    def run(script, *arguments, seconds=90, **environment):
        file = tmp_path / f"script_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(script))
        top = str(Path(verl_otel.__file__).resolve().parent.parent)
        done = subprocess.run(
            [sys.executable, str(file), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": top, **environment},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
