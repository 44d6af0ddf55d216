# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""LLM calls of the client: nothing of ours is left on an object that verl or its user may send elsewhere, and each call is a turn."""

import asyncio
import types

import pytest
from opentelemetry import context, propagate

import verl_otel
from tests.builders import hooks
from verl_otel.integrations.verl import llm


class Client:
    """What verl's ``LLMServerClient`` is, as far as it matters here."""

    def __init__(self):
        model = types.SimpleNamespace(path="/models/small")
        rollout = types.SimpleNamespace(name="vllm")
        self.config = types.SimpleNamespace(actor_rollout_ref=types.SimpleNamespace(model=model, rollout=rollout))

    async def generate(self, request_id, *, prompt_ids):
        return types.SimpleNamespace(token_ids=[1], stop_reason="completed")


@pytest.fixture
def client():
    """A client whose calls are hooked."""
    module = types.ModuleType("host")
    module.LLMServerClient = type("LLMServerClient", (Client,), dict(vars(Client)))
    hooks.install(llm.HOOKS, module, "LLMServerClient.generate")
    return module.LLMServerClient()


@pytest.fixture
def resuming_client():
    """A client that calls the engine for each part of an interrupted generation, as verl's fully asynchronous one."""
    module = types.ModuleType("host")
    module.LLMServerClient = type("LLMServerClient", (Client,), dict(vars(Client)))

    class FullyAsyncLLMServerClient(module.LLMServerClient):
        async def generate(self, request_id, *, prompt_ids, parts=1):
            for _ in range(parts):
                output = await super().generate(request_id, prompt_ids=prompt_ids)
            return output

    module.FullyAsyncLLMServerClient = FullyAsyncLLMServerClient
    hooks.install(llm.HOOKS, module, "LLMServerClient.generate", "FullyAsyncLLMServerClient.generate")
    return module.FullyAsyncLLMServerClient()


async def test_a_turn_is_a_call_of_the_model(recorded, client):
    """A trajectory has as many turns as calls, one that failed included; a call outside of a trajectory is none."""
    await client.generate("r", prompt_ids=[1])
    with verl_otel.trajectory("p"):
        for _ in range(3):
            await client.generate("r", prompt_ids=[1])
        with pytest.raises(TypeError):
            await client.generate("r", prompt_ids=[1], unknown=1)
    assert recorded.span("verl.trajectory").attributes["verl.turns"] == 4
    assert len(recorded.spans) == 6


async def test_parts_of_an_interrupted_generation_are_one_turn(recorded, resuming_client):
    """A generation that a weight sync interrupts goes on by further calls of the engine; also where several generate at once."""
    with verl_otel.trajectory("p"):
        await resuming_client.generate("r", prompt_ids=[1], parts=3)
        await asyncio.gather(*(resuming_client.generate("r", prompt_ids=[1], parts=2) for _ in range(2)))
    assert recorded.span("verl.trajectory").attributes["verl.turns"] == 3
    assert len([span for span in recorded.spans if span.name == "chat small"]) == 7


@pytest.mark.parametrize(("state", "serves"), [("verl=t", True), ("verl=tv", True), ("verl=s", False), ("x=t", False)])
def test_the_engine_has_a_span_for_what_a_trajectory_calls(recorded, state, serves):
    """Calls of a trajectory, also of a validation, have a span in the process of the engine; other callers have none."""
    token = context.attach(propagate.extract({"traceparent": f"00-{7:032x}-{8:016x}-01", "tracestate": state}))
    assert (llm._open_server("Server") is not None) is serves
    context.detach(token)


def test_a_client_stays_as_verl_made_it(recorded, drive, client):
    """After a call the client has verl's own attributes only: it is pickled for processes that may lack verl-otel."""
    before = set(vars(client))
    for _ in range(2):
        drive(client.generate("r", prompt_ids=[1, 2]))
    assert set(vars(client)) == before
    assert [span.name for span in recorded.spans] == ["chat small"] * 2


def test_the_site_of_a_client_is_made_once_and_dropped_with_it(recorded, drive, client):
    """The configuration of a client is read at its first call."""
    drive(client.generate("r", prompt_ids=[1]))
    assert llm._site(client) is llm._site(client)
    kept = llm._site(client)
    del client.config
    drive(client.generate("r", prompt_ids=[1]))
    assert [span.name for span in recorded.spans] == ["chat small"] * 2
    assert llm._site(client) is kept
