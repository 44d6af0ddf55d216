# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP calls of rewards belong to the reward: with OpenTelemetry's own instrumentation, a real server and a real client."""

import asyncio
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import verl_otel
from tests.builders import hooks
from verl_otel.integrations import aiohttp as integration
from verl_otel.integrations import patch, spans
from verl_otel.recording.state import RECORDER

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")
from opentelemetry.instrumentation import aiohttp_client as instrumentation

WORKER = """
class RewardLoopWorker:
    def __init__(self):
        self._init_reward_fn()

    def _init_reward_fn(self):
        self.ready = True
"""


@pytest.fixture
def worker(loaded, recorded, sent):
    """A reward worker's process: the worker is made, and nothing else is done."""
    integration.install()
    module = loaded(WORKER)
    hooks.install(integration.HOOKS, module, "RewardLoopWorker._init_reward_fn")
    plain = aiohttp.ClientSession.__init__
    yield module.RewardLoopWorker()
    integration.uninstall()
    assert aiohttp.ClientSession.__init__ is plain


@asynccontextmanager
async def serve(answer=None):
    """A real server on this machine; gives its URL and the headers of each request."""
    from aiohttp import web

    seen = []

    async def handle(request):
        seen.append(dict(request.headers))
        if answer is not None:
            await answer()
        return web.json_response({"score": 1.0})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


async def post(url):
    async with aiohttp.ClientSession() as session, session.post(url, json={"x": 1}) as response:
        return await response.json()


def header_of(span):
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-03"


async def test_what_may_be_secret_is_left_out(worker, recorded, sent):
    """Neither the query of a URL nor its password is kept."""
    async with serve() as (url, _):
        with verl_otel.reward("math"):
            await post(f"{url.replace('//', '//user:word@')}/a?key=secret#part")
    (span,) = sent()
    texts = [str(value) for value in span.attributes.values()]
    assert f"{url}/a" in texts
    assert not [text for text in texts if "secret" in text or "word" in text or "part" in text]


@pytest.mark.parametrize("content", [False, True])
async def test_a_call_that_fails(worker, recorded, sent, monkeypatch, content):
    """A failure reaches the caller unchanged and marks the span; its message is kept if content is."""
    monkeypatch.setattr(RECORDER, "capture_content", content)
    async with serve() as (url, _):
        pass
    with verl_otel.reward("math"), pytest.raises(aiohttp.ClientConnectorError, match="Cannot connect"):
        await post(url)
    (span,) = sent()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert len(span.events) == content


async def test_no_metric_of_its_own(worker, recorded, sent, monkeypatch):
    """The instrumentation's histogram, which is in no catalogue, is not sent."""
    reader = InMemoryMetricReader()
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", MeterProvider(metric_readers=[reader]))
    assert isinstance(metrics.get_meter_provider(), MeterProvider)
    async with serve() as (url, _):
        with verl_otel.reward("math"):
            await post(url)
    assert reader.get_metrics_data() is None or not reader.get_metrics_data().resource_metrics


async def test_only_a_worker_switches_it_on(loaded, recorded, sent):
    """Hooks that are installed, and modules that are imported, change nothing of aiohttp."""
    plain = aiohttp.ClientSession.__init__
    integration.install()
    module = loaded(WORKER)
    hooks.install(integration.HOOKS, module, "RewardLoopWorker._init_reward_fn")
    assert aiohttp.ClientSession.__init__ is plain
    module.RewardLoopWorker()
    assert aiohttp.ClientSession.__init__ is not plain
    integration.uninstall()
    assert aiohttp.ClientSession.__init__ is plain


@pytest.mark.parametrize("missing", ["recording", "package"])
def test_off_means_off(request, loaded, monkeypatch, missing):
    """With telemetry off, or without the optional package, a worker works and changes nothing of aiohttp."""
    if missing == "package":
        request.getfixturevalue("recorded")
        monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.aiohttp_client", None)
    plain = aiohttp.ClientSession.__init__
    integration.install()
    module = loaded(WORKER)
    hooks.install(integration.HOOKS, module, "RewardLoopWorker._init_reward_fn")
    assert module.RewardLoopWorker().ready
    assert aiohttp.ClientSession.__init__ is plain


async def test_sessions_that_are_there_fall_silent(worker, recorded, sent):
    """After uninstalling, a session that was made before makes no more spans."""
    async with serve() as (url, seen), aiohttp.ClientSession() as session:
        integration.uninstall()
        with verl_otel.reward("math"):
            await (await session.post(url)).json()
    assert not sent()
    assert not [name for name in seen[0] if name.lower() == "traceparent"]


async def test_the_users_own_instrumentation_stays(loaded, recorded, sent):
    """Where the user has instrumented aiohttp, his is used and not taken away."""
    own = instrumentation.AioHttpClientInstrumentor()
    own.instrument()
    try:
        his = aiohttp.ClientSession.__init__
        module = loaded(WORKER)
        hooks.install(integration.HOOKS, module, "RewardLoopWorker._init_reward_fn")
        module.RewardLoopWorker()
        integration.uninstall()
        assert aiohttp.ClientSession.__init__ == his
        assert own.is_instrumented_by_opentelemetry
    finally:
        own.uninstrument()


