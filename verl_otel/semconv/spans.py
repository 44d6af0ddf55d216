# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of span that verl-otel opens: its name, its OTLP kind, the metric of its duration."""

from typing import Final, NamedTuple

from verl_otel.semconv import attributes as attr

INTERNAL: Final = 1
"""OTLP span kinds (`opentelemetry.proto.trace.v1.Span.SpanKind`); the API's enum is one less."""
SERVER: Final = 2
CLIENT: Final = 3

STATUS_UNSET: Final = 0
STATUS_OK: Final = 1
STATUS_ERROR: Final = 2

TRACESTATE_STEP: Final = "verl=s"
"""Marks a step trace: tail sampling lets it pass."""
TRACESTATE_TRAJECTORY: Final = "verl=t"

MAX_LINKS: Final = 128
"""OpenTelemetry drops the links of a span beyond this number."""

OTHER: Final = "other"
"""The value of a label whose own values have become too many."""


class SpanSpec(NamedTuple):
    """One row: a verb and what comes out of it."""

    verb: str
    name: str
    """The span's name, or its first part when the verb adds a key."""
    kind: int = INTERNAL
    duration: str = ""
    """The histogram that its duration goes to."""
    labels: tuple[str, ...] = ()
    """Attributes that become labels of that histogram (`error.type` is added by the recorder)."""
    root: bool = False
    """Starts a trace of its own, whatever is current."""
    adopts: bool = False
    """Opened by a hook and by a decorator directly inside one another, it is one span."""
    state: str = ""
    """The trace state of the trace that it roots."""


_ROWS: Final = (
    SpanSpec("step", "verl.step", duration="verl.step.duration", root=True, state=TRACESTATE_STEP),
    SpanSpec("validation", "verl.validation", duration="verl.validation.duration", root=True, state=TRACESTATE_STEP),
    SpanSpec("warmup", "verl.warmup", root=True, state=TRACESTATE_STEP),
    SpanSpec("phase", "verl.phase.", duration="verl.phase.duration", labels=(attr.PHASE,), state=TRACESTATE_STEP),
    SpanSpec("consume", "verl.consume", state=TRACESTATE_STEP),
    SpanSpec("call", "verl.call ", CLIENT, state=TRACESTATE_STEP),
    SpanSpec("worker", "verl.worker ", SERVER, state=TRACESTATE_STEP),
    SpanSpec("weight_sync", "verl.weight_sync", duration="verl.weight_sync.duration", state=TRACESTATE_STEP),
    SpanSpec("checkpoint", "verl.checkpoint", duration="verl.checkpoint.duration", state=TRACESTATE_STEP),
    SpanSpec(
        "trajectory",
        "verl.trajectory",
        duration="verl.rollout.trajectory.duration",
        labels=(attr.AGENT, attr.VALIDATE),
        root=True,
        adopts=True,
        state=TRACESTATE_TRAJECTORY,
    ),
    SpanSpec("turn", "verl.turn", duration="verl.rollout.turn.duration"),
    SpanSpec(
        "llm",
        "",
        CLIENT,
        duration="gen_ai.client.operation.duration",
        labels=(attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL),
        adopts=True,
    ),
    SpanSpec("generate", "verl.generate", SERVER),
    SpanSpec("tool", "execute_tool ", duration="verl.tool.call.duration", labels=(attr.GEN_AI_TOOL,), adopts=True),
    SpanSpec("reward", "verl.reward", duration="verl.reward.duration", labels=(attr.DATA_SOURCE,), adopts=True),
    SpanSpec("stall", "verl.stall", root=True, state=TRACESTATE_STEP),
    SpanSpec("crash", "verl.crash", root=True, state=TRACESTATE_STEP),
    SpanSpec("span", ""),
    SpanSpec("timed", ""),
)

SPANS: Final = {row.verb: row for row in _ROWS}
"""The catalogue by verb."""
