# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a user writes: his own agent loop, tool and reward function, with our verbs."""

import asyncio

import cpu_log
from opentelemetry import trace
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

import verl_otel


@verl_otel.tool("adder")
async def add(a, b):
    """A plain function as tool."""
    with cpu_log.stamped("tool", name="adder"), trace.get_tracer("user").start_as_current_span("user work"):
        await asyncio.sleep(0.01)
    return a + b


class MyLoop(AgentLoopBase):
    """Two turns: ask, use a tool, ask again."""

    async def run(self, sampling_params, **kwargs):
        messages = list(kwargs["raw_prompt"])
        prompt_ids = await self.ct_build_initial_tokens(messages)
        response_ids = []
        for index in range(2):
            with verl_otel.turn(index):
                output = await self.server_manager.generate(
                    request_id=f"{kwargs['uid']}-{index}", prompt_ids=prompt_ids, sampling_params=sampling_params
                )
                response_ids = output.token_ids
                if index == 0:
                    await add(1, 2)
        limit = self.rollout_config.response_length
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=response_ids[:limit], response_mask=[1] * len(response_ids[:limit]),
            response_logprobs=output.log_probs[:limit], num_turns=2, metrics={}, extra_fields={**output.extra_fields, "turn_scores": [], "tool_rewards": []},
        )  # fmt: skip


@verl_otel.reward("mine")
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """A plain function as reward."""
    cpu_log.write("score", data_source=data_source)
    return 0.25
