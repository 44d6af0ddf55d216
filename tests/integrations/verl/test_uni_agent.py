# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""uni-agent: sessions are trajectories, requests to the gateway are their turns, and samples keep their origin.

The classes here have the methods and signatures of uni-agent at 6f4a7c9 (7 August 2026), which is in no package registry. With that package on
the path, ``test_the_real_package_has_what_is_hooked`` compares them.
"""

import asyncio
import contextvars
import importlib
import importlib.util
import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from verl_otel.integrations.patch import undo_all
from verl_otel.integrations.verl import lineage, uni_agent
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.recording.decorate import surround


@dataclass
class Output:
    """``uni_agent.gateway.session.Trajectory`` as far as it is read."""

    prompt_ids: list
    response_ids: list
    reward_score: float | None = None
    num_turns: int = 0
    extra_fields: dict = field(default_factory=dict)


class Queue:
    """``transfer_queue`` as far as it is patched."""

    def __init__(self):
        self.tags = []

    async def async_kv_batch_put(self, *, keys, fields, tags, partition_id):
        self.tags += tags


class OpenAICompatibleAgentFramework:
    """The framework: a session in its gateway, then its samples into the queue."""

    def __init__(self, gateway, queue, runner):
        self.gateway, self.queue, self.runner = gateway, queue, runner

    async def _run_session(
        self, *, sample_fields, sample_index, session_index, global_steps, runner_name, runner_config, sampling_params
    ):
        session_id = f"session-sample-{sample_index}-rollout-{session_index}"
        await self.gateway.create_session(session_id=session_id)
        try:
            await self.runner(session_id)
            outputs = await self.gateway.finalize_session(session_id=session_id)
        except Exception:
            await self.gateway.abort_session(session_id=session_id)
            raise
        return outputs, sample_fields

    async def _write_session_trajectories_to_tq(
        self, *, uid, session_index, trajectories, sample_fields, global_steps, partition_id
    ):
        tags = [{"status": "success"} for _ in trajectories]
        await self.queue.async_kv_batch_put(keys=[uid], fields=None, tags=tags, partition_id=partition_id)


class _GatewayActor:
    """The gateway, in a process of its own: a request arrives by HTTP, without a trace context."""

    def __init__(self, generate):
        self.generate = generate
        self.sessions = set()

    async def create_session(self, session_id, metadata=None, sampling_params=None):
        self.sessions.add(session_id)

    async def finalize_session(self, session_id):
        self.sessions.remove(session_id)
        return [Output([1, 2], [3], 0.0, 1), Output([1, 2], [3, 4, 5], 0.5, 2, {"max_global_steps": 4})]

    async def abort_session(self, session_id):
        self.sessions.discard(session_id)

    async def _handle_openai_chat_completions(self, session_id, payload):
        return await self.generate()

    async def _handle_anthropic_messages(self, session_id, payload):
        return await self.generate()


class Toolbox:
    """Tools by name; a call with another name is answered with a message."""

    def names(self):
        return ["shell"]

    async def call(self, name, args=None, *, timeout=None):
        if name not in self.names():
            return SimpleNamespace(text=f"{name!r} is not defined", status="format_error")
        if args == "slow":
            return SimpleNamespace(text="", status="timeout")
        return SimpleNamespace(text="done", status="ok")


class Sandbox:
    """A sandbox whose start is timed."""

    async def _run_start(self):
        pass


FAKES = {
    "uni_agent.framework.framework": {"OpenAICompatibleAgentFramework": OpenAICompatibleAgentFramework},
    "uni_agent.gateway.gateway": {"_GatewayActor": _GatewayActor},
    "uni_agent.tools.base": {"Toolbox": Toolbox},
    "uni_agent.sandbox.base": {"Sandbox": Sandbox},
}


@pytest.fixture
def hooked():
    """Install the hooks; undo them afterwards."""
    for hook in uni_agent.HOOKS:
        hook.install(SimpleNamespace(**FAKES[hook.module]))
    yield
    undo_all()
    assert not uni_agent._sessions, "a session that ended is forgotten"


async def post(gateway, session_id, handler="_handle_openai_chat_completions"):
    """Call a handler as the server of the gateway does: in a task that knows nothing of the caller's context."""
    call = getattr(gateway, handler)(session_id=session_id, payload={})
    return await contextvars.Context().run(asyncio.ensure_future, call)


async def run_session(framework, index=0, step=3, uid="u1"):
    fields = {"uid": uid, "raw_prompt": "secret words", "data_source": "math"}
    return await framework._run_session(
        sample_fields=fields,
        sample_index=0,
        session_index=index,
        global_steps=step,
        runner_name="react",
        runner_config=None,
        sampling_params={},
    )


async def write(framework, outputs, index=0, uid="u1"):
    await framework._write_session_trajectories_to_tq(
        uid=uid, session_index=index, trajectories=outputs, sample_fields={}, global_steps=3, partition_id="train"
    )


async def answer():
    """What the engine answers."""
    return "answer"


