# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The names of tools and agents: a model and data write them, and verl looks whether it knows them after our hooks. Tokens of a trajectory."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

import verl_otel
from tests.builders import hooks
from verl_otel.integrations.patch import in_span, replace
from verl_otel.integrations.verl import agent_loop
from verl_otel.integrations.verl.sample_origin import Origin, find_origin
from verl_otel.recording.decorate import surround

INVENTED = ["Jane Doe, 12 Main Street", "x" * 5000, 'a\nb{c="d"}', "", None, 7, ["calculator"], "\ud800"]


class Loop:
    """``ToolAgentLoop`` as far as it matters here, by the words of verl 0.8 and 0.9."""

    def __init__(self, tools):
        self.tools = tools

    async def _call_tool(self, tool_call, tools_kwargs, agent_data):
        active = getattr(agent_data, "_active_tools", self.tools)
        if not isinstance(tool_call.name, str) or tool_call.name not in active:
            return SimpleNamespace(text=f"Unknown function '{tool_call.name}'. Available tools: []"), 0.0, {}
        return SimpleNamespace(text="4"), 0.0, {}


class LoopBefore08(Loop):
    """The same by the words of verl 0.7, where a sample has no tools of its own."""

    async def _call_tool(self, tool_call, tools_kwargs, agent_data):
        try:
            self.tools[tool_call.name]
        except Exception as error:
            return SimpleNamespace(text=f"Error when executing tool: {error}"), 0.0, {}
        return SimpleNamespace(text="4"), 0.0, {}


@pytest.fixture(params=[Loop, LoopBefore08], ids=["verl 0.8 and later", "verl 0.7"])
def loop(request):
    """Return a loop with our hook, as verl's tools make it."""
    kind = type("ToolAgentLoop", (request.param,), dict(vars(request.param)))
    replace(kind, "_call_tool", in_span(agent_loop._begin_tool, agent_loop._finish_tool))
    return kind({"calculator": object()})


def everything(recorded):
    """Return all that is recorded, as text."""
    return json.dumps([recorded.spans, recorded.points], default=str, ensure_ascii=False)


async def test_a_known_tool_is_named(recorded, loop):
    """A tool that the loop has gives its name to span and label."""
    await loop._call_tool(SimpleNamespace(name="calculator", arguments="{}"), {}, SimpleNamespace())
    span = recorded.span("execute_tool calculator")
    assert span.attributes["verl.outcome"] == "success"
    assert recorded.value("verl.tool.call.duration", gen_ai_tool_name="calculator") == 1


@pytest.mark.parametrize("name", INVENTED)
async def test_what_a_model_invents_is_not_recorded(recorded, loop, name):
    """A tool that the loop does not have is ``_OTHER``, and the text of the model is nowhere."""
    await loop._call_tool(SimpleNamespace(name=name, arguments="{}"), {}, SimpleNamespace())
    span = recorded.span("execute_tool _OTHER")
    assert span.attributes["gen_ai.tool.name"] == "_OTHER"
    assert span.attributes["verl.outcome"] == "unknown_tool"
    assert recorded.value("verl.tool.call.duration", gen_ai_tool_name="_OTHER", error_type="unknown_tool") == 1
    if isinstance(name, str) and name:
        assert name[:20] not in everything(recorded)
    assert recorded.spans == [span]


def test_calls_of_a_tool_share_a_call_site(monkeypatch):
    """All calls of a tool have one call site, of which there are no more than `MAX_TOOLS`; further tools are named, too."""
    monkeypatch.setattr(agent_loop, "_tools", {})
    names = [f"tool_{number}" for number in range(agent_loop.MAX_TOOLS + 5)]
    sites = [agent_loop.tool_site(name) for name in names]
    assert [agent_loop.tool_site(name) is site for name, site in zip(names, sites, strict=True)].count(True) == 256
    assert [site.attributes["gen_ai.tool.name"] for site in sites] == names


async def test_a_tool_that_a_sample_does_not_have_is_unknown(recorded):
    """Where a sample has a selection of the loop's tools, only these are known."""
    kind = type("ToolAgentLoop", (Loop,), dict(vars(Loop)))
    replace(kind, "_call_tool", in_span(agent_loop._begin_tool, agent_loop._finish_tool))
    call = SimpleNamespace(name="calculator", arguments="{}")
    await kind({"calculator": 1})._call_tool(call, {}, SimpleNamespace(_active_tools={}))
    assert recorded.span("execute_tool _OTHER")


