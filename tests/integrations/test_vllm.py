# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""vLLM's spans belong to their callers, whatever becomes of a request, and its tracing cannot kill it.

The engine is a fake with the real signatures (`engines`); a contract test compares them with the released wheel.
"""

import asyncio
import gc
import importlib
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import verl_otel
from verl_otel.integrations import patch
from verl_otel.integrations import vllm as integration

FAKES = Path(__file__).resolve().parents[1] / "fakes" / "engines"
ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS = {"traceparent": "00-000000000000000000000000000000aa-00000000000000bb-01"}


@pytest.fixture
def fakes(monkeypatch):
    """Make the fake importable, not yet patched."""
    monkeypatch.syspath_prepend(FAKES)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def vllm(fakes):
    """The fake engine's module, patched as it is imported."""
    integration.install()
    return importlib.import_module("vllm.v1.engine.async_llm")


@pytest.fixture
def sent(sent):
    """The spans that leave by the global provider, by request id."""
    return lambda: {span.attributes["gen_ai.request.id"]: span for span in sent()}


def make_engine(vllm, *, endpoint="grpc://collector:4317", disable_log_stats=True):
    """Make an engine as verl does, whose default has no statistics."""
    config = SimpleNamespace(observability_config=SimpleNamespace(otlp_traces_endpoint=endpoint))
    return vllm.AsyncLLM.from_vllm_config(vllm_config=config, disable_log_stats=disable_log_stats)


async def ask(engine, request_id, params=None, **more):
    """Ask as verl does, and read the answer to its end; after it the span has been made."""

    async def read():
        return [output async for output in stream]

    stream = engine.generate(prompt={"prompt_token_ids": [1]}, sampling_params=params, request_id=request_id, **more)
    outputs = await asyncio.wait_for(read(), 60)  # an engine that died answers nothing
    await asyncio.sleep(0)
    return outputs


async def test_a_request_joins_the_span_around_it(vllm, sent, recorded):
    """The engine's span is a child of the span in which verl called it; with verl's defaults, which kill an engine otherwise."""
    engine = make_engine(vllm)
    with verl_otel.trajectory("u", 0), verl_otel.llm("m"):
        await ask(engine, "r")
    span, parent = sent()["r"], recorded.span("chat m")
    assert (span.context.trace_id, span.parent.span_id) == (parent.trace_id, parent.span_id)
    assert engine.error is None


async def test_many_requests_join_their_own(vllm, sent, recorded):
    """Requests that run at the same time do not take each other's parents."""
    engine = make_engine(vllm)

    async def one(number):
        with verl_otel.trajectory(f"u{number}", 0):
            await ask(engine, f"r{number}")

    await asyncio.gather(*(one(number) for number in range(50)))
    parents = {span.attributes["verl.sample.uid"]: span.span_id for span in recorded.spans}
    assert {f"r{uid[1:]}": span_id for uid, span_id in parents.items()} == {
        request_id: span.parent.span_id for request_id, span in sent().items()
    }


async def test_what_the_caller_gave_stays(vllm, sent, recorded):
    """Trace headers that a caller passes himself, as vLLM's HTTP server does, win over the current span."""
    engine = make_engine(vllm)
    with verl_otel.span("mine"):
        await ask(engine, "r", trace_headers=HEADERS)
    assert sent()["r"].parent.span_id == 0xBB


@pytest.mark.full
async def test_an_aborted_request_keeps_its_parent(vllm, sent, recorded):
    """A request that a weight sync aborts joins its caller, although the engine's core has lost its headers."""
    engine = make_engine(vllm)

    async def one():
        with verl_otel.trajectory("u", 0):
            return await ask(engine, "r", "hold")

    with verl_otel.span("other"):
        task = asyncio.create_task(one())
        await asyncio.sleep(0.01)
        await engine.pause_generation(mode="abort")
        (output,) = await task
    assert output.finish_reason == "abort"
    assert sent()["r"].parent.span_id == recorded.span("verl.trajectory").span_id


async def test_a_request_without_a_span_is_a_root(vllm, sent, recorded):
    """A request outside of any span does not become a child of what launched the engine."""
    with verl_otel.span("launch"):
        engine = make_engine(vllm)
        await asyncio.sleep(0)
    await ask(engine, "r")
    assert sent()["r"].parent is None


async def test_what_is_not_sampled_makes_no_span(vllm, sent, recorded):
    """The engine's span of a request whose trace is not kept is not kept."""
    engine = make_engine(vllm)
    context = SpanContext(0xAA, 0xBB, is_remote=True, trace_flags=TraceFlags(0))
    with trace.use_span(NonRecordingSpan(context)):
        await ask(engine, "r")
    assert not sent()


@pytest.mark.full
async def test_cancelled_requests_leave_nothing(vllm, sent, recorded):
    """Requests that are cancelled or given up take what we keep with them, and make no span."""
    engine = make_engine(vllm)

    async def one(number):
        with verl_otel.trajectory(f"u{number}", 0):
            await ask(engine, f"r{number}", "hold")

    tasks = [asyncio.create_task(one(number)) for number in range(20)]
    await asyncio.sleep(0.01)
    states = [weakref.ref(state) for state in engine.output_processor.request_states.values()]
    assert len(states) == 20
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    del task, tasks
    gc.collect()
    assert not [state for state in states if state() is not None]
    assert not sent()