async def test_a_session_is_a_trajectory_with_turns_and_tools(recorded, hooked):
    gateway = _GatewayActor(answer)

    async def runner(session_id):
        assert await post(gateway, session_id) == "answer"
        await Toolbox().call("shell", {})
        await post(gateway, session_id, "_handle_anthropic_messages")

    await run_session(OpenAICompatibleAgentFramework(gateway, Queue(), runner))
    root = recorded.span("verl.trajectory")
    expected = {
        "verl.sample.uid": "u1",
        "verl.rollout.index": 0,
        "verl.step.number": 3,
        "verl.agent": "react",
        "verl.data.source": "math",
        "verl.reward.score": 0.5,
        "verl.messages": 2,
        "verl.response.tokens": 4,
    }
    assert expected.items() <= root.attributes.items()
    turns = [span for span in recorded.spans if span.name == "verl.turn"]
    assert [span.attributes["verl.turn.index"] for span in turns] == [0, 1]
    tool = recorded.span("execute_tool shell")
    assert {span.parent_id for span in (*turns, tool)} == {root.span_id}
    assert "secret" not in str(recorded.spans)


async def test_concurrent_sessions_are_not_mixed(recorded, hooked):
    gateway = _GatewayActor(lambda: asyncio.sleep(0))

    async def runner(session_id):
        for _ in range(3):
            await post(gateway, session_id)

    framework = OpenAICompatibleAgentFramework(gateway, Queue(), runner)
    await asyncio.gather(*(run_session(framework, index) for index in range(8)))
    roots = {span.trace_id: span for span in recorded.spans if span.name == "verl.trajectory"}
    assert sorted(root.attributes["verl.rollout.index"] for root in roots.values()) == list(range(8))
    turns = [span for span in recorded.spans if span.name == "verl.turn"]
    assert len(turns) == 24
    assert all(span.parent_id == roots[span.trace_id].span_id for span in turns)


async def test_samples_that_are_written_after_the_session_keep_its_origin(recorded, hooked):
    queue = Queue()
    queue.async_kv_batch_put = surround("lineage", lineage._tag)(queue.async_kv_batch_put)
    framework = OpenAICompatibleAgentFramework(_GatewayActor(answer), queue, lambda _: answer())
    finished = await asyncio.gather(*(run_session(framework, index) for index in range(3)))
    for index, (outputs, _) in enumerate(finished):
        await write(framework, outputs, index)
    roots = {span.attributes["verl.rollout.index"]: span for span in recorded.spans if span.name == "verl.trajectory"}
    origins = [Origin.decode(tag["verl_otel"]) for tag in queue.tags]
    assert [origin.span_id for origin in origins] == [roots[index // 2].span_id for index in range(6)]
    assert {(origin.uid, origin.score, origin.version) for origin in origins} == {("u1", 0.5, 4)}
    assert not uni_agent._origins


async def test_samples_of_a_session_that_was_not_recorded_have_no_tag(hooked):
    queue = Queue()
    queue.async_kv_batch_put = surround("lineage", lineage._tag)(queue.async_kv_batch_put)
    framework = OpenAICompatibleAgentFramework(_GatewayActor(answer), queue, lambda _: answer())
    outputs, _ = await run_session(framework)
    await write(framework, outputs)
    assert queue.tags == [{"status": "success"}] * 2


async def test_a_failed_session_is_a_failed_trajectory_and_its_error_is_not_changed(recorded, hooked):
    gateway = _GatewayActor(answer)

    async def runner(_session_id):
        raise ZeroDivisionError("secret")

    with pytest.raises(ZeroDivisionError, match="secret"):
        await run_session(OpenAICompatibleAgentFramework(gateway, Queue(), runner))
    assert recorded.span("verl.trajectory").attributes["error.type"] == "ZeroDivisionError"


async def test_a_request_of_an_unknown_session_is_answered_as_without_us(recorded, hooked):
    assert await post(_GatewayActor(answer), "unknown") == "answer"
    assert recorded.spans == []


@pytest.mark.parametrize(
    ("name", "argument", "span_name", "outcome"),
    [
        ("shell", None, "execute_tool shell", "success"),
        ("shell", "slow", "execute_tool shell", "timeout"),
        ("Jane Doe, 12 Main Street", None, "execute_tool _OTHER", "unknown_tool"),
        (None, None, "execute_tool _OTHER", "unknown_tool"),
    ],
)
async def test_tools_are_named_if_the_toolbox_has_them(recorded, hooked, name, argument, span_name, outcome):
    await Toolbox().call(name, argument)
    assert recorded.span(span_name).attributes["verl.outcome"] == outcome
    assert "Jane" not in str(recorded.spans)


async def test_the_start_of_a_sandbox_is_a_span(recorded, hooked):
    await Sandbox()._run_start()
    assert recorded.span("sandbox start")


async def test_what_is_kept_is_bounded(recorded, hooked, monkeypatch):
    monkeypatch.setattr(uni_agent, "MAX_SESSIONS", 10)
    gateway = _GatewayActor(answer)
    for number in range(50):
        await gateway.create_session(session_id=str(number))
    assert list(uni_agent._sessions) == [str(number) for number in range(40, 50)]
    uni_agent._sessions.clear()


def test_the_real_package_has_what_is_hooked():
    if importlib.util.find_spec("uni_agent") is None:
        pytest.skip("uni-agent is in no package registry: put a checkout of it on PYTHONPATH")
    for hook in uni_agent.HOOKS:
        owner, name = hook.symbol.split(".")
        real = getattr(getattr(importlib.import_module(hook.module), owner), name)
        ours = getattr(FAKES[hook.module][owner], name)
        taken = [
            parameter for parameter in inspect.signature(real).parameters if parameter != "_ray_trace_ctx"
        ]  # Ray's
        assert taken == list(inspect.signature(ours).parameters)
