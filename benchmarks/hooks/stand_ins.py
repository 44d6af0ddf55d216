# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Classes with the methods of verl 0.9 that the hooks wrap, and nothing else: models, tools and rewards answer at once, or after a while.

What remains is the cost of telemetry, and that of a coroutine for each call, which is measured without the hooks and subtracted.
"""

from __future__ import annotations

import asyncio
import random
from types import ModuleType, SimpleNamespace
from typing import Any, Final

TURNS: Final = 10
SPANS: Final = 2 + 3 * TURNS
"""Of a trajectory: itself, the reward, and in each turn the turn, a call of the model and one of a tool."""
TOOL: Final = "python"


class Pace:
    """How long models and tools take."""

    life = 0.0
    """Seconds of a trajectory, about; 0: they answer at once."""
    draw = random.Random(1)  # noqa: S311 - the same waits in every process


async def wait(share: float) -> None:
    """Wait for a share of a turn."""
    if Pace.life:
        await asyncio.sleep(Pace.draw.uniform(0.6, 1.4) * share * Pace.life / TURNS)


class TokenOutput:
    """An answer of the model."""

    def __init__(self) -> None:
        self.token_ids = [1] * 128
        self.stop_reason = "completed"
        self.num_preempted = 0
        self.extra_fields: dict[str, Any] = {}


class AgentLoopOutput:
    """The result of a trajectory."""

    def __init__(self) -> None:
        self.prompt_ids, self.response_ids, self.response_mask = [1] * 64, [1] * 512, [1] * 512
        self.num_turns = TURNS
        self.reward_score: Any = None
        self.metrics = SimpleNamespace(generate_sequences=9.0, tool_calls=1.0, compute_score=0.1, num_preempted=0)
        self.extra_fields: dict[str, Any] = {}


class LLMServerClient:
    """The client of the model's servers."""

    def __init__(self) -> None:
        names = SimpleNamespace(model=SimpleNamespace(path="qwen3-8b"), rollout=SimpleNamespace(name="vllm"))
        self.config = SimpleNamespace(actor_rollout_ref=names)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any) -> TokenOutput:
        """Return an answer."""
        del request_id, prompt_ids, sampling_params
        await wait(0.85)
        return TokenOutput()


class ToolAgentLoop:
    """The loop of one trajectory."""

    def __init__(self, client: Any) -> None:
        self.tools = {TOOL: object()}
        self.client = client

    async def run(self, sampling_params: Any, **kwargs: Any) -> AgentLoopOutput:
        """Run all turns."""
        del kwargs
        data = SimpleNamespace(assistant_turns=0, _active_tools=self.tools)
        for _ in range(TURNS):
            await self._run_turn(data, sampling_params)
        return AgentLoopOutput()

    async def _run_turn(self, data: Any, sampling_params: Any) -> None:
        await self._handle_generating_state(data, sampling_params)
        await self._handle_processing_tools_state(data)

    async def _handle_generating_state(self, agent_data: Any, sampling_params: Any) -> None:
        await self.client.generate("r", prompt_ids=[1] * 64, sampling_params=sampling_params)
        agent_data.assistant_turns += 1

    async def _handle_processing_tools_state(self, agent_data: Any) -> None:
        await self._call_tool(SimpleNamespace(name=TOOL), {}, agent_data)

    async def _call_tool(self, tool_call: Any, tools_kwargs: Any, agent_data: Any) -> Any:
        del tool_call, tools_kwargs, agent_data
        await wait(0.13)
        return SimpleNamespace(text="4"), 0.0, {}


class RewardLoopWorker:
    """The worker that computes rewards."""

    def __init__(self) -> None:
        self.reward_manager = SimpleNamespace(compute_score=len)

    async def compute_score(self, data: Any) -> dict[str, Any]:
        """Return the reward of a sample."""
        del data
        return {"reward_score": 1.0, "reward_extra_info": {}}


class AgentLoopWorker:
    """The worker that runs trajectories."""

    def __init__(self, loop: Any, rewards: Any) -> None:
        self.rollout_config = SimpleNamespace(response_length=4096)
        self.loop, self.rewards = loop, rewards

    async def _run_agent_loop(
        self, sampling_params: Any, trajectory: Any, *, agent_name: str, **kwargs: Any
    ) -> AgentLoopOutput:
        del trajectory, agent_name
        output: AgentLoopOutput = await self.loop.run(sampling_params, **kwargs)
        await self._compute_score(output, kwargs=kwargs)
        return output

    async def _compute_score(self, outputs: Any, *, kwargs: Any) -> None:
        batch = SimpleNamespace(non_tensor_batch={"data_source": [kwargs["data_source"]]})
        outputs.reward_score = (await self.rewards.compute_score(batch))["reward_score"]


def make_module() -> ModuleType:
    """Return a module with copies of the classes, which hooks may change."""
    module = ModuleType("stand_ins")
    for kind in (LLMServerClient, ToolAgentLoop, RewardLoopWorker, AgentLoopWorker):
        setattr(module, kind.__name__, type(kind.__name__, (kind,), dict(vars(kind))))
    return module


def make_worker(module: ModuleType) -> Any:
    """Return a worker made of the classes of a module."""
    loop = module.ToolAgentLoop(module.LLMServerClient())
    return module.AgentLoopWorker(loop, module.RewardLoopWorker())


async def run_trajectories(worker: Any, number: int, *, step: int = 1) -> None:
    """Run trajectories of a step one after the other, as verl calls them."""
    for index in range(number):
        where = {"step": step, "sample_index": index, "rollout_n": index % 8, "validate": False}
        await worker._run_agent_loop(
            None, where, agent_name="tool_agent", uid=f"prompt-{index // 8}", data_source="gsm8k"
        )
