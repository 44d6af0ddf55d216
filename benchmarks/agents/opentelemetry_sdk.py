# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The same step told by the OpenTelemetry SDK, by hand: the same spans, names, attributes and histograms, everything sampled."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind

from benchmarks.agents.step import AGENT, MODEL, SOURCE, SPANS, STEP, TOOL, Agents, Answer, Output

QUEUE: Final = 2 * SPANS * STEP
"""Spans that may wait: more than a step has, so that none is dropped and thereby cheap. The SDK's default is 2,048."""
_LLM: Final = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "verl", "gen_ai.request.model": MODEL}
_TOOL: Final = {"gen_ai.tool.name": TOOL, "gen_ai.operation.name": "execute_tool"}
_REWARD: Final = {"verl.data.source": SOURCE}


class SdkAgents(Agents):
    """The SDK: a batch processor and a periodic reader, OTLP over HTTP.

    Args:
        endpoint: Address of the OTLP server.
        exporter: Takes the spans in its place.
    """

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        self._tracers = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        self._tracers.add_span_processor(
            BatchSpanProcessor(exporter or OTLPSpanExporter(f"{endpoint}/v1/traces"), max_queue_size=QUEUE)
        )
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics"))
        self._meters = MeterProvider([reader], shutdown_on_exit=False)
        self._tracer = self._tracers.get_tracer("bench")
        meter = self._meters.get_meter("bench")
        self._trajectories = meter.create_histogram("verl.rollout.trajectory.duration", unit="s")
        self._turns = meter.create_histogram("verl.rollout.turn.duration", unit="s")
        self._calls = meter.create_histogram("gen_ai.client.inference.duration", unit="s")
        self._tools = meter.create_histogram("verl.tool.call.duration", unit="s")
        self._rewards = meter.create_histogram("verl.reward.duration", unit="s")

    def llm(self, function: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
        """Wrap around `_span`, and say how many tokens there were."""

        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Answer:
            with self._span(f"chat {MODEL}", self._calls, _LLM, kind=SpanKind.CLIENT) as span:
                answer = await function(*args, **kwargs)
                span.set_attribute("gen_ai.usage.input_tokens", answer.usage.prompt_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", answer.usage.completion_tokens)
                span.set_attribute("gen_ai.response.finish_reasons", (answer.finish_reason,))
                return answer

        return call

    def tool(self, function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        """Wrap around `_span`."""

        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> str:
            with self._span(f"execute_tool {TOOL}", self._tools, _TOOL):
                return await function(*args, **kwargs)

        return call

    def reward(self, function: Callable[..., float]) -> Callable[..., float]:
        """Wrap around `_span`."""

        @wraps(function)
        def compute(*args: Any, **kwargs: Any) -> float:
            with self._span("verl.reward", self._rewards, _REWARD) as span:
                score = function(*args, **kwargs)
                span.set_attribute("verl.reward.score", score)
                return score

        return compute

    def trajectory(self, uid: str, index: int) -> Any:
        """Return `_span` with the attributes that ours has."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": AGENT,
            "verl.agent": AGENT,
            "verl.validate": False,
            "verl.sample.uid": uid,
            "verl.rollout.index": index,
            "verl.step.number": 1,
        }
        labels = {"verl.agent": AGENT, "verl.validate": False}
        return self._span("verl.trajectory", self._trajectories, attributes, labels)

    def finish(self, span: Span, output: Output) -> None:
        """Set attributes."""
        span.set_attribute("verl.response.tokens", len(output.response_ids))
        span.set_attribute("verl.turns", output.num_turns)
        span.set_attribute("verl.reward.score", output.reward_score)

    def turn(self, index: int) -> Any:
        """Return `_span`."""
        return self._span("verl.turn", self._turns, {"verl.turn.index": index}, {})

    def deliver(self) -> None:
        """Export what is left."""
        self._tracers.force_flush(300_000)
        self._meters.force_flush(300_000)

    def close(self) -> None:
        """Stop its threads."""
        self._tracers.shutdown()
        self._meters.shutdown()

    @contextmanager
    def _span(
        self,
        name: str,
        histogram: Histogram,
        attributes: dict[str, Any],
        labels: dict[str, Any] | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[Span]:
        """Open a span and, inside it, record its duration; its attributes are the labels, unless others are given."""
        with self._tracer.start_as_current_span(name, kind=kind, attributes=attributes) as span:
            begin = time.perf_counter()
            try:
                yield span  # type: ignore[misc]  # the SDK's, not the API's
            finally:
                histogram.record(time.perf_counter() - begin, attributes if labels is None else labels)
