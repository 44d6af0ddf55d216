# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts that are made up for one test, and everything that was patched put back after it."""

import importlib
import sys
import types
from collections import Counter

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from verl_otel import integrations
from verl_otel.integrations import patch


@pytest.fixture(autouse=True)
def put_back():
    """Undo every patch at the end of a test."""
    yield
    integrations.uninstall()
    assert not [each for each in sys.meta_path if type(each).__module__.startswith("verl_otel")]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Make a package of modules that can be imported: ``host(a="x = 1", b="...")`` makes ``host_7.a`` and ``host_7.b``."""
    made = Counter()

    def make(**modules):
        name = f"host_{id(made)}_{made.total()}"
        made[name] += 1
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(modules.pop("init", ""))
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield make
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in made:
            del sys.modules[name]


@pytest.fixture
def loaded(host):
    """Make one module from its source and import it."""

    def make(source):
        return importlib.import_module(f"{host(a=source)}.a")

    return make


@pytest.fixture
def hook():
    """A hook that calls a function with the module, and counts how often it ran."""

    def make(module, symbol="f", install=None):
        ran = []

        def run(found):
            ran.append(found)
            if install is not None:
                install(found)

        return types.SimpleNamespace(hook=patch.Hook(module, symbol, run, "no test"), ran=ran)

    return make


@pytest.fixture
def drive():
    """Run a coroutine that waits for nothing to its end, without an event loop."""

    def run(coroutine):
        with pytest.raises(StopIteration) as end:
            coroutine.send(None)
        return end.value.value

    return run


@pytest.fixture
def sent(monkeypatch):
    """The spans that leave by the global provider, in the order in which they ended."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter.get_finished_spans


@pytest.fixture
def files_of(read_run, tmp_path):
    """Variables with which a process writes its telemetry to files, and the spans in these files by name."""
    environ = {
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_EXPORTERS": "file",
        "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"),
        "VERL_OTEL_RUN_ID": "r",
    }

    def spans():
        return {span.name: span for span in read_run(tmp_path / "runs" / "r").spans}

    return types.SimpleNamespace(environ=environ, spans=spans)
