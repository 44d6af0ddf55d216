# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-ins reported by hand with the OpenTelemetry SDK: the spans, names, attributes and histograms that the hooks make."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.metrics import Histogram
from opentelemetry.trace import Span, SpanKind

from benchmarks.backends.opentelemetry_sdk import OpenTelemetry
from benchmarks.hooks import stand_ins

MODEL = "qwen3-8b"


class OpenTelemetryWorker(OpenTelemetry):
    """The SDK, and a worker that reports to it."""

    def make_worker(self) -> Any:
        """Return a worker whose trajectories, turns, calls and rewards are spans and values of histograms."""
        meter, tracer = self._meters.get_meter("bench"), self._tracer
        trajectories = meter.create_histogram("verl.rollout.trajectory.duration", unit="s")
        turns = meter.create_histogram("verl.rollout.turn.duration", unit="s")
        calls = meter.create_histogram("gen_ai.client.inference.duration", unit="s")
        tools = meter.create_histogram("verl.tool.call.duration", unit="s")
        rewards = meter.create_histogram("verl.reward.duration", unit="s")

        @contextmanager
        def open_span(
            name: str,
            histogram: Histogram,
            labels: dict[str, Any],
            kind: SpanKind = SpanKind.INTERNAL,
            **more: Any,
        ) -> Iterator[Span]:
            with tracer.start_as_current_span(name, kind=kind, attributes={**labels, **more}) as span:
                begin = time.perf_counter()
                try:
                    yield span
                finally:
                    histogram.record(time.perf_counter() - begin, labels)

        class Client(stand_ins.LLMServerClient):
            async def generate(self, request_id: str, *, prompt_ids: list[int], **kwargs: Any) -> stand_ins.TokenOutput:
                labels = {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.provider.name": "vllm",
                    "gen_ai.request.model": MODEL,
                }
                with open_span(f"chat {MODEL}", calls, labels, SpanKind.CLIENT) as span:
                    output = await super().generate(request_id, prompt_ids=prompt_ids, **kwargs)
                    span.set_attribute("gen_ai.usage.input_tokens", len(prompt_ids))
                    span.set_attribute("gen_ai.usage.output_tokens", len(output.token_ids))
                    span.set_attribute("gen_ai.response.finish_reasons", (output.stop_reason,))
                    return output

        class Loop(stand_ins.ToolAgentLoop):
            async def _run_turn(self, data: Any, sampling_params: Any) -> None:
                with open_span("verl.turn", turns, {}, **{"verl.turn.index": data.assistant_turns}):
                    await super()._run_turn(data, sampling_params)

            async def _call_tool(self, tool_call: Any, *arguments: Any) -> Any:
                labels = {"gen_ai.tool.name": tool_call.name, "gen_ai.operation.name": "execute_tool"}
                with open_span(f"execute_tool {tool_call.name}", tools, labels):
                    return await super()._call_tool(tool_call, *arguments)

        class Rewards(stand_ins.RewardLoopWorker):
            async def compute_score(self, data: Any) -> dict[str, Any]:
                labels = {"verl.data.source": data.non_tensor_batch["data_source"][0]}
                with open_span("verl.reward", rewards, labels) as span:
                    found = await super().compute_score(data)
                    span.set_attribute("verl.reward.score", found["reward_score"])
                    return found

        class Worker(stand_ins.AgentLoopWorker):
            async def _run_agent_loop(
                self, sampling_params: Any, trajectory: Any, *, agent_name: str, **kwargs: Any
            ) -> stand_ins.AgentLoopOutput:
                labels = {"verl.agent": agent_name, "verl.validate": trajectory["validate"]}
                more = {
                    "gen_ai.operation.name": "invoke_agent",
                    "gen_ai.agent.name": agent_name,
                    "verl.sample.uid": kwargs["uid"],
                    "verl.rollout.index": trajectory["rollout_n"],
                    "verl.step.number": trajectory["step"],
                }
                with open_span("verl.trajectory", trajectories, labels, **more) as span:
                    output = await super()._run_agent_loop(sampling_params, trajectory, agent_name=agent_name, **kwargs)
                    span.set_attribute("verl.response.tokens", len(output.response_ids))
                    span.set_attribute("verl.turns", output.num_turns)
                    span.set_attribute("verl.reward.score", output.reward_score)
                    return output

        return Worker(Loop(Client()), Rewards())
