# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of span that verl-otel opens: its name, its OTLP kind, the metric of its duration."""

from typing import Final, NamedTuple

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

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
TRACESTATE_VALIDATION: Final = "verl=tv"
"""Marks a trajectory of a validation, so that every process that works for it knows; it begins as that of any trajectory."""

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
    """Attributes that become labels of that histogram (`error.type` and `verl.validate` are added by the recorder)."""
    root: bool = False
    """Starts a trace of its own, whatever is current."""
    merges_with_parent: bool = False
    """Opened by a hook and by a decorator directly inside one another, it is one span."""
    state: str = ""
    """The trace state of the trace that it roots."""


# fmt: off
_ROWS: Final = (
    SpanSpec("step", "verl.step", duration=metric_names.STEP_DURATION, root=True, state=TRACESTATE_STEP),
    SpanSpec("validation", "verl.validation", duration=metric_names.VALIDATION_DURATION, root=True,
        state=TRACESTATE_STEP),
    SpanSpec("warmup", "verl.warmup", root=True, state=TRACESTATE_STEP),
    SpanSpec("phase", "verl.phase.", duration=metric_names.PHASE_DURATION, labels=(attr.PHASE,), state=TRACESTATE_STEP),
    SpanSpec("consume", "verl.consume", state=TRACESTATE_STEP),
    SpanSpec("call", "verl.call ", CLIENT, state=TRACESTATE_STEP),
    SpanSpec("worker", "verl.worker ", SERVER, state=TRACESTATE_STEP),
    SpanSpec("weight_sync", "verl.weight_sync", duration=metric_names.WEIGHT_SYNC_DURATION, state=TRACESTATE_STEP),
    SpanSpec("checkpoint", "verl.checkpoint", duration=metric_names.CHECKPOINT_DURATION, state=TRACESTATE_STEP),
    SpanSpec("logging", "verl.logging", state=TRACESTATE_STEP),
    SpanSpec("data_loading", "verl.data_loading", state=TRACESTATE_STEP),
    SpanSpec("trajectory", "verl.trajectory", duration=metric_names.ROLLOUT_TRAJECTORY_DURATION,
        labels=(attr.AGENT,), root=True, merges_with_parent=True, state=TRACESTATE_TRAJECTORY),
    SpanSpec("turn", "verl.turn", duration=metric_names.ROLLOUT_TURN_DURATION),
    SpanSpec("llm", "", CLIENT, duration=metric_names.GEN_AI_CLIENT_INFERENCE_DURATION,
        labels=(attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL), merges_with_parent=True),
    SpanSpec("generate", "verl.generate", SERVER),
    SpanSpec("tool", "execute_tool ", duration=metric_names.TOOL_CALL_DURATION, labels=(attr.GEN_AI_TOOL,),
        merges_with_parent=True),
    SpanSpec("reward", "verl.reward", duration=metric_names.REWARD_DURATION, labels=(attr.DATA_SOURCE,),
        merges_with_parent=True),
    SpanSpec("blocked", "verl.event_loop.blocked", root=True, state=TRACESTATE_STEP),
    SpanSpec("paused", "verl.process.paused", root=True, state=TRACESTATE_STEP),
    SpanSpec("stood", "verl.thread.stood", root=True, state=TRACESTATE_STEP),
    SpanSpec("stall", "verl.stall", root=True, state=TRACESTATE_STEP),
    SpanSpec("crash", "verl.crash", root=True, state=TRACESTATE_STEP),
    SpanSpec("guard_stop", "verl.guard.stop", root=True, state=TRACESTATE_STEP),
    SpanSpec("span", ""),
    SpanSpec("timed", ""),
)
# fmt: on

SPANS: Final = {row.verb: row for row in _ROWS}
"""The catalogue by verb."""
