# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of vLLM's engine: one task serves every request, and what it raises ends them all.

A request whose parameters are ``"hold"`` runs until it is aborted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

from vllm.tracing import init_tracer
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor


class AsyncLLM:
    def __init__(
        self,
        vllm_config: Any,
        executor_class: type[Any],
        log_stats: bool,
        usage_context: Any = None,
        mm_registry: Any = None,
        log_requests: bool = True,
        start_engine_loop: bool = True,
        stat_loggers: list[Any] | None = None,
        aggregate_engine_logging: bool = False,
        client_addresses: dict[str, Any] | None = None,
        client_count: int = 1,
        client_index: int = 0,
    ) -> None:
        self.observability_config = vllm_config.observability_config
        endpoint = self.observability_config.otlp_traces_endpoint
        if endpoint is not None:
            init_tracer("vllm.llm_engine", endpoint)
        self.log_stats = log_stats
        self.output_processor = OutputProcessor(None, log_stats=log_stats, tracing_enabled=endpoint is not None)
        self.outputs: asyncio.Queue[EngineCoreOutput] = asyncio.Queue()
        self.error: BaseException | None = None
        self._numbers = count()
        self.output_handler = asyncio.create_task(self._serve())

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: Any,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: list[Any] | None = None,
        enable_log_requests: bool = False,
        aggregate_engine_logging: bool = False,
        disable_log_stats: bool = False,
        client_addresses: dict[str, Any] | None = None,
        client_count: int = 1,
        client_index: int = 0,
    ) -> AsyncLLM:
        return cls(vllm_config=vllm_config, executor_class=object, log_stats=not disable_log_stats)

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[Any, None]:
        queue: asyncio.Queue[EngineCoreOutput] = asyncio.Queue()
        if trace_headers and self.observability_config.otlp_traces_endpoint is None:
            trace_headers = None  # as newer releases do
        internal = f"{request_id}-{next(self._numbers)}"
        request = EngineCoreRequest(internal, time.time(), trace_headers, request_id)
        self.output_processor.add_request(request, prompt_text, None, 0, queue)
        if sampling_params != "hold":
            self.outputs.put_nowait(EngineCoreOutput(internal, [1], "stop", request.trace_headers))
        try:
            while True:
                output = await queue.get()
                yield output
                if output.finished:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            await self.abort(internal, internal=True)
            raise

    async def abort(self, request_id: str, internal: bool = False) -> None:
        self.output_processor.abort_requests([request_id], internal)

    async def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool | None = None, clear_cache: bool = True
    ) -> None:
        """As the real core does: what it aborts comes back without trace headers."""
        for request_id in list(self.output_processor.request_states):
            self.outputs.put_nowait(EngineCoreOutput(request_id, [], "abort"))
        await asyncio.sleep(0.01)

    async def is_tracing_enabled(self) -> bool:
        return self.observability_config.otlp_traces_endpoint is not None

    async def _serve(self):
        try:
            while True:
                output = await self.outputs.get()
                self.output_processor.process_outputs(
                    [output], time.monotonic(), SimpleNamespace() if self.log_stats else None
                )
        except Exception as error:
            self.error = error
