# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry's way to instrument verl: on, off and on again, and by ``opentelemetry-instrument``."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.instrumentation.instrumentor")

pytestmark = pytest.mark.full

TRACKING = """
class Tracking:
    def __init__(self, project_name, experiment_name, default_backend="console", config=None): ...
    def log(self, data, step, backend=None): return "logged"
    def finish(self, exit_code=0): ...
"""
SCRIPT = """
import os, sys, threading
from verl_otel import session
from verl_otel.integrations import patch
from verl_otel.instrumentor import VerlInstrumentor
finders = list(sys.meta_path)
def state():
    import verl.utils.tracking
    plain = verl.utils.tracking.Tracking.log.__code__.co_filename == verl.utils.tracking.__file__
    return session.current_session() is not None, not plain, sys.meta_path != finders, threading.active_count()
instrumentor = VerlInstrumentor()
"""
ON, OFF = "(True, True, True, 2)", "(False, False, False, 1)"


@pytest.fixture
def process(clean_python, tmp_path):
    """Run a script beside a small stand-in for verl; returns what it printed."""
    package = tmp_path / "site" / "verl" / "utils"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "tracking.py").write_text(TRACKING)
    info = tmp_path / "site" / "verl-0.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n")

    def run(code, *command, **variables):
        script = tmp_path / "script.py"
        script.write_text(code)
        environ = {
            "PYTHONPATH": str(tmp_path / "site"),
            "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"),
            "VERL_OTEL_RUN_ID": "r1",
            **variables,
        }
        return clean_python(script, prefix=command, cwd=tmp_path, **environ).stdout.splitlines()

    return run


def test_instrument_and_uninstrument_are_reversible(process):
    """Instrumenting patches verl and starts a session; uninstrumenting puts everything back; both can be repeated."""
    code = """
instrumentor.uninstrument()
for _ in range(2):
    instrumentor.instrument()
    print(state())
    instrumentor.instrument()
    instrumentor.uninstrument()
    print(state())
"""
    assert process(SCRIPT + code) == [ON, OFF] * 2


def test_verl_may_have_been_imported_before(process):
    """A verl that is there already is patched at once, and put back."""
    code = "import verl.utils.tracking\ninstrumentor.instrument()\nprint(state())\ninstrumentor.uninstrument()\nprint(state())"
    assert process(SCRIPT + code) == [ON, OFF]


def test_a_switch_that_is_off_wins(process):
    """VERL_OTEL_ENABLED=0, which the user has set, keeps the instrumentor from turning us on."""
    code = "instrumentor.instrument()\nprint(state())"
    assert process(SCRIPT + code, VERL_OTEL_ENABLED="0") == [OFF]


def test_the_environment_is_put_back(process):
    """After uninstrument the processes that are started later are not instrumented."""
    code = "instrumentor.instrument()\ninstrumentor.uninstrument()\nprint(os.environ.get('VERL_OTEL_ENABLED'))"
    assert process(SCRIPT + code) == ["None"]


def test_providers_that_are_passed_get_spans_and_metrics(process):
    """As of other instrumentations; the files have them, too, when uninstrument returns, and the environment of the workers names the exporter."""
    code = """
import verl_otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory, reader, tracer = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
tracer.add_span_processor(SimpleSpanProcessor(memory))
instrumentor.instrument(tracer_provider=tracer, meter_provider=MeterProvider([reader]))
print(session.current_session().config.exporters, session.current_session().variables)
with verl_otel.step(1):
    pass
instrumentor.uninstrument()
with verl_otel.step(2):
    pass
print([span.name for span in memory.get_finished_spans()])
print("verl.step.duration" in reader.get_metrics_data().to_json())
print("".join(path.read_text() for path in __import__("pathlib").Path("runs/r1").glob("traces-*")).count("verl.step\\""))
"""
    assert process(SCRIPT + code) == [
        "('file', 'sdk') {'VERL_OTEL_EXPORTERS': 'file,sdk'}",
        "['verl.step']",
        "True",
        "1",
    ]


def test_it_says_which_verl_it_needs(process, tmp_path):
    """With a verl that is too old OpenTelemetry does not call us, and nothing is patched."""
    assert process(SCRIPT + "print(instrumentor.instrumentation_dependencies())") == ["('verl >= 0.7',)"]
    info = tmp_path / "site" / "verl-0.9.1.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.6.0\n")
    assert process(SCRIPT + "instrumentor.instrument()\nprint(state())") == [OFF]


def test_by_the_command_of_opentelemetry(process, tmp_path):
    """``opentelemetry-instrument`` finds us by our entry point and instruments verl without a change to the script."""
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    nothing_else = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    code = """
from verl.utils.tracking import Tracking
from verl_otel.integrations import patch
tracking = Tracking("p", "e")
tracking.log({"actor/loss": 0.5}, 1)
tracking.finish()
print(sorted(patch.status.values()))
"""
    assert process(code, command, **nothing_else)[-1] == str(
        [*["installed"] * 3, "missing"]
    )  # this verl has no RLInsightLogger
    (path,) = (tmp_path / "runs" / "r1").glob("metrics-*")
    assert '"verl.actor.loss"' in path.read_text()
