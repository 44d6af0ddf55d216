# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every metric that verl-otel emits: name, kind, unit, labels, bounds, and how many series it may make.

A panel, a rule or a recorder that uses a name which is not here fails the tests. ``series`` counts the series of one run
with 1, 8 and 64 GPUs (histograms: bounds + 3), summed over its processes.
"""

from typing import Final, Literal, NamedTuple

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets

Kind = Literal["histogram", "counter", "updown", "gauge"]


class MetricSpec(NamedTuple):
    """One row of the catalogue."""

    name: str
    kind: Kind
    unit: str
    """UCUM, as OpenTelemetry writes it; empty for training scalars, so that no suffix is added."""
    labels: tuple[str, ...]
    series: tuple[int, int, int]
    description: str
    bounds: tuple[float, ...] = ()


def _h(
    name: str, unit: str, labels: tuple[str, ...], series: tuple[int, int, int], text: str, bounds: tuple[float, ...]
) -> MetricSpec:
    return MetricSpec(name, "histogram", unit, labels, series, text, bounds)


_ROWS: Final = (
    MetricSpec(
        "verl.run.info",
        "gauge",
        "",
        (
            attr.PROJECT,
            attr.EXPERIMENT,
            attr.ALGORITHM,
            attr.TRAINER_MODE,
            "verl.model",
            "verl.engine",
            attr.VERL_VERSION,
            "verl.nodes",
            "verl.gpus",
        ),
        (1, 1, 1),
        "Always 1: what this run is, for joins.",
    ),
    MetricSpec("verl.run.state", "gauge", "", (), (1, 1, 1), "1 running, 2 finished, 3 failed."),
    MetricSpec("verl.training.steps", "counter", "{step}", (), (1, 1, 1), "Training steps completed."),
    MetricSpec("verl.training.step", "gauge", "", (), (1, 1, 1), "Number of the step whose scalars were logged last."),
    MetricSpec(
        "verl.training.last_step.timestamp", "gauge", "s", (), (1, 1, 1), "Unix time at which the last step ended."
    ),
    _h("verl.step.duration", "s", (attr.ERROR_TYPE,), (17, 17, 17), "One training step.", buckets.LONG),
    _h("verl.validation.duration", "s", (attr.ERROR_TYPE,), (17, 17, 17), "One validation.", buckets.LONG),
    _h(
        "verl.weight_sync.duration",
        "s",
        (attr.ERROR_TYPE,),
        (17, 17, 17),
        "Sending new weights to the rollout replicas.",
        buckets.LONG,
    ),
    _h("verl.checkpoint.duration", "s", (attr.ERROR_TYPE,), (17, 17, 17), "Saving one checkpoint.", buckets.LONG),
    MetricSpec(
        "verl.checkpoint.last.timestamp",
        "gauge",
        "s",
        (),
        (1, 1, 1),
        "Unix time at which the last checkpoint was saved.",
    ),
    _h(
        "verl.phase.duration",
        "s",
        (attr.PHASE, attr.ERROR_TYPE),
        (238, 238, 238),
        "One phase of a step, as the trainer sees it.",
        buckets.LONG,
    ),
    MetricSpec("verl.phase.active", "updown", "{phase}", (attr.PHASE,), (14, 14, 14), "Phases that are open now."),
    MetricSpec(
        "verl.worker.calls",
        "counter",
        "{call}",
        (attr.WORKER_METHOD,),
        (10, 80, 640),
        "Worker methods called, outermost ones.",
    ),
    MetricSpec(
        "verl.worker.call.time",
        "counter",
        "s",
        (attr.WORKER_METHOD,),
        (10, 80, 640),
        "Host time in worker methods, outermost ones.",
    ),
    _h(
        "verl.sample.generation",
        "s",
        (),
        (17, 17, 17),
        "Generating one batch of samples, as the trainer sees it.",
        buckets.LONG,
    ),
    _h(
        "verl.rollout.trajectory.duration",
        "s",
        (attr.AGENT, attr.VALIDATE, attr.ERROR_TYPE),
        (34, 272, 272),
        "One trajectory, from its first to its last action.",
        buckets.LONG,
    ),
    _h("verl.rollout.turn.duration", "s", (), (15, 120, 120), "One turn of a trajectory.", buckets.SHORT),
    _h(
        "verl.tool.call.duration",
        "s",
        (attr.GEN_AI_TOOL, attr.ERROR_TYPE),
        (30, 240, 240),
        "One call of a tool.",
        buckets.SHORT,
    ),
    MetricSpec("verl.rollout.active", "updown", "{trajectory}", (), (1, 8, 8), "Trajectories that are open now."),
    MetricSpec(
        "verl.rollout.oldest.age",
        "gauge",
        "s",
        (),
        (1, 8, 8),
        "Age of the trajectory that has been open longest; 0 when none is.",
    ),
    MetricSpec(
        "verl.rollout.tokens", "counter", "{token}", (attr.TOKEN_TYPE,), (2, 16, 16), "Tokens of finished trajectories."
    ),
    _h(
        "verl.rollout.sequence.length",
        "{token}",
        (attr.TOKEN_TYPE,),
        (26, 208, 208),
        "Tokens of one trajectory.",
        buckets.TOKENS,
    ),
    _h("verl.rollout.turns", "{turn}", (), (13, 104, 104), "Turns of one trajectory.", buckets.TURNS),
    _h(
        "verl.rollout.staleness",
        "{version}",
        (),
        (10, 10, 10),
        "Model versions between a sample's generation and the step that trains on it.",
        buckets.STALENESS,
    ),
    MetricSpec(
        "verl.rollout.preemptions",
        "counter",
        "{preemption}",
        (),
        (1, 8, 8),
        "Requests that the engine put back into its queue.",
    ),
    MetricSpec(
        "verl.rollout.trajectory.preemptions",
        "gauge",
        "{preemption}",
        (attr.AGGREGATE,),
        (3, 3, 3),
        "Preemptions of one trajectory of the last step, where verl knows them.",
    ),
    MetricSpec(
        "verl.rollout.tail.duration",
        "gauge",
        "s",
        (attr.AGGREGATE,),
        (3, 3, 3),
        "Duration of the trajectories that the last step trained on: p50, p95 and max.",
    ),
    MetricSpec(
        "verl.rollout.slowest.duration",
        "gauge",
        "s",
        (attr.PART,),
        (3, 3, 3),
        "What the slowest trajectory of the last step spent in LLM calls, tools and reward.",
    ),
    MetricSpec(
        "verl.rollout.slowest.preemptions",
        "gauge",
        "{preemption}",
        (),
        (1, 1, 1),
        "Preemptions of the slowest trajectory of the last step.",
    ),
    MetricSpec(
        "verl.rollout.slowest.tokens",
        "gauge",
        "{token}",
        (attr.TOKEN_TYPE,),
        (2, 2, 2),
        "Tokens of the slowest trajectory of the last step.",
    ),
    MetricSpec(
        "verl.rollout.tail.share",
        "gauge",
        "1",
        (),
        (1, 1, 1),
        "Share of the last step in which all but the slowest 5 % of its trajectories had ended, and the trainer waited for these.",
    ),
    MetricSpec(
        "verl.gpu.time",
        "counter",
        "s",
        (attr.GPU_STATE, attr.GPU_CAUSE),
        (17, 17, 17),
        "GPU seconds of the run by what they were used or lost for, as the trainer can know it while it runs.",
    ),
    MetricSpec(
        "verl.weight_sync.payload",
        "gauge",
        "By",
        (),
        (1, 1, 1),
        "Bytes of the last weight sync that sent changes only.",
    ),
    MetricSpec(
        "verl.gpu.memory.peak",
        "gauge",
        "By",
        (attr.UPDATE_ROLE, attr.MEMORY_TYPE),
        (4, 4, 4),
        "Most memory of a GPU that the framework held since its process began, as verl logs it.",
    ),
    MetricSpec(
        "verl.host.memory.used",
        "gauge",
        "By",
        (attr.UPDATE_ROLE,),
        (2, 2, 2),
        "Memory in use on the host of these workers, as verl logs it.",
    ),
    _h(
        "gen_ai.client.operation.duration",
        "s",
        (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.ERROR_TYPE),
        (15, 120, 120),
        "One LLM call, as the agent loop sees it.",
        buckets.SHORT,
    ),
    _h(
        "gen_ai.client.token.usage",
        "{token}",
        (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.GEN_AI_TOKEN_TYPE),
        (26, 208, 208),
        "Tokens of one LLM call.",
        buckets.TOKENS,
    ),
    _h(
        "verl.reward.duration",
        "s",
        (attr.DATA_SOURCE, attr.ERROR_TYPE),
        (15, 120, 120),
        "Computing the reward of one sample.",
        buckets.SHORT,
    ),
    MetricSpec(
        "verl.reward.samples",
        "counter",
        "{sample}",
        (attr.DATA_SOURCE, attr.REWARD_BIN),
        (10, 80, 80),
        "Samples by the bin of their score.",
    ),
    *(
        MetricSpec(
            f"verl.reward.score.{name}",
            "gauge",
            "",
            (attr.DATA_SOURCE,),
            (2, 2, 2),
            f"Scores that the last step trained on: {text}.",
        )
        for name, text in (
            ("mean", "mean"),
            ("stddev", "standard deviation"),
            ("min", "smallest"),
            ("max", "largest"),
            ("p10", "10th percentile"),
            ("p50", "median"),
            ("p90", "90th percentile"),
        )
    ),
    MetricSpec(
        "verl.average_reward", "gauge", "", (), (1, 1, 1), "Mean reward of the last step (`critic/rewards/mean`)."
    ),
    MetricSpec(
        "verl.validation.score",
        "gauge",
        "",
        (attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE),
        (20, 20, 20),
        "A validation result (`val-core/...`, `val-aux/...`).",
    ),
    MetricSpec(
        "verl.stalls",
        "counter",
        "{stall}",
        (attr.REASON,),
        (3, 5, 5),
        "Stalls and crashes that were reported, by reason: overdue, frozen, stopped, never arrived, died.",
    ),
    MetricSpec(
        "verl.otel.errors", "counter", "{error}", (attr.REASON,), (1, 1, 1), "Failures of verl-otel itself, by place."
    ),
    MetricSpec(
        "verl.otel.spans.dropped",
        "counter",
        "{span}",
        (attr.REASON,),
        (1, 1, 1),
        "Spans that were recorded and could not be kept or sent.",
    ),
    MetricSpec(
        "verl.otel.points.dropped",
        "counter",
        "{point}",
        (attr.REASON,),
        (1, 1, 1),
        "Measurements that were recorded and could not be kept or sent.",
    ),
    MetricSpec(
        "verl.otel.export.duration",
        "counter",
        "s",
        ("exporter",),
        (2, 18, 74),
        "Time spent sending, on the export threads.",
    ),
    MetricSpec(
        "verl.otel.overhead", "counter", "s", (attr.REASON,), (2, 18, 74), "CPU time of draining and exporting."
    ),
)

METRICS: Final = {row.name: row for row in _ROWS}
"""The catalogue by name."""

SCALAR_PREFIX: Final = "verl."
"""Scalars of `Tracking.log` become gauges with this prefix and their key, with ``.`` for ``/``."""
