# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of vLLM's output processor: its states, and its span with the assertions that end the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from vllm.tracing import extract_trace_context, instrument_manual

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest


@dataclass(eq=False)
class RequestState:
    external_req_id: str | None
    queue: Any
    stats: Any


class OutputProcessor:
    def __init__(self, tokenizer: Any, *, log_stats: bool, stream_interval: int = 1, tracing_enabled: bool = False):
        self.log_stats = log_stats
        self.request_states: dict[str, RequestState] = {}
        self.tracing_enabled = tracing_enabled

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: Any = None,
        request_index: int = 0,
        queue: Any = None,
    ) -> None:
        stats = SimpleNamespace(arrival_time=request.arrival_time) if self.log_stats else None
        self.request_states[request.request_id] = RequestState(request.external_req_id, queue, stats)

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        return [each for each in request_ids if self.request_states.pop(each, None) is not None]

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: Any = None,
    ):
        for output in engine_core_outputs:
            state = self.request_states.pop(output.request_id, None)
            if state is None:
                continue
            state.queue.put_nowait(output)
            if self.tracing_enabled:
                self.do_tracing(output, state, iteration_stats)

    def do_tracing(self, engine_core_output: EngineCoreOutput, req_state: RequestState, iteration_stats: Any) -> None:
        assert req_state.stats is not None
        assert iteration_stats is not None
        instrument_manual(
            span_name="llm_request",
            start_time=int(req_state.stats.arrival_time * 1e9),
            attributes={"gen_ai.request.id": req_state.external_req_id, "seconds": time.time()},
            context=extract_trace_context(engine_core_output.trace_headers),
            kind=SpanKind.SERVER,
        )