@pytest.mark.parametrize(("name", "shown"), [("tool_agent", "tool_agent"), ("Jane Doe", "_OTHER"), (["x"], "_OTHER")])
def test_only_registered_agents_are_named(recorded, monkeypatch, name, shown):
    """The data choose the agent loop by its name; one that verl does not know is ``_OTHER``."""
    module = ModuleType(agent_loop._LOOP)
    module._agent_loop_registry = {"tool_agent": {}}
    monkeypatch.setitem(sys.modules, agent_loop._LOOP, module)
    with agent_loop._begin_trajectory(None, ({}, {}), {"agent_name": name, "data_source": "x" * 5000}):
        pass
    span = recorded.span("verl.trajectory")
    assert span.attributes["verl.agent"] == shown
    assert len(span.attributes["verl.data.source"]) <= 256


@pytest.mark.parametrize(
    ("config", "step"), [({"trainer": {}}, 7), ({"async_training": {"trigger_parameter_sync_step": 4}}, None)]
)
def test_a_number_that_is_no_step_is_not_recorded(recorded, config, step):
    """Fully asynchronous rollouts give validations the number of samples that they have submitted."""
    worker = SimpleNamespace(config=config)
    info = {"step": 7, "sample_index": 0, "rollout_n": 0, "validate": True}
    with agent_loop._begin_trajectory(worker, ({}, info), {}):
        pass
    assert recorded.span("verl.trajectory").attributes.get("verl.step.number") == step


def output(prompt, mask, messages=2):
    """Return an output of a loop, as verl's ``AgentLoopOutput``."""
    return SimpleNamespace(
        prompt_ids=[0] * prompt, response_ids=[0] * len(mask), response_mask=mask, num_turns=messages, reward_score=None
    )


class Worker:
    """``AgentLoopWorker`` as far as it matters here."""

    async def _compute_score(self, outputs, kwargs):
        outputs[-1].reward_score = 0.5


@pytest.mark.parametrize(
    ("outputs", "tokens"),
    [
        ([output(10, [1] * 4)], (10, 4, 4)),
        ([output(10, [1] * 4 + [0] * 30 + [1] * 2, 4)], (10, 36, 6)),
        ([output(10, [1] * 4), output(20, [1, 0, 0, 1])], (30, 8, 6)),
    ],
)
async def test_answers_of_tools_are_not_what_the_model_wrote(recorded, outputs, tokens):
    """Prompt, response, and what of it the model wrote; of a trajectory with several outputs all together, for each is a sample."""
    kind = type("AgentLoopWorker", (Worker,), dict(vars(Worker)))
    hooks.install(agent_loop.HOOKS, SimpleNamespace(AgentLoopWorker=kind), "AgentLoopWorker._compute_score")
    with agent_loop._begin_trajectory(None, ({}, {}), {}):
        await kind()._compute_score(outputs, {})
        origin = find_origin()
    attributes = recorded.span("verl.trajectory").attributes
    keys = ("verl.prompt.tokens", "verl.response.tokens", "verl.generated.tokens")
    assert tuple(attributes[key] for key in keys) == tokens
    assert tuple(origin.facts[name] for name in ("prompt", "response", "generated")) == tokens
    assert (attributes["verl.messages"], attributes["verl.reward.score"]) == (outputs[-1].num_turns, 0.5)
    assert "verl.turns" not in attributes


@pytest.mark.parametrize(
    ("info", "carried"),
    [
        ({"score": 1.0, "acc": True, "tps": 12.5, "note": "x", "nothing": None}, {"acc": 1.0, "tps": 12.5}),
        ({"acc": 0.5}, {}),  # of a function that returns a number
        ({f"field{number}": number for number in range(100)}, {f"field{number}": number for number in range(16)}),
        ({"a=b": 1}, {"a=b": 1.0}),
        (None, {}),
    ],
)
async def test_numbers_of_the_reward_function_come_with_the_sample(recorded, info, carried):
    """What it returned beside the score, a bounded number of fields; texts of it are not recorded."""

    class Worker:
        async def _compute_score(self, outputs, kwargs):
            outputs[-1].reward_score = 1.0
            outputs[-1].extra_fields["reward_extra_info"] = info

    replace(Worker, "_compute_score", surround("trajectory", agent_loop._read_outputs))
    output = SimpleNamespace(extra_fields={}, prompt_ids=[1], response_ids=[2, 3], num_turns=2)
    with verl_otel.trajectory("u", 0):
        await Worker()._compute_score([output], {})
        origin = Origin.decode(find_origin().encode())
    beginning = "reward_field:"
    found = {key.removeprefix(beginning): value for key, value in origin.facts.items() if key.startswith(beginning)}
    assert found == carried
    assert output.extra_fields == {"reward_extra_info": info}, "verl's own data are unchanged"
