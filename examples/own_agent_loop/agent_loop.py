# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An agent loop of your own: it asks the model, calls a tool, and asks again with the tool's answer."""

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

import verl_otel

ANSWER_LENGTH = verl_otel.histogram("my_loop.answer.length", unit="{token}", bounds=(8, 32, 128, 512))


@verl_otel.tool("search")
async def search(query: str) -> str:
    """Stand for a search engine. The query is not recorded: arguments and results of tools never are."""
    return f"{len(query)} results"


class SearchLoop(AgentLoopBase):
    """Two turns: ask and search, then answer.

    The trajectory (`verl.trajectory`), the LLM calls and the reward are recorded without any code here. Turns are not: only
    the loop knows where one begins, so it says so.
    """

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Return one trajectory; verl calls this for each sample."""
        messages = list(kwargs["raw_prompt"])
        limit = self.rollout_config.response_length

        with verl_otel.turn(0) as turn:
            prompt_ids = await self.ct_build_initial_tokens(messages)
            question = await self.generate(prompt_ids, sampling_params)
            results = await search(self.tokenizer.decode(question.token_ids))
            turn.set_attribute("my_loop.results", int(results.split()[0]))

        with verl_otel.turn(1):
            messages.append({"role": "user", "content": results})
            answer = await self.generate(await self.ct_build_initial_tokens(messages), sampling_params)
        ANSWER_LENGTH.record(len(answer.token_ids))

        # A real loop trains on all turns and masks the tool's words; this one keeps the answer only.
        response_ids = answer.token_ids[:limit]
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response_mask=[1] * len(response_ids),
            response_logprobs=answer.log_probs[:limit] if answer.log_probs else None,
            num_turns=4,
            metrics={},
            extra_fields={**answer.extra_fields, "turn_scores": [], "tool_rewards": []},
        )

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Ask the model; the span `chat` of the call is made by verl-otel's hook."""
        return await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params
        )