@pytest.mark.parametrize(("name", "on"), [("RewardComputeWorker", True), ("RewardLoopWorker", True), ("Other", False)])
def test_the_remote_managers_worker_is_known_by_name(recorded, sent, name, on):
    """The remote manager's actor cannot be patched: it is known by the first call that Ray's carrier sees."""
    integration.install()
    assert spans.OPENERS["compute_score"](name) is None
    assert instrumentation.AioHttpClientInstrumentor().is_instrumented_by_opentelemetry is on


@pytest.mark.parametrize("said", [{}, {"traceparent": "00-000000000000000000000000000000aa-00000000000000bb-01"}])
async def test_a_router_takes_up_its_callers_context(loaded, recorded, sent, said):
    """What the router does belongs to who asked it, by the headers of the request; the next request starts anew."""
    module = loaded(
        "class NaiveRouter:\n    def __init__(self): ...\n    async def _make_async_request(self, request, endpoint): return await request.work()"
    )
    hooks.install(integration.HOOKS, module, "NaiveRouter.__init__", "NaiveRouter._make_async_request")
    seen = []

    async def work():
        seen.append(trace.get_current_span().get_span_context().span_id)

    router = module.NaiveRouter()
    await router._make_async_request(SimpleNamespace(headers=said, work=work), "classify")
    await router._make_async_request(request=SimpleNamespace(headers={}, work=work), endpoint="classify")
    await work()
    with verl_otel.span("server") as server:  # FastAPI's own, or the user's, which has taken the context up already
        await router._make_async_request(SimpleNamespace(headers=said, work=work), "classify")
    assert seen == [0xBB if said else 0, 0, 0, server.get_span_context().span_id]


@asynccontextmanager
async def route(worker_url):
    """The router of verl, as it runs in its process; gives its address."""
    uvicorn = pytest.importorskip("uvicorn")
    router = pytest.importorskip("verl.experimental.reward_loop.router.naive_router").NaiveRouter([worker_url])
    server = uvicorn.Server(uvicorn.Config(router.app, host="127.0.0.1", port=0, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has nothing to wait for
        await asyncio.sleep(0.01)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # verl's own
async def test_verls_own_worker_and_router(recorded, sent):
    """A request of verl's own to a reward model, through verl's own router, is one line of spans from the reward to the model's server."""
    reward_loop = pytest.importorskip("verl.experimental.reward_loop.reward_loop", reason="verl is not installed")
    integration.install()
    async with serve() as (url, seen), route(url) as address:
        worker = SimpleNamespace(reward_router_address=address)
        with verl_otel.reward("math"):
            output = await reward_loop.RewardLoopWorker._post_request(worker, {"input": "x"}, "classify")
    assert output == {"score": 1.0}
    inner, outer = (span for span in sent() if span.kind is trace.SpanKind.CLIENT)
    parents = {
        span.context.span_id: span.parent.span_id for span in sent()
    }  # FastAPI may have spans of its own between
    way = [inner.context.span_id]
    while way[-1] in parents:
        way.append(parents[way[-1]])
    assert outer.context.span_id in way
    assert way[-1] == recorded.span("verl.reward").span_id
    found = {name.lower(): value for name, value in seen[0].items()}
    assert found["traceparent"] == header_of(inner)


FIRST_CALL = """
import asyncio, aiohttp
import verl_otel, verl_otel.plugin
from verl_otel.integrations import patch, spans

async def main():
    from aiohttp import web
    async def handle(request):
        return web.Response()
    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    spans.OPENERS["compute_score"]("RewardLoopWorker")
    with verl_otel.reward("math"):
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/")
    await runner.cleanup()

asyncio.run(main())
"""


@pytest.fixture
def all_sessions(recorded, sent):
    """A process with ``VERL_OTEL_AIOHTTP=all``, in which nothing has switched the instrumentation on."""
    plain = aiohttp.ClientSession.__init__
    patch.register(integration.SESSIONS)
    yield
    integration.uninstall()
    patch.undo_all()
    assert aiohttp.ClientSession.__init__ is plain


async def test_calls_of_a_tool_are_client_spans_from_the_first_session_on(all_sessions, recorded, sent):
    """By a setting, in whichever process; a call without a span around it is left alone."""
    async with serve() as (url, seen):
        for _ in range(2):
            with verl_otel.tool("search"):
                await post(url)
        await post(url)
    assert {span.kind for span in sent()} == {trace.SpanKind.CLIENT}
    assert [span.parent.span_id for span in sent()] == [
        span.span_id for span in recorded.spans if span.name == "execute_tool search"
    ]
    assert [headers.get("traceparent") for headers in seen] == [*map(header_of, sent()), None]


@pytest.mark.full
@pytest.mark.parametrize(("value", "names"), [("rewards", set()), ("all", {"GET"})])
def test_a_setting_includes_the_calls_of_tools(clean_python, files_of, value, names):
    """The span of the very first call is in the files; by default it is none."""
    code = FIRST_CALL.replace('spans.OPENERS["compute_score"]("RewardLoopWorker")', "").replace("reward(", "tool(")
    clean_python("-c", code, VERL_OTEL_AIOHTTP=value, **files_of.environ)
    assert set(files_of.spans()) - {"execute_tool math"} == names


@pytest.mark.full
def test_the_first_call_is_sent(clean_python, files_of):
    """The span of a process's very first call is in its files, with ours."""
    clean_python("-c", FIRST_CALL, **files_of.environ)
    spans = files_of.spans()
    assert spans["GET"].parent_id == spans["verl.reward"].span_id