async def test_an_engine_without_statistics_lives(fakes, sent, recorded, caplog):
    """An engine that was made before we were there serves on, without spans, and one line says why."""
    vllm = importlib.import_module("vllm.v1.engine.async_llm")
    engine = make_engine(vllm)
    integration.install()
    for number in range(3):
        assert await ask(engine, f"r{number}")
    assert engine.error is None
    assert not sent()
    assert caplog.text.count("keeps no statistics") == 1


async def test_a_failure_of_tracing_does_not_end_the_engine(vllm, sent, recorded, swallow, monkeypatch):
    """Whatever vLLM's tracing raises, the requests are served."""
    monkeypatch.setattr("vllm.v1.engine.output_processor.instrument_manual", lambda **_: 1 / 0)
    engine = make_engine(vllm)
    with verl_otel.span("mine"):
        for number in range(3):
            assert await ask(engine, f"r{number}")
    assert engine.error is None


async def test_without_an_endpoint_nothing_changes(vllm, sent, recorded):
    """An engine whose tracing nobody asked for gets no headers and no statistics."""
    engine = make_engine(vllm, endpoint=None)
    seen = []
    original = engine.output_processor.add_request
    engine.output_processor.add_request = lambda request, *rest: (seen.append(request), original(request, *rest))
    with verl_otel.span("mine"):
        await ask(engine, "r")
    assert not engine.log_stats
    assert not await engine.is_tracing_enabled()
    assert seen[0].trace_headers is None
    assert not sent()


async def test_off_means_off(vllm, sent):
    """With telemetry off the engine traces as it would without us, only that it does not die."""
    engine = make_engine(vllm, disable_log_stats=False)
    with trace.use_span(NonRecordingSpan(SpanContext(0xAA, 0xCC, is_remote=True, trace_flags=TraceFlags(1)))):
        await ask(engine, "r")
    assert sent()["r"].parent is None


async def test_statistics_stay_on_where_they_are_on(vllm, sent, recorded):
    """Every way to make an engine keeps working, with the arguments by position or by name."""
    config = SimpleNamespace(observability_config=SimpleNamespace(otlp_traces_endpoint="grpc://c:4317"))
    for engine in (
        make_engine(vllm, disable_log_stats=False),
        vllm.AsyncLLM(config, object, False),
        vllm.AsyncLLM(config, object, log_stats=False),
        vllm.AsyncLLM(vllm_config=config, executor_class=object, log_stats=False),
    ):
        assert engine.log_stats is True


@pytest.mark.parametrize("before", [None, "http://mine:4318/v1/traces"])
async def test_the_users_endpoint_stays_his(vllm, sent, recorded, monkeypatch, before):
    """A variable tells the children of vLLM where its traces go; after they started it says what the user said."""
    if before is not None:
        monkeypatch.setenv(ENDPOINT, before)
    else:
        monkeypatch.setenv(ENDPOINT, "to be restored by the test")
        monkeypatch.delenv(ENDPOINT)
    make_engine(vllm)
    assert os.environ.get(ENDPOINT) == before


async def test_a_missing_place_costs_itself_only(fakes, sent, recorded):
    """A release without one of the places keeps the rest, and `status` says what is missing."""
    output = importlib.import_module("vllm.v1.engine.output_processor")
    output.OutputProcessor.keep = output.OutputProcessor.add_request
    del output.OutputProcessor.add_request
    integration.install()
    output.OutputProcessor.add_request = output.OutputProcessor.keep
    vllm = importlib.import_module("vllm.v1.engine.async_llm")
    found = {name.partition(":")[2]: state for name, state in patch.status.items()}
    assert found.pop("OutputProcessor.add_request") == "missing"
    assert set(found.values()) == {"installed"}
    engine = make_engine(vllm)
    with verl_otel.span("mine"):
        await ask(engine, "r")
    assert sent()["r"].parent.span_id == recorded.span("mine").span_id


ENGINE_TRACES = """
import asyncio, sys
from types import SimpleNamespace
import verl_otel.plugin
from vllm.v1.engine.async_llm import AsyncLLM

async def main():
    config = SimpleNamespace(observability_config=SimpleNamespace(otlp_traces_endpoint=None))
    engine = AsyncLLM.from_vllm_config(vllm_config=config, disable_log_stats=True)
    with verl_otel.trajectory("u", 0), verl_otel.llm("m"):
        async for _ in engine.generate(prompt=None, sampling_params=None, request_id="r"):
            pass
    await asyncio.sleep(0)
    assert config.observability_config.otlp_traces_endpoint is None
    print(await engine.is_tracing_enabled(), engine.log_stats, "prometheus_client" in sys.modules)

asyncio.run(main())
"""


@pytest.mark.full
@pytest.mark.parametrize(("setting", "names"), [("1", {"llm_request"}), ("0", set())])
def test_the_setting_sends_them_with_ours(clean_python, files_of, setting, names):
    """With VERL_OTEL_ENGINE_TRACES=1 and no endpoint the first request's span is already in our files, below our own; else none is."""
    variables = {"PYTHONPATH": str(FAKES), "VERL_OTEL_ENGINE_TRACES": setting}
    done = clean_python("-c", ENGINE_TRACES, **files_of.environ, **variables)
    on = setting == "1"
    assert done.stdout.split() == [str(on), str(on), "False"]
    spans = files_of.spans()
    assert set(spans) - {"verl.trajectory", "chat m"} == names
    if names:
        assert spans["llm_request"].parent_id == spans["chat m"].span_id
        assert spans["llm_request"].trace_id == spans["verl.trajectory"].trace_id
