# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every metric that verl-otel emits: name, kind, unit, labels, how many series it may make, description, bounds.

A constant is the name of a metric, and its row stands beside it. Each name is written here and nowhere else; names in Prometheus are derived
from them. Own names start with ``verl.``, which the constants leave out; the others are OpenTelemetry's semantic conventions. A panel, a rule
or a recorder that uses a name which is not here fails the tests.
"""

from typing import Final, Literal, NamedTuple

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets
from verl_otel.semconv.run_state import WORDS

Kind = Literal["histogram", "counter", "updown", "gauge"]


class MetricSpec(NamedTuple):
    """One row of the catalogue."""

    name: str
    kind: Kind
    unit: str
    """UCUM, as OpenTelemetry writes it; empty for training scalars, so that no suffix is added."""
    labels: tuple[str, ...]
    series: tuple[int, int, int]
    """Series of one run with 1, 8 and 64 GPUs (histograms: bounds + 3), summed over its processes."""
    description: str
    bounds: tuple[float, ...] = ()


METRICS: Final[dict[str, MetricSpec]] = {}
"""The catalogue by name."""


def _row(
    name: str,
    kind: Kind,
    unit: str,
    labels: tuple[str, ...],
    series: tuple[int, int, int],
    description: str,
    bounds: tuple[float, ...] = (),
) -> str:
    """Add a row to the catalogue; return its name."""
    assert name not in METRICS, name  # noqa: S101 - a name has one row
    METRICS[name] = MetricSpec(name, kind, unit, labels, series, description, bounds)
    return name


def _score(name: str, text: str) -> str:
    return _row(name, "gauge", "", (attr.DATA_SOURCE,), (1, 1, 1), f"Scores that the last step trained on: {text}.")


# fmt: off
# -- the run, its steps, their phases, workers, and what is learnt --
RUN_INFO: Final = _row("verl.run.info", "gauge", "",
    (attr.PROJECT, attr.EXPERIMENT, attr.ALGORITHM, attr.TRAINER_MODE, attr.MODEL, attr.ENGINE, attr.VERL_VERSION,
    attr.NODES, attr.GPUS, attr.GPUS_TOTAL), (1, 1, 1),
    "Always 1: what this run is, for joins. GPUs are those of a node of the trainer, and in total those of the run.")
RUN_STATE: Final = _row("verl.run.state", "gauge", "", (), (1, 1, 1),
    f"{', '.join(f'{state.value} {word}' for state, word in WORDS.items())}.")
TRAINING_STEPS: Final = _row("verl.training.steps", "counter", "{step}", (), (1, 1, 1),
    "Training steps completed.")
TRAINING_STEP: Final = _row("verl.training.step", "gauge", "", (), (1, 1, 1),
    "Number of the step whose scalars were logged last.")
TRAINING_LAST_STEP_TIMESTAMP: Final = _row("verl.training.last_step.timestamp", "gauge", "s", (), (1, 1, 1),
    "Unix time at which the last step ended.")
TRAINING_STEPS_SINCE_BEST: Final = _row("verl.training.steps_since_best", "gauge", "{step}", (attr.METRIC,), (3, 3, 3),
    "Steps since the mean of the last five values of reward, score or val (validation) was highest.")
TRAINING_TREND: Final = _row("verl.training.trend", "gauge", "", (attr.METRIC,), (3, 3, 3),
    "Kendall's tau of the last 20 values of reward, score or val: 1 rises throughout, -1 falls. From the 8th value.")
TRAINING_CHANGE: Final = _row("verl.training.change", "gauge", "1", (attr.METRIC,), (4, 4, 4),
    "Last three steps as a multiple of the median of the 20 before: median time of step, and of the mean wait of its trajectories for the model "
    "(generation) and for tools (tool), less than 0.1 s as 0.1 s; largest size of policy_loss and of rollout_gap (verl's rollout_probs_diff_mean).")
TRAINING_RESUMES: Final = _row("verl.training.resumes", "counter", "{resume}", (), (1, 1, 1),
    "Trainings that began behind their first step.")
WORKER_RESTARTS: Final = _row("verl.worker.restarts", "counter", "{restart}", (attr.REASON,), (1, 8, 64),
    "Processes that Ray started again in the place of one that had died.")
LIMIT: Final = _row("verl.limit", "gauge", "", (attr.LIMIT,), (4, 4, 4),
    "Configured bounds: response_tokens, prompt_tokens, save_frequency (steps), staleness (model versions: that of the "
    "oldest samples that verl's asynchronous v1 trainers train on).")
STEP_DURATION: Final = _row("verl.step.duration", "histogram", "s", (attr.ERROR_TYPE,), (17, 17, 17),
    "One training step.", buckets.LONG)
STEP_BETWEEN_TIME: Final = _row("verl.step.between.time", "counter", "s", (), (1, 1, 1),
    "Time between the end of a training step and the start of the next one.")
STEP_HELD: Final = _row("verl.step.held", "counter", "s", (attr.HELD_KIND, attr.HELD_CAUSE), (4, 4, 4),
    "Time by which steps took longer, or began later, than those before, by what held them (phase, between) and its name.")
GOODPUT: Final = _row("verl.goodput", "gauge", "1", (), (1, 1, 1),
    "Share of the time since telemetry began in the process that trains, or since the training before in it ended, that was spent in steps, without "
    "validations and without what held steps. Start-up and the time between steps are lost.")
LOGGING_TIME: Final = _row("verl.logging.time", "counter", "s", (attr.TRACKER,), (2, 2, 2),
    "Time in `Tracking.log`, by tracker.")
DATA_LOADING_TIME: Final = _row("verl.data_loading.time", "counter", "s", (), (1, 1, 1),
    "Time that a trainer waited for the next batch of a data loader.")
VALIDATION_DURATION: Final = _row("verl.validation.duration", "histogram", "s", (attr.ERROR_TYPE,), (17, 17, 17),
    "One validation.", buckets.LONG)
WEIGHT_SYNC_DURATION: Final = _row("verl.weight_sync.duration", "histogram", "s", (attr.ERROR_TYPE,), (17, 17, 17),
    "Sending new weights to the rollout replicas.", buckets.LONG)
CHECKPOINT_DURATION: Final = _row("verl.checkpoint.duration", "histogram", "s", (attr.ERROR_TYPE,), (17, 17, 17),
    "Saving one checkpoint.", buckets.LONG)
CHECKPOINT_LAST_TIMESTAMP: Final = _row("verl.checkpoint.last.timestamp", "gauge", "s", (), (1, 1, 1),
    "Unix time at which the last checkpoint was saved.")
PHASE_DURATION: Final = _row("verl.phase.duration", "histogram", "s", (attr.PHASE, attr.ERROR_TYPE), (187, 187, 187),
    "One phase of a step, as the trainer sees it.", buckets.LONG)
PHASE_ACTIVE: Final = _row("verl.phase.active", "updown", "{phase}", (attr.PHASE,), (11, 11, 11),
    "Phases that are open now.")
WORKER_CALLS: Final = _row("verl.worker.calls", "counter", "{call}", (attr.WORKER_METHOD,), (10, 80, 640),
    "Worker methods called, outermost ones.")
WORKER_CALL_TIME: Final = _row("verl.worker.call.time", "counter", "s", (attr.WORKER_METHOD,), (10, 80, 640),
    "Host time in worker methods, outermost ones.")
SAMPLE_GENERATION: Final = _row("verl.sample.generation", "histogram", "s", (), (17, 17, 17),
    "Generation of a step: from the first start to the last token of the trajectories that it trained on. In a loop of one's own without trajectories: "
    "the phases `gen` of a step. The wait of the trainer is `verl.phase.duration` with `verl.phase` `gen`.", buckets.LONG)
WEIGHT_SYNC_PAYLOAD: Final = _row("verl.weight_sync.payload", "gauge", "By", (), (1, 1, 1),
    "Bytes of the last weight sync that sent changes only.")
WEIGHT_SYNC_SIZE: Final = _row("verl.weight_sync.size", "gauge", "By", (), (2, 2, 2),
    "Bytes of the weights that rank 0 handed over in its last weight sync, or that rank 0 of the replicas received: those of whole tensors, as on each rank.")
WEIGHT_SYNC_PART_DURATION: Final = _row("verl.weight_sync.part.duration", "gauge", "s", (attr.PART,), (4, 4, 4),
    "Host seconds of rank 0 in the parts of its last weight sync: gather (making whole tensors), send (the rest of the transfer), load (into the engine); of a "
    "replica receive and load. The engine's waking up is none of them.")
AVERAGE_REWARD: Final = _row("verl.average_reward", "gauge", "", (), (1, 1, 1),
    "Mean reward of the last step (`critic/rewards/mean`); of an own loop, mean score of its trajectories, or of a batch that it scored.")
VALIDATION_SCORE: Final = _row("verl.validation.score", "gauge", "",
    (attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE), (20, 20, 20),
    "A validation result (`val-core/...`, `val-aux/...`).")
# -- trajectories, turns, LLM calls, tools and rewards --
ROLLOUT_TRAJECTORY_DURATION: Final = _row("verl.rollout.trajectory.duration", "histogram", "s", (attr.AGENT, attr.VALIDATE, attr.ERROR_TYPE),
    (272, 272, 272),
    "One trajectory, from its first to its last action.", buckets.LONG)
ROLLOUT_TRAJECTORIES: Final = _row("verl.rollout.trajectories", "counter", "{trajectory}", (attr.TRAJECTORY_END, attr.VALIDATE), (32, 32, 32),
    "Trajectories that have ended, by how: finished (by the model), length (the limit of tokens), turn_limit (its last turn is the last one that verl's limit "
    "of turns allows), timeout (an exception of a time-out), tool_failed (the exception of a tool), failed (another one), aborted (the engine dropped its last "
    "request), cancelled; or what an own loop has set.")
ROLLOUT_DROPPED: Final = _row("verl.rollout.dropped", "counter", "{trajectory}", (attr.REASON,), (5, 5, 5),
    "Trajectories of the training that no step trains on: removed by the replay buffer of verl 0.9 (stale, no_signal, failed, surplus), or received by a step "
    "that trained without them (filtered; a trainer may keep some of them for the next step).")
ROLLOUT_TURN_DURATION: Final = _row("verl.rollout.turn.duration", "histogram", "s", (attr.VALIDATE,), (240, 240, 240),
    "One turn of a trajectory: a call of the model and the tools that it calls.", buckets.SHORT)
TOOL_CALL_DURATION: Final = _row("verl.tool.call.duration", "histogram", "s", (attr.GEN_AI_TOOL, attr.VALIDATE, attr.ERROR_TYPE), (480, 480, 480),
    "One call of a tool.", buckets.SHORT)
TOOL_SETUP_TIME: Final = _row("verl.tool.setup.time", "counter", "s", (attr.GEN_AI_TOOL, attr.VALIDATE), (16, 16, 16),
    "Time in which the environments of tools were made for their calls (verl's `BaseTool.create`), which is a part of the calls.")
ROLLOUT_ACTIVE: Final = _row("verl.rollout.active", "updown", "{trajectory}", (), (8, 8, 8),
    "Trajectories that are open now.")
ROLLOUT_OLDEST_AGE: Final = _row("verl.rollout.oldest.age", "gauge", "s", (), (8, 8, 8),
    "Age of the trajectory that has been open longest; 0 when none is.")
ROLLOUT_GROUPS: Final = _row("verl.rollout.groups", "gauge", "{group}", (attr.GROUP_STATE,), (4, 4, 4),
    "Prompt groups in the replay buffer of verl 0.9: pending, running, finished, failure. Read while the trainer waits for samples.")
ROLLOUT_GROUPS_WANTED: Final = _row("verl.rollout.groups.wanted", "gauge", "{group}", (), (1, 1, 1),
    "Prompt groups that the trainer takes from the replay buffer for a step.")
ROLLOUT_TOKENS: Final = _row("verl.rollout.tokens", "counter", "{token}", (attr.TOKEN_TYPE, attr.VALIDATE), (48, 48, 48),
    "Tokens of finished trajectories: those of the prompt, those of the response that the model wrote (generated, verl's `response_mask` is 1), and "
    "those with which tools and environments answered (observation). Without a `response_mask`, a response counts as generated.")
ROLLOUT_SEQUENCE_LENGTH: Final = _row("verl.rollout.sequence.length", "histogram", "{token}", (attr.TOKEN_TYPE, attr.VALIDATE), (416, 416, 416),
    "Tokens of the prompt and of the response of one trajectory, the response with the answers of tools.", buckets.TOKENS)
ROLLOUT_TURNS: Final = _row("verl.rollout.turns", "histogram", "{turn}", (attr.VALIDATE,), (208, 208, 208),
    "Turns of one trajectory: its calls of the model. verl's own `num_turns` counts messages.", buckets.TURNS)
ROLLOUT_STALENESS: Final = _row("verl.rollout.staleness", "histogram", "{version}", (), (10, 10, 10),
    "Versions of the weights between the policy that a step updates and the one that wrote the last token of a sample: 0 is on-policy. "
    "With the one-step-off trainer of verl it is 1 from step 2 on.", buckets.STALENESS)
ROLLOUT_WEIGHTS_BEHIND: Final = _row("verl.rollout.weights.behind", "gauge", "{version}", (), (1, 1, 1),
    "Most versions by which a trajectory of the last batch was generated with older weights than were synced before it began. 0 is right in every mode.")
ROLLOUT_PREEMPTIONS: Final = _row("verl.rollout.preemptions", "counter", "{preemption}", (), (8, 8, 8),
    "Requests that the engine put back into its queue.")
ROLLOUT_TRAJECTORY_PREEMPTIONS: Final = _row("verl.rollout.trajectory.preemptions", "gauge", "{preemption}", (attr.AGGREGATE,), (3, 3, 3),
    "Preemptions of one trajectory of the last step, where verl knows them.")
ROLLOUT_TAIL_DURATION: Final = _row("verl.rollout.tail.duration", "gauge", "s", (attr.AGGREGATE,), (3, 3, 3),
    "Duration of the trajectories that the last step trained on, until verl hands their samples over: p50, p95 and max. A trajectory ends when its "
    "sample is written, some 10 ms later on a busy host; the sample cannot carry how long that takes.")
ROLLOUT_SLOWEST_DURATION: Final = _row("verl.rollout.slowest.duration", "gauge", "s", (attr.PART,), (3, 3, 3),
    "What the slowest trajectory of the last step spent in LLM calls, tools and reward, until verl hands its sample over.")
ROLLOUT_SLOWEST_PREEMPTIONS: Final = _row("verl.rollout.slowest.preemptions", "gauge", "{preemption}", (), (1, 1, 1),
    "Preemptions of the slowest trajectory of the last step.")
ROLLOUT_SLOWEST_TOKENS: Final = _row("verl.rollout.slowest.tokens", "gauge", "{token}", (attr.TOKEN_TYPE,), (2, 2, 2),
    "Tokens of the prompt and of the response of the slowest trajectory of the last step, the response with the answers of tools.")
ROLLOUT_TAIL_SHARE: Final = _row("verl.rollout.tail.share", "gauge", "1", (), (1, 1, 1),
    "Share of the last step, from its start to its end, in which all but the slowest 5 % of its trajectories had ended, and the trainer waited for "
    "these.")
GEN_AI_CLIENT_INFERENCE_DURATION: Final = _row("gen_ai.client.inference.duration", "histogram", "s",
    (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.VALIDATE, attr.ERROR_TYPE),
    (240, 240, 240),
    "One LLM call, as the agent loop sees it.", buckets.SHORT)
GEN_AI_CLIENT_INPUT_TOKENS: Final = _row("gen_ai.client.inference.usage.input_tokens", "counter", "{token}",
    (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.VALIDATE), (16, 16, 16),
    "Tokens that LLM calls read.")
GEN_AI_CLIENT_OUTPUT_TOKENS: Final = _row("gen_ai.client.inference.usage.output_tokens", "counter", "{token}",
    (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.VALIDATE), (16, 16, 16),
    "Tokens that LLM calls generated.")
GEN_AI_CLIENT_CACHED_TOKENS: Final = _row("gen_ai.client.inference.usage.cache_read.input_tokens", "counter", "{token}",
    (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.VALIDATE), (16, 16, 16),
    "Those of the input tokens that the engine had in its prefix cache, where it says so: with verl vLLM does, from 0.9 on.")
GEN_AI_EXECUTE_TOOL_DURATION: Final = _row("gen_ai.execute_tool.duration", "histogram", "s", (attr.GEN_AI_TOOL, attr.VALIDATE, attr.ERROR_TYPE),
    (0, 0, 0),
    "One call of a tool, under the name of the GenAI conventions; only with `OTEL_SEMCONV_STABILITY_OPT_IN`.",
    buckets.SHORT)
GEN_AI_INVOKE_AGENT_DURATION: Final = _row("gen_ai.invoke_agent.duration", "histogram", "s", (attr.GEN_AI_AGENT, attr.VALIDATE, attr.ERROR_TYPE),
    (0, 0, 0),
    "One trajectory, under the name of the GenAI conventions; only with `OTEL_SEMCONV_STABILITY_OPT_IN`.",
    buckets.LONG)
REWARD_DURATION: Final = _row("verl.reward.duration", "histogram", "s", (attr.DATA_SOURCE, attr.VALIDATE, attr.ERROR_TYPE), (240, 240, 240),
    "Computing the score of one sample. Without `verl.validate` where a whole batch is scored after its trajectories have ended.", buckets.SHORT)
REWARD_SAMPLES: Final = _row("verl.reward.samples", "counter", "{sample}", (attr.DATA_SOURCE, attr.REWARD_BIN, attr.VALIDATE), (160, 160, 160),
    "Scores by their bin, which is named by its upper bound: `0.5` are those above 0.25 up to 0.5. `verl.validate` as for their duration.")
REWARD_SCORE_MEAN: Final = _score("verl.reward.score.mean", "mean")
REWARD_SCORE_STDDEV: Final = _score("verl.reward.score.stddev", "standard deviation")
REWARD_SCORE_MIN: Final = _score("verl.reward.score.min", "smallest")
REWARD_SCORE_MAX: Final = _score("verl.reward.score.max", "largest")
REWARD_SCORE_P10: Final = _score("verl.reward.score.p10", "10th percentile")
REWARD_SCORE_P50: Final = _score("verl.reward.score.p50", "median")
REWARD_SCORE_P90: Final = _score("verl.reward.score.p90", "90th percentile")
REWARD_COMPONENT: Final = _row("verl.reward.component", "gauge", "", (attr.VARIABLE, attr.AGGREGATE), (12, 12, 12),
    "Numbers that the reward function returned beside the score (`verl.variable`), over the samples that the last step trained on: mean, min, max. Not of "
    "validations, whose components verl logs (`verl.validation.score`).")
REWARD_GROUPS: Final = _row("verl.reward.groups", "gauge", "{group}", (attr.OUTCOME,), (4, 4, 4),
    "Groups of one prompt that the last step trained on, for estimators that compare the samples of a group: with different advantages or, where these "
    "are not known, scores (signal), or with equal ones, from which GRPO learns nothing: an `acc` of the reward function or else a score above 0 (solved), "
    "or not, because each response was cut (truncated) or otherwise (failed).")
# -- GPUs and hosts --
# Names of the hardware, system and process conventions (semantic-conventions 1.44) where the meaning is theirs. Counters of devices and
# hosts begin at 0 when a process begins to read them, not when the driver was loaded or the host booted.
GPU_TIME: Final = _row("verl.gpu.time", "counter", "s", (attr.GPU_STATE, attr.GPU_CAUSE), (21, 21, 21),
    "GPU seconds of the run by what they were used or lost for, as the trainer can know it while it runs.")
GPU_WAITING_SHARE: Final = _row("verl.gpu.waiting.share", "gauge", "1", (attr.GPU_SIDE,), (3, 3, 3),
    "Share of the last step, from its start to its end, that the GPUs of one side waited for the other, where rollouts have GPUs of their own: the "
    "trainer's for samples of open trajectories, those of the rollouts for the trainer. The side that waits less is short of GPUs. both: the trainer "
    "waited for samples and no trajectory was open.")
GPU_MEMORY_PEAK: Final = _row("verl.gpu.memory.peak", "gauge", "By", (attr.UPDATE_ROLE, attr.MEMORY_TYPE), (4, 4, 4),
    "Most memory of a GPU that the framework held since its process began, as verl logs it.")
HOST_MEMORY_USED: Final = _row("verl.host.memory.used", "gauge", "By", (attr.UPDATE_ROLE,), (2, 2, 2),
    "Memory in use on the host of these workers, as verl logs it.")
HW_GPU_UTILIZATION: Final = _row("hw.gpu.utilization", "gauge", "1", (attr.HW_ID, attr.HW_TYPE, attr.HW_TASK), (1, 8, 64),
    "Share of the last sample period of the driver in which something ran on the GPU.")
HW_GPU_MEMORY_USAGE: Final = _row("hw.gpu.memory.usage", "updown", "By", (attr.HW_ID, attr.HW_TYPE, attr.HW_PARENT), (1, 8, 64),
    "Memory of the GPU, or of a MIG device, that is in use.")
HW_GPU_MEMORY_LIMIT: Final = _row("hw.gpu.memory.limit", "updown", "By", (attr.HW_ID, attr.HW_TYPE, attr.HW_PARENT), (1, 8, 64),
    "Memory of the GPU, or of a MIG device.")
# Not `hw.gpu.memory.utilization`, which is the share of the memory that is in use.
GPU_MEMORY_IO_UTILIZATION: Final = _row("verl.gpu.memory.io.utilization", "gauge", "1", (attr.HW_ID,), (1, 8, 64),
    "Share of the last sample period of the driver in which the GPU's memory was read or written.")
HW_POWER: Final = _row("hw.power", "gauge", "W", (attr.HW_ID, attr.HW_TYPE), (1, 8, 64),
    "Power that the GPU draws.")
HW_ENERGY: Final = _row("hw.energy", "counter", "J", (attr.HW_ID, attr.HW_TYPE), (1, 8, 64),
    "Energy that the GPU has used since it is read.")
HW_TEMPERATURE: Final = _row("hw.temperature", "gauge", "Cel", (attr.HW_ID, attr.HW_TYPE, attr.HW_SENSOR), (2, 16, 128),
    "Temperature of the GPU's chip (`gpu`) and memory (`memory`).")
HW_ERRORS: Final = _row("hw.errors", "counter", "{error}", (attr.HW_ID, attr.HW_TYPE, attr.ERROR_TYPE), (7, 56, 448),
    "Errors that a GPU or an InfiniBand port has counted since it is read, by kind; a kind without errors is 0.")
GPU_CLOCK: Final = _row("verl.gpu.clock", "gauge", "Hz", (attr.HW_ID,), (1, 8, 64),
    "Clock of the GPU's multiprocessors.")
GPU_THROTTLED: Final = _row("verl.gpu.throttled", "counter", "s", (attr.HW_ID, attr.REASON), (2, 16, 128),
    "Time in which the GPU ran slower than it could, by reason: power, thermal, others where they occurred.")
GPU_THROTTLING: Final = _row("verl.gpu.throttling", "gauge", "", (attr.HW_ID, attr.REASON), (1, 8, 64),
    "1 while the GPU is slowed down, by reason; no series while it is not.")
GPU_LINK_IO: Final = _row("verl.gpu.link.io", "counter", "By", (attr.HW_ID, attr.HW_DIRECTION), (2, 16, 128),
    "Bytes over all NVLinks of the GPU, without protocol.")
GPU_UNREADABLE: Final = _row("verl.gpu.unreadable", "counter", "{collection}", (attr.HW_ID, attr.REASON), (1, 1, 8),
    "Collections in which the GPU could not be read, by reason; its other series are absent meanwhile.")
GPU_OWNER: Final = _row("verl.gpu.owner", "gauge", "", (attr.HW_ID, attr.HW_NAME, attr.HW_MODEL), (3, 16, 128),
    "Always 1: this process computes on this GPU, for joins.")
GPU_MEMORY_USED: Final = _row("verl.gpu.memory.used", "updown", "By", (attr.DEVICE,), (1, 8, 64),
    "Memory of a GPU that tensors of this process occupy (the framework's allocator).")
GPU_MEMORY_RESERVED: Final = _row("verl.gpu.memory.reserved", "updown", "By", (attr.DEVICE,), (1, 8, 64),
    "Memory of a GPU that the framework's allocator of this process holds.")
ENGINE_MEMORY_ASLEEP: Final = _row("verl.engine.memory.asleep", "gauge", "By", (attr.HW_ID,), (1, 8, 64),
    "Memory of a GPU that the processes of an engine still held when verl had just put it to sleep, with their CUDA contexts (NVML, of the server actor and its "
    "descendants).")
PROCESS_CPU_TIME: Final = _row("process.cpu.time", "counter", "s", (attr.CPU_MODE,), (38, 58, 226),
    "CPU time of this process, in user and system mode.")
PROCESS_MEMORY_USAGE: Final = _row("process.memory.usage", "updown", "By", (), (19, 29, 113),
    "Memory of the host that this process occupies (resident).")
SYSTEM_CPU_TIME: Final = _row("system.cpu.time", "counter", "s", (attr.CPU_MODE,), (5, 5, 40),
    "CPU time of the host since it is read, over all its CPUs.")
SYSTEM_MEMORY_USAGE: Final = _row("system.memory.usage", "updown", "By", (attr.MEMORY_STATE,), (3, 3, 24),
    "Memory of the host: `used` (what cannot be reclaimed, shared memory too), `cached`, `free`; together all of it.")
SYSTEM_NETWORK_IO: Final = _row("system.network.io", "counter", "By", (attr.INTERFACE, attr.NETWORK_DIRECTION), (4, 4, 32),
    "Bytes over the host's network interfaces since they are read.")
SYSTEM_DISK_IO: Final = _row("system.disk.io", "counter", "By", (attr.DISK, attr.DISK_DIRECTION), (4, 4, 32),
    "Bytes from and to the host's disks since they are read.")
RAY_SPILL_IO: Final = _row("verl.ray.spill.io", "counter", "By", (attr.DISK_DIRECTION,), (2, 2, 16),
    "Bytes that Ray's object store wrote to disk because it was full, and read back, as the raylet of the node logs it: writes at 2 GiB and at each doubling.")
RAY_SPILL_TIME: Final = _row("verl.ray.spill.time", "counter", "s", (attr.DISK_DIRECTION,), (2, 2, 16),
    "Seconds in which Ray's object store wrote objects to disk and read them back, from the throughput in the log of the raylet.")
HW_NETWORK_IO: Final = _row("hw.network.io", "counter", "By", (attr.HW_ID, attr.HW_TYPE, attr.HW_DIRECTION), (2, 16, 128),
    "Bytes over the InfiniBand or RoCE ports of the host since they are read.")
HOST_MEMORY_LIMIT: Final = _row("verl.host.memory.limit", "gauge", "By", (), (1, 1, 8),
    "Memory that the processes of this node may take: the container's bound, or all of the host's where that is less.")
HOST_MEMORY_AVAILABLE: Final = _row("verl.host.memory.available", "gauge", "By", (), (1, 1, 8),
    "Memory that the processes of this node can still take before the kernel ends one: of the container or the host, what is less.")
# -- what stands still, and the library's own health --
STALLS: Final = _row("verl.stalls", "counter", "{stall}", (attr.REASON,), (5, 5, 5),
    "Stalls and crashes that were reported, by reason: overdue, frozen, stopped, never arrived, died.")
EVENT_LOOP_BLOCKED: Final = _row("verl.event_loop.blocked", "counter", "s", (attr.REASON,), (1, 1, 8),
    "Time in which an event loop ran no callback for 0.2 s or more, by reason: callback, callbacks, worker, collection, cpu, interpreter, process.")
EVENT_LOOP_LAG: Final = _row("verl.event_loop.lag", "gauge", "s", (attr.AGGREGATE,), (36, 42, 98),
    "How late the event loops of this process ran callbacks in the last minute: p50 and max. Not of processes with a rank.")
OTEL_ERRORS: Final = _row("verl.otel.errors", "counter", "{error}", (attr.REASON,), (1, 1, 1),
    "Failures of verl-otel itself, by place.")
OTEL_SPANS_DROPPED: Final = _row("verl.otel.spans.dropped", "counter", "{span}", (attr.REASON,), (1, 1, 1),
    "Spans that were recorded and could not be kept or sent.")
OTEL_POINTS_DROPPED: Final = _row("verl.otel.points.dropped", "counter", "{point}", (attr.REASON,), (1, 1, 1),
    "Measurements that were recorded and could not be kept or sent.")
OTEL_LOGS_DROPPED: Final = _row("verl.otel.logs.dropped", "counter", "{record}", (attr.REASON,), (1, 1, 1),
    "Records of the run log that could not be kept or sent.")
OTEL_EXPORT_DURATION: Final = _row("verl.otel.export.duration", "counter", "s", (attr.EXPORTER,), (19, 29, 113),
    "Time spent sending, on the export threads.")
OTEL_OVERHEAD: Final = _row("verl.otel.overhead", "counter", "s", (attr.REASON,), (57, 87, 339),
    "CPU time of draining and exporting, and of recording by its number of events.")
OTEL_BUDGET_USED: Final = _row("verl.otel.budget.used", "gauge", "1", (), (19, 29, 113),
    "CPU time of telemetry in the last minute as a share of what it may take.")
# fmt: on

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
