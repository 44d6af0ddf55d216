# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""LLM calls of the client: nothing of ours is left on an object that verl or its user may send elsewhere."""

import types

import pytest

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
