# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What verl-otel costs a process that does not use it: no import, no record, no difference."""

import pytest

pytestmark = pytest.mark.smoke

USES = {
    "import": "import verl_otel",
    "decorators": """
import asyncio
import verl_otel

@verl_otel.tool("t")
def tool(x): return x

@verl_otel.llm("qwen")
async def ask(x): return x

@verl_otel.span
def produce(x): yield x

@verl_otel.timed
def timed(x): return x

@verl_otel.timed("g")
async def stream(x): yield x

@verl_otel.step
def step(x): return x

async def main():
    return [x async for x in stream(1)], await ask(1)

assert tool(1) == timed(1) == step(1) == 1
assert list(produce(1)) == [1]
assert asyncio.run(main()) == ([1], 1)
""",
    "blocks": """
import verl_otel
with verl_otel.step(1) as step, verl_otel.phase("gen"), verl_otel.timed("x"):
    step.set_attribute("key", "value")
    step.add_event("event", {"key": 1})
    step.record_exception(ValueError())
    assert not step.is_recording()
""",
    "instruments": """
import verl_otel
verl_otel.counter("c").add(1, key="value")
verl_otel.gauge("g").set(1)
verl_otel.histogram("h").record(1)
""",
    "public names": """
import verl_otel
assert {name for name in dir(verl_otel) if not name.startswith("__")} == set(verl_otel.__all__) - {"__version__"}
try:
    verl_otel.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
""",
}
NO_OPENTELEMETRY = """
import sys
loaded = [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]
assert not loaded, loaded
heavy = {"requests", "prometheus_client", "google", "numpy", "torch", "ray", "verl"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("use", USES)
def test_off_no_opentelemetry_module_is_loaded(run_python, use):
    """Importing verl_otel, decorating, calling and measuring load no OpenTelemetry module while telemetry is off."""
    run_python(USES[use] + NO_OPENTELEMETRY)


def test_init_switches_decorated_functions_on_and_shutdown_off(run_python):
    """Functions decorated before `init` record after it, and not after `shutdown`, and again after another `init`."""
    said = run_python("""
    import verl_otel
    from verl_otel.recording import collection, state

    @verl_otel.tool("t")
    def tool(): return 1

    @verl_otel.timed("timed.on.and.off")
    def timed(): return 1

    def totals():
        points = {p.instrument.name: p.value.samples for p in collection.collect().points if p.instrument.kind == "histogram"}
        return points.get("verl.tool.call.duration", 0), points.get("timed.on.and.off", 0)

    tool(), timed()
    print(*totals())
    for _ in range(2):
        verl_otel.init(exporters="none", drain_interval=60)
        tool(), timed()
        print(*totals())
        verl_otel.shutdown()
        tool(), timed()
        print(*totals())
    """)
    assert said.split("\n")[:5] == ["0 0", "1 1", "0 0", "1 1", "0 0"]
