# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a trajectory of verl's own tool agent loop ends, and how long the environment of a tool takes, with a model with given answers."""

import asyncio
from types import SimpleNamespace

import pytest

import verl_otel
from verl_otel.integrations.verl import agent_loop

pytestmark = pytest.mark.verl
LIMIT = 10
"""Tokens of a response."""
SETUP = 0.05


class Tool:
    """A stateful tool, as verl's ``BaseTool``."""

    tool_schema = None

    def __init__(self, *, fails=False):
        self.fails = fails

    async def create(self, create_kwargs):
        await asyncio.sleep(SETUP)
        if self.fails:
            raise OSError("no sandbox")
        return "instance", None

    async def execute(self, instance_id, parameters, agent_data):
        return SimpleNamespace(text="four", image=None, video=None), 0.0, {}

    async def release(self, instance_id):
        pass


@pytest.fixture
def make_loop():
    """Return a function that makes verl's loop, with our hooks, whose model answers and calls a tool as a list of (tokens, calls) says."""
    verl = pytest.importorskip("verl.experimental.agent_loop.tool_agent_loop", reason="verl is not installed here")

    def make(turns, *, answer=1, assistant=None, user=None, tool=None):
        script = iter(turns)

        async def generate(**_):
            tokens, make.calls = next(script)
            return SimpleNamespace(
                token_ids=[1] * tokens, log_probs=None, num_preempted=None, extra_fields={}, routed_experts=None
            )

        async def extract(*_):
            call = SimpleNamespace(name="calculator", arguments="{}", tool_call_id=None)
            return "", [call] if make.calls else []

        async def merge_answer(prompt, response, mask, *_, **__):
            return SimpleNamespace(token_ids=prompt + response), mask + [1] * len(response), None

        async def merge_tool(_before, _after, prompt, mask, *_, **__):
            return SimpleNamespace(token_ids=prompt + [2] * answer), mask + [0] * answer, None

        async def begin(*_, **__):
            return [0, 0]

        async def nothing(*_, **__):
            return {}

        class Loop(verl.ToolAgentLoop):
            def __init__(self):
                self.tools = {"calculator": tool or Tool()}
                self.tool_schemas, self.response_length = [], LIMIT
                self.max_assistant_turns, self.max_user_turns, self.max_parallel_calls = assistant, user, 1
                self.max_tool_response_length = 100
                self.processor = None
                self.rollout_config = SimpleNamespace(full_determinism=False)
                self.server_manager = SimpleNamespace(generate=generate)
                self.tool_parser = SimpleNamespace(stop_token_ids=None, extract_tool_calls=extract)
                self.ct_build_initial_tokens = begin
                self.ct_merge_assistant_token, self.ct_merge_context_msg = merge_answer, merge_tool
                self.process_multi_modal_info = nothing
                self._get_mm_processor_kwargs = self._assert_mm_supported = lambda *_: None
                self.build_sglang_video_payload = lambda *_: None

        for hook in agent_loop.HOOKS:
            if hook.module == agent_loop._TOOLS:
                hook.install(SimpleNamespace(ToolAgentLoop=Loop))
        return Loop()

    return make


async def run(loop):
    with verl_otel.trajectory("u", 0):
        await loop.run({}, raw_prompt=[])


@pytest.mark.parametrize(
    ("turns", "options", "end"),
    [
        ([(3, False)], {}, "finished"),
        ([(3, True), (2, False)], {}, "finished"),
        ([(LIMIT, True)], {}, "length"),
        ([(3, True)], {"answer": LIMIT}, "length"),  # verl drops the answer of the tool: the response is shorter
        ([(3, True), (2, True)], {"assistant": 2}, "turn_limit"),
        ([(3, True), (2, True)], {"user": 1}, "turn_limit"),
        ([(3, True), (LIMIT, True)], {"assistant": 2}, "length"),
    ],
)
async def test_a_trajectory_says_how_it_ended(recorded, make_loop, turns, options, end):
    """Each way in which verl's loop ends without an exception."""
    await run(make_loop(turns, **options))
    assert recorded.span("verl.trajectory").attributes["verl.trajectory.end"] == end
    assert recorded.value("verl.rollout.trajectories", verl_trajectory_end=end) == 1


async def test_the_environment_of_a_tool_is_apart_from_its_call(recorded, make_loop):
    """Its time is a part of the call; it is made for each call."""
    await run(make_loop([(1, True), (1, True), (1, False)]))
    first, second = [span for span in recorded.spans if span.name == "execute_tool calculator"]
    for span in (first, second):
        seconds = span.attributes["verl.tool.setup.time"]
        assert SETUP <= seconds <= (span.end_ns - span.start_ns) / 1e9
        assert span.attributes["verl.outcome"] == "success"
    total = sum(span.attributes["verl.tool.setup.time"] for span in (first, second))
    assert recorded.value("verl.tool.setup.time", gen_ai_tool_name="calculator") == pytest.approx(total)


async def test_an_environment_that_cannot_be_made_is_no_failure_of_the_tool(recorded, make_loop):
    """Verl answers the model with a text in both cases, and the trajectory goes on."""
    await run(make_loop([(1, True), (1, False)], tool=Tool(fails=True)))
    assert recorded.span("execute_tool calculator").attributes["verl.outcome"] == "environment_error"
    assert recorded.value("verl.tool.call.duration", error_type="environment_error") == 1
    assert recorded.span("verl.trajectory").attributes["verl.trajectory.end"] == "finished"
