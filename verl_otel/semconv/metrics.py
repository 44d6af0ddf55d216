# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every metric that verl-otel emits: name, kind, unit, labels, bounds, and how many series it may make.

A panel, a rule or a recorder that uses a name which is not here fails the tests. ``series`` counts the series of one run
with 1, 8 and 64 GPUs (histograms: bounds + 3), summed over its processes.
"""

from typing import Final, Literal, NamedTuple

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets, metric_names

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


def histogram_row(
    name: str, unit: str, labels: tuple[str, ...], series: tuple[int, int, int], text: str, bounds: tuple[float, ...]
) -> MetricSpec:
    """Return the row of a histogram."""
    return MetricSpec(name, "histogram", unit, labels, series, text, bounds)


# fmt: off
ROWS: Final = (
    # -- the run, its steps, their phases, workers, and what is learnt --
    MetricSpec(metric_names.RUN_INFO, "gauge", "",
        (attr.PROJECT, attr.EXPERIMENT, attr.ALGORITHM, attr.TRAINER_MODE, attr.MODEL, attr.ENGINE, attr.VERL_VERSION,
        attr.NODES, attr.GPUS), (1, 1, 1),
        "Always 1: what this run is, for joins."),
    MetricSpec(metric_names.RUN_STATE, "gauge", "", (), (1, 1, 1),
        "1 running, 2 finished, 3 failed, 5 stopped by a guard."),
    MetricSpec(metric_names.TRAINING_STEPS, "counter", "{step}", (), (1, 1, 1),
        "Training steps completed."),
    MetricSpec(metric_names.TRAINING_STEP, "gauge", "", (), (1, 1, 1),
        "Number of the step whose scalars were logged last."),
    MetricSpec(metric_names.TRAINING_LAST_STEP_TIMESTAMP, "gauge", "s", (), (1, 1, 1),
        "Unix time at which the last step ended."),
    MetricSpec(metric_names.TRAINING_STEPS_SINCE_BEST, "gauge", "{step}", (attr.METRIC,), (3, 3, 3),
        "Steps since the mean of the last five values of reward, score or val (validation) was highest."),
    MetricSpec(metric_names.TRAINING_TREND, "gauge", "", (attr.METRIC,), (3, 3, 3),
        "Kendall's tau of the last 20 values of reward, score or val: 1 rises throughout, -1 falls. From the 8th value."),
    MetricSpec(metric_names.TRAINING_CHANGE, "gauge", "1", (attr.METRIC,), (4, 4, 4),
        "Last three steps as a multiple of the median of the 20 before: median time of step, generation and tool, largest size of policy_loss."),
    MetricSpec(metric_names.TRAINING_RESUMES, "counter", "{resume}", (), (1, 1, 1),
        "Trainings that began behind their first step."),
    MetricSpec(metric_names.WORKER_RESTARTS, "counter", "{restart}", (attr.REASON,), (1, 8, 64),
        "Processes that Ray started again in the place of one that had died."),
    MetricSpec(metric_names.LIMIT, "gauge", "", (attr.LIMIT,), (4, 4, 4),
        "Configured bounds: response_tokens, prompt_tokens, staleness (model versions), save_frequency (steps)."),
    histogram_row(metric_names.STEP_DURATION, "s", (attr.ERROR_TYPE,), (17, 17, 17),
        "One training step.", buckets.LONG),
    MetricSpec(metric_names.STEP_BETWEEN_TIME, "counter", "s", (), (1, 1, 1),
        "Time between the end of a training step and the start of the next one."),
    MetricSpec(metric_names.STEP_HELD, "counter", "s", (attr.HELD_KIND, attr.HELD_CAUSE), (4, 4, 4),
        "Time by which steps took longer, or began later, than those before, by what held them (phase, between) and its name."),
    MetricSpec(metric_names.GOODPUT, "gauge", "1", (), (1, 1, 1),
        "Share of the time since the training began that was spent in steps, without what held them."),
    MetricSpec(metric_names.LOGGING_TIME, "counter", "s", (attr.TRACKER,), (2, 2, 2),
        "Time in `Tracking.log`, by tracker."),
    MetricSpec(metric_names.DATA_LOADING_TIME, "counter", "s", (), (1, 1, 1),
        "Time that a trainer waited for the next batch of a data loader."),
    histogram_row(metric_names.VALIDATION_DURATION, "s", (attr.ERROR_TYPE,), (17, 17, 17),
        "One validation.", buckets.LONG),
    histogram_row(metric_names.WEIGHT_SYNC_DURATION, "s", (attr.ERROR_TYPE,), (17, 17, 17),
        "Sending new weights to the rollout replicas.", buckets.LONG),
    histogram_row(metric_names.CHECKPOINT_DURATION, "s", (attr.ERROR_TYPE,), (17, 17, 17),
        "Saving one checkpoint.", buckets.LONG),
    MetricSpec(metric_names.CHECKPOINT_LAST_TIMESTAMP, "gauge", "s", (), (1, 1, 1),
        "Unix time at which the last checkpoint was saved."),
    histogram_row(metric_names.PHASE_DURATION, "s", (attr.PHASE, attr.ERROR_TYPE), (187, 187, 187),
        "One phase of a step, as the trainer sees it.", buckets.LONG),
    MetricSpec(metric_names.PHASE_ACTIVE, "updown", "{phase}", (attr.PHASE,), (11, 11, 11),
        "Phases that are open now."),
    MetricSpec(metric_names.WORKER_CALLS, "counter", "{call}", (attr.WORKER_METHOD,), (10, 80, 640),
        "Worker methods called, outermost ones."),
    MetricSpec(metric_names.WORKER_CALL_TIME, "counter", "s", (attr.WORKER_METHOD,), (10, 80, 640),
        "Host time in worker methods, outermost ones."),
    histogram_row(metric_names.SAMPLE_GENERATION, "s", (), (17, 17, 17),
        "Generating one batch of samples, as the trainer sees it.", buckets.LONG),
    MetricSpec(metric_names.WEIGHT_SYNC_PAYLOAD, "gauge", "By", (), (1, 1, 1),
        "Bytes of the last weight sync that sent changes only."),
    MetricSpec(metric_names.AVERAGE_REWARD, "gauge", "", (), (1, 1, 1),
        "Mean reward of the last step (`critic/rewards/mean`); of an own loop, mean score of its trajectories."),
    MetricSpec(metric_names.VALIDATION_SCORE, "gauge", "",
        (attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE), (20, 20, 20),
        "A validation result (`val-core/...`, `val-aux/...`)."),
    # -- trajectories, turns, LLM calls, tools and rewards --
    histogram_row(metric_names.ROLLOUT_TRAJECTORY_DURATION, "s", (attr.AGENT, attr.VALIDATE, attr.ERROR_TYPE),
        (272, 272, 272),
        "One trajectory, from its first to its last action.", buckets.LONG),
    histogram_row(metric_names.ROLLOUT_TURN_DURATION, "s", (), (120, 120, 120),
        "One turn of a trajectory.", buckets.SHORT),
    histogram_row(metric_names.TOOL_CALL_DURATION, "s", (attr.GEN_AI_TOOL, attr.ERROR_TYPE), (240, 240, 240),
        "One call of a tool.", buckets.SHORT),
    MetricSpec(metric_names.ROLLOUT_ACTIVE, "updown", "{trajectory}", (), (8, 8, 8),
        "Trajectories that are open now."),
    MetricSpec(metric_names.ROLLOUT_OLDEST_AGE, "gauge", "s", (), (8, 8, 8),
        "Age of the trajectory that has been open longest; 0 when none is."),
    MetricSpec(metric_names.ROLLOUT_TOKENS, "counter", "{token}", (attr.TOKEN_TYPE,), (16, 16, 16),
        "Tokens of finished trajectories."),
    histogram_row(metric_names.ROLLOUT_SEQUENCE_LENGTH, "{token}", (attr.TOKEN_TYPE,), (208, 208, 208),
        "Tokens of one trajectory.", buckets.TOKENS),
    histogram_row(metric_names.ROLLOUT_TURNS, "{turn}", (), (104, 104, 104),
        "Turns of one trajectory.", buckets.TURNS),
    histogram_row(metric_names.ROLLOUT_STALENESS, "{version}", (), (10, 10, 10),
        "Model versions between a sample's generation and the step that trains on it.", buckets.STALENESS),
    MetricSpec(metric_names.ROLLOUT_PREEMPTIONS, "counter", "{preemption}", (), (8, 8, 8),
        "Requests that the engine put back into its queue."),
    MetricSpec(metric_names.ROLLOUT_TRAJECTORY_PREEMPTIONS, "gauge", "{preemption}", (attr.AGGREGATE,), (3, 3, 3),
        "Preemptions of one trajectory of the last step, where verl knows them."),
    MetricSpec(metric_names.ROLLOUT_TAIL_DURATION, "gauge", "s", (attr.AGGREGATE,), (3, 3, 3),
        "Duration of the trajectories that the last step trained on: p50, p95 and max."),
    MetricSpec(metric_names.ROLLOUT_SLOWEST_DURATION, "gauge", "s", (attr.PART,), (3, 3, 3),
        "What the slowest trajectory of the last step spent in LLM calls, tools and reward."),
    MetricSpec(metric_names.ROLLOUT_SLOWEST_PREEMPTIONS, "gauge", "{preemption}", (), (1, 1, 1),
        "Preemptions of the slowest trajectory of the last step."),
    MetricSpec(metric_names.ROLLOUT_SLOWEST_TOKENS, "gauge", "{token}", (attr.TOKEN_TYPE,), (2, 2, 2),
        "Tokens of the slowest trajectory of the last step."),
    MetricSpec(metric_names.ROLLOUT_TAIL_SHARE, "gauge", "1", (), (1, 1, 1),
        "Share of the last step in which all but the slowest 5 % of its trajectories had ended, and the trainer waited for these."),
    histogram_row(metric_names.GEN_AI_CLIENT_OPERATION_DURATION, "s",
        (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.ERROR_TYPE),
        (120, 120, 120),
        "One LLM call, as the agent loop sees it.", buckets.SHORT),
    histogram_row(metric_names.GEN_AI_CLIENT_TOKEN_USAGE, "{token}",
        (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.GEN_AI_TOKEN_TYPE),
        (208, 208, 208),
        "Tokens of one LLM call.", buckets.TOKENS),
    histogram_row(metric_names.GEN_AI_EXECUTE_TOOL_DURATION, "s", (attr.GEN_AI_TOOL, attr.ERROR_TYPE), (0, 0, 0),
        "One call of a tool, under the name of the GenAI conventions; only with `OTEL_SEMCONV_STABILITY_OPT_IN`.",
        buckets.SHORT),
    histogram_row(metric_names.GEN_AI_INVOKE_AGENT_DURATION, "s", (attr.GEN_AI_AGENT, attr.VALIDATE, attr.ERROR_TYPE),
        (0, 0, 0),
        "One trajectory, under the name of the GenAI conventions; only with `OTEL_SEMCONV_STABILITY_OPT_IN`.",
        buckets.LONG),
    histogram_row(metric_names.REWARD_DURATION, "s", (attr.DATA_SOURCE, attr.ERROR_TYPE), (120, 120, 120),
        "Computing the reward of one sample.", buckets.SHORT),
    MetricSpec(metric_names.REWARD_SAMPLES, "counter", "{sample}", (attr.DATA_SOURCE, attr.REWARD_BIN), (80, 80, 80),
        "Samples by the bin of their score."),
    *(
        MetricSpec(
            name,
            "gauge",
            "",
            (attr.DATA_SOURCE,),
            (1, 1, 1),
            f"Scores that the last step trained on: {text}.",
        )
        for name, text in (
            (metric_names.REWARD_SCORE_MEAN, "mean"),
            (metric_names.REWARD_SCORE_STDDEV, "standard deviation"),
            (metric_names.REWARD_SCORE_MIN, "smallest"),
            (metric_names.REWARD_SCORE_MAX, "largest"),
            (metric_names.REWARD_SCORE_P10, "10th percentile"),
            (metric_names.REWARD_SCORE_P50, "median"),
            (metric_names.REWARD_SCORE_P90, "90th percentile"),
        )
    ),
    MetricSpec(metric_names.REWARD_GROUPS, "gauge", "{group}", (attr.OUTCOME,), (3, 3, 3),
        "Groups of one prompt that the last step trained on: with different scores (signal), or with equal ones, above 0 (solved) or not (failed), "
        "from which GRPO learns nothing."),
    # -- GPUs and hosts --
    # Names of the hardware, system and process conventions (semantic-conventions 1.44) where the meaning is theirs. Counters of devices and
    # hosts begin at 0 when a process begins to read them, not when the driver was loaded or the host booted.
    MetricSpec(metric_names.GPU_TIME, "counter", "s", (attr.GPU_STATE, attr.GPU_CAUSE), (20, 20, 20),
        "GPU seconds of the run by what they were used or lost for, as the trainer can know it while it runs."),
    MetricSpec(metric_names.GPU_MEMORY_PEAK, "gauge", "By", (attr.UPDATE_ROLE, attr.MEMORY_TYPE), (4, 4, 4),
        "Most memory of a GPU that the framework held since its process began, as verl logs it."),
    MetricSpec(metric_names.HOST_MEMORY_USED, "gauge", "By", (attr.UPDATE_ROLE,), (2, 2, 2),
        "Memory in use on the host of these workers, as verl logs it."),
    MetricSpec(metric_names.HW_GPU_UTILIZATION, "gauge", "1", (attr.HW_ID, attr.HW_TYPE, attr.HW_TASK), (1, 8, 64),
        "Share of the last sample period of the driver in which something ran on the GPU."),
    MetricSpec(metric_names.HW_GPU_MEMORY_USAGE, "updown", "By", (attr.HW_ID, attr.HW_TYPE, attr.HW_PARENT), (1, 8, 64),
        "Memory of the GPU, or of a MIG device, that is in use."),
    MetricSpec(metric_names.HW_GPU_MEMORY_LIMIT, "updown", "By", (attr.HW_ID, attr.HW_TYPE, attr.HW_PARENT), (1, 8, 64),
        "Memory of the GPU, or of a MIG device."),
    # Not `hw.gpu.memory.utilization`, which is the share of the memory that is in use.
    MetricSpec(metric_names.GPU_MEMORY_IO_UTILIZATION, "gauge", "1", (attr.HW_ID,), (1, 8, 64),
        "Share of the last sample period of the driver in which the GPU's memory was read or written."),
    MetricSpec(metric_names.HW_POWER, "gauge", "W", (attr.HW_ID, attr.HW_TYPE), (1, 8, 64),
        "Power that the GPU draws."),
    MetricSpec(metric_names.HW_ENERGY, "counter", "J", (attr.HW_ID, attr.HW_TYPE), (1, 8, 64),
        "Energy that the GPU has used since it is read."),
    MetricSpec(metric_names.HW_TEMPERATURE, "gauge", "Cel", (attr.HW_ID, attr.HW_TYPE, attr.HW_SENSOR), (2, 16, 128),
        "Temperature of the GPU's chip (`gpu`) and memory (`memory`)."),
    MetricSpec(metric_names.HW_ERRORS, "counter", "{error}", (attr.HW_ID, attr.HW_TYPE, attr.ERROR_TYPE), (7, 56, 448),
        "Errors that a GPU or an InfiniBand port has counted since it is read, by kind; a kind without errors is 0."),
    MetricSpec(metric_names.GPU_CLOCK, "gauge", "Hz", (attr.HW_ID,), (1, 8, 64),
        "Clock of the GPU's multiprocessors."),
    MetricSpec(metric_names.GPU_THROTTLED, "counter", "s", (attr.HW_ID, attr.REASON), (2, 16, 128),
        "Time in which the GPU ran slower than it could, by reason: power, thermal, others where they occurred."),
    MetricSpec(metric_names.GPU_THROTTLING, "gauge", "", (attr.HW_ID, attr.REASON), (1, 8, 64),
        "1 while the GPU is slowed down, by reason; no series while it is not."),
    MetricSpec(metric_names.GPU_LINK_IO, "counter", "By", (attr.HW_ID, attr.HW_DIRECTION), (2, 16, 128),
        "Bytes over all NVLinks of the GPU, without protocol."),
    MetricSpec(metric_names.GPU_UNREADABLE, "counter", "{collection}", (attr.HW_ID, attr.REASON), (1, 1, 8),
        "Collections in which the GPU could not be read, by reason; its other series are absent meanwhile."),
    MetricSpec(metric_names.GPU_OWNER, "gauge", "", (attr.HW_ID, attr.HW_NAME, attr.HW_MODEL), (3, 16, 128),
        "Always 1: this process computes on this GPU, for joins."),
    MetricSpec(metric_names.GPU_MEMORY_USED, "updown", "By", (attr.DEVICE,), (1, 8, 64),
        "Memory of a GPU that tensors of this process occupy (the framework's allocator)."),
    MetricSpec(metric_names.GPU_MEMORY_RESERVED, "updown", "By", (attr.DEVICE,), (1, 8, 64),
        "Memory of a GPU that the framework's allocator of this process holds."),
    MetricSpec(metric_names.PROCESS_CPU_TIME, "counter", "s", (attr.CPU_MODE,), (38, 58, 226),
        "CPU time of this process, in user and system mode."),
    MetricSpec(metric_names.PROCESS_MEMORY_USAGE, "updown", "By", (), (19, 29, 113),
        "Memory of the host that this process occupies (resident)."),
    MetricSpec(metric_names.SYSTEM_CPU_TIME, "counter", "s", (attr.CPU_MODE,), (5, 5, 40),
        "CPU time of the host since it is read, over all its CPUs."),
    MetricSpec(metric_names.SYSTEM_MEMORY_USAGE, "updown", "By", (attr.MEMORY_STATE,), (3, 3, 24),
        "Memory of the host: `used` (what cannot be reclaimed, shared memory too), `cached`, `free`; together all of it."),
    MetricSpec(metric_names.SYSTEM_NETWORK_IO, "counter", "By", (attr.INTERFACE, attr.NETWORK_DIRECTION), (4, 4, 32),
        "Bytes over the host's network interfaces since they are read."),
    MetricSpec(metric_names.SYSTEM_DISK_IO, "counter", "By", (attr.DISK, attr.DISK_DIRECTION), (4, 4, 32),
        "Bytes from and to the host's disks since they are read."),
    MetricSpec(metric_names.HW_NETWORK_IO, "counter", "By", (attr.HW_ID, attr.HW_TYPE, attr.HW_DIRECTION), (2, 16, 128),
        "Bytes over the InfiniBand or RoCE ports of the host since they are read."),
    MetricSpec(metric_names.HOST_MEMORY_LIMIT, "gauge", "By", (), (1, 1, 8),
        "Memory that the processes of this node may take: the container's bound, or all of the host's where that is less."),
    MetricSpec(metric_names.HOST_MEMORY_AVAILABLE, "gauge", "By", (), (1, 1, 8),
        "Memory that the processes of this node can still take before the kernel ends one: of the container or the host, what is less."),
    # -- what stands still, and the library's own health --
    MetricSpec(metric_names.STALLS, "counter", "{stall}", (attr.REASON,), (5, 5, 5),
        "Stalls and crashes that were reported, by reason: overdue, frozen, stopped, never arrived, died."),
    MetricSpec(metric_names.EVENT_LOOP_BLOCKED, "counter", "s", (attr.REASON,), (1, 1, 8),
        "Time in which an event loop ran no callback for 0.2 s or more, by reason: callback, callbacks, worker, collection, cpu, interpreter, process."),
    MetricSpec(metric_names.OTEL_ERRORS, "counter", "{error}", (attr.REASON,), (1, 1, 1),
        "Failures of verl-otel itself, by place."),
    MetricSpec(metric_names.OTEL_SPANS_DROPPED, "counter", "{span}", (attr.REASON,), (1, 1, 1),
        "Spans that were recorded and could not be kept or sent."),
    MetricSpec(metric_names.OTEL_POINTS_DROPPED, "counter", "{point}", (attr.REASON,), (1, 1, 1),
        "Measurements that were recorded and could not be kept or sent."),
    MetricSpec(metric_names.OTEL_LOGS_DROPPED, "counter", "{record}", (attr.REASON,), (1, 1, 1),
        "Records of the run log that could not be kept or sent."),
    MetricSpec(metric_names.OTEL_EXPORT_DURATION, "counter", "s", (attr.EXPORTER,), (19, 29, 113),
        "Time spent sending, on the export threads."),
    MetricSpec(metric_names.OTEL_OVERHEAD, "counter", "s", (attr.REASON,), (57, 87, 339),
        "CPU time of draining and exporting, and of recording by its number of events."),
    MetricSpec(metric_names.OTEL_BUDGET_USED, "gauge", "1", (), (19, 29, 113),
        "CPU time of telemetry in the last minute as a share of what it may take."),
)
# fmt: on
"""The catalogue; a name has one row."""

METRICS: Final = {row.name: row for row in ROWS}
"""The catalogue by name."""

SCALAR_PREFIX: Final = "verl."
"""Scalars of `Tracking.log` become gauges with this prefix and their key, with ``.`` for ``/``."""

SCALAR_SOURCE: Final = "Tracking.log"
SCALAR_DESCRIPTION: Final = f"Scalar {{key!r}} of verl's {SCALAR_SOURCE}, unchanged."
"""Description of such a gauge. Readers of its points find the key of verl in it."""

MAX_LABEL_BYTES: Final = 256
"""Bytes of a label's value; Prometheus counts bytes, and the scrape jobs that we ship reject a whole scrape beyond 512."""
MAX_LABEL_NAME_BYTES: Final = 128
"""Bytes of a label's name."""
MAX_LABELS: Final = 20
"""Labels of a series; the scrape jobs that we ship reject a whole scrape beyond 40, those of the target among them."""
