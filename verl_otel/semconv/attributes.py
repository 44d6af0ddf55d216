# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Attribute names. Own names start with ``verl.``; the others are OpenTelemetry's semantic conventions.

Sources: semantic-conventions-genai (``gen_ai.*``), semantic-conventions 1.44 (``error.type``, ``service.*``,
``host.*``, ``process.*``).
"""

from typing import Final

# -- what identifies a piece of work (spans only: these never become labels) --
STEP_NUMBER: Final = "verl.step.number"
STEP_LINEAGE: Final = "verl.step.lineage"
"""How the trajectories of a step are found: ``submitted`` for those that began inside of it, absent where trainers record them."""
SAMPLE_UID: Final = "verl.sample.uid"
ROLLOUT_INDEX: Final = "verl.rollout.index"
TURN_INDEX: Final = "verl.turn.index"
REPLICA_RANK: Final = "verl.replica.rank"

# -- the trainer --
TRAINER_MODE: Final = "verl.trainer.mode"
TRAINER_DEVICE: Final = "verl.trainer.device"
KL_IN_REWARD: Final = "verl.kl_in_reward"
"""verl's ``trainer.device``, in ``run.json`` only."""
ALGORITHM: Final = "verl.algorithm"
PHASE: Final = "verl.phase"
SLOWEST_TRACE_ID: Final = "verl.slowest.trace_id"
SLOWEST_UID: Final = "verl.slowest.uid"
SLOWEST_SECONDS: Final = "verl.slowest.duration"
SAMPLES: Final = "verl.samples"
PROMPTS: Final = "verl.prompts"
TRACKER: Final = "verl.tracker"
"""A backend of ``Tracking``: console, wandb, file ..."""
METRIC: Final = "verl.metric"
MODEL: Final = "verl.model"
ENGINE: Final = "verl.engine"
NODES: Final = "verl.nodes"
GPUS: Final = "verl.gpus"
"""Of each node of the trainer."""
GPUS_TOTAL: Final = "verl.gpus.total"
"""Of the run: of all nodes of the trainer, and those that rollouts, reward models and teachers have for themselves."""
LIMIT: Final = "verl.limit.name"
LINK_TYPE: Final = "verl.link.type"
WEIGHT_SYNC_BACKEND: Final = "verl.weight_sync.backend"
REPLICAS: Final = "verl.replicas"
BYTES: Final = "verl.bytes"
SYNC_SECONDS: Final = {part: f"verl.weight_sync.{part}.time" for part in ("gather", "send", "receive", "load")}
"""Seconds of a rank in each part of a weight sync."""

# -- workers --
WORKER_GROUP: Final = "verl.worker.group"
WORKER_METHOD: Final = "verl.worker.method"
WORKER_CLASS: Final = "verl.worker.class"
UPDATE_ROLE: Final = "verl.update.role"
WORKER_NESTED: Final = "verl.worker.nested"
CALL_BLOCKING: Final = "verl.call.blocking"
RANK: Final = "verl.rank"
WORLD_SIZE: Final = "verl.world_size"
BATCH_SIZE: Final = "verl.batch.size"
BATCH_TOKENS: Final = "verl.batch.tokens"
CPU_SECONDS: Final = "verl.cpu.time"
"""CPU time of the thread that ran a worker method, in seconds."""

# -- rollouts and rewards --
AGENT: Final = "verl.agent"
VALIDATE: Final = "verl.validate"
TURNS: Final = "verl.turns"
"""Calls of the model in a trajectory."""
MESSAGES: Final = "verl.messages"
"""Messages of a trajectory, of user, model and tools: verl's ``num_turns``."""
PROMPT_TOKENS: Final = "verl.prompt.tokens"
RESPONSE_TOKENS: Final = "verl.response.tokens"
"""Length of a response, with the answers of tools that are in it."""
GENERATED_TOKENS: Final = "verl.generated.tokens"
"""Those tokens of a response that the model wrote, from which it learns."""
MODEL_VERSION_MIN: Final = "verl.model.version.min"
MODEL_VERSION_MAX: Final = "verl.model.version.max"
LLM_SECONDS: Final = "verl.llm.time"
TOOL_SECONDS: Final = "verl.tool.time"
REWARD_SECONDS: Final = "verl.reward.time"
PREEMPTIONS: Final = "verl.preemptions"
DATA_SOURCE: Final = "verl.data.source"
REWARD_FUNCTION: Final = "verl.reward.function"
REWARD_SCORE: Final = "verl.reward.score"
REWARD_SCORES: Final = "verl.reward.scores"
REWARD_BIN: Final = "verl.reward.bin"
REWARD_FIELDS: Final = "verl.reward.fields"
"""Numbers that the reward function returned beside the score, as ``name=number``."""
TOKEN_TYPE: Final = "verl.token.type"
PART: Final = "verl.part"
MEMORY_TYPE: Final = "verl.memory.type"
OUTCOME: Final = "verl.outcome"
TRAJECTORY_END: Final = "verl.trajectory.end"
"""How a trajectory ended; see `metric_names.ROLLOUT_TRAJECTORIES`."""
TOOL_SETUP_SECONDS: Final = "verl.tool.setup.time"
"""Seconds of a tool call in which the environment of the tool was made."""
SAMPLING_KEEP: Final = "verl.sampling.keep"
SAMPLING_REASON: Final = "verl.sampling.reason"
VARIABLE: Final = "verl.variable"
AGGREGATE: Final = "verl.aggregate"

# -- training scalars that a worker method returns --
LOSS: Final = "verl.loss"
GRAD_NORM: Final = "verl.grad_norm"

# -- the manifest of a run --
ROLLOUT_DATA_DIR: Final = "verl.rollout_data_dir"
VALIDATION_DATA_DIR: Final = "verl.validation_data_dir"

# -- open spans, in ``open-*.jsonl`` only --
OPEN_AGE: Final = "verl.open.age"
OPEN_LAST_CHILD: Final = "verl.open.last_child"
OPEN_WRITTEN: Final = "verl.open.written"

# -- live verdicts --
HELD_KIND: Final = "verl.held.kind"
HELD_CAUSE: Final = "verl.held.cause"

# -- GPU time --
GPU_STATE: Final = "verl.gpu.state"
GROUP_STATE: Final = "verl.group.state"
GPU_CAUSE: Final = "verl.gpu.cause"
GPU_SIDE: Final = "verl.gpu.side"

# -- GPUs and hosts --
HW_ID: Final = "hw.id"
HW_TYPE: Final = "hw.type"
HW_NAME: Final = "hw.name"
HW_MODEL: Final = "hw.model"
HW_PARENT: Final = "hw.parent"
HW_TASK: Final = "hw.gpu.task"
HW_DIRECTION: Final = "hw.direction"
HW_SENSOR: Final = "hw.sensor_location"
DEVICE: Final = "device"
CPU_MODE: Final = "cpu.mode"
MEMORY_STATE: Final = "system.memory.state"
INTERFACE: Final = "network.interface.name"
NETWORK_DIRECTION: Final = "network.io.direction"
DISK: Final = "system.device"
DISK_DIRECTION: Final = "disk.io.direction"

# -- stalls and crashes --
STALL_REASON: Final = "verl.stall.reason"
STALL_TEXT: Final = "verl.stall.text"
STALL_INSTANCE: Final = "verl.stall.instance"
STALL_SPAN: Final = "verl.stall.span"
STALL_AGE: Final = "verl.stall.age"
BLOCKED_SPAN: Final = "verl.blocked.span"
"""Name of the innermost span in which an event loop was blocked."""
BLOCKED_LINE: Final = "verl.blocked.line"
"""File, line and function that ran."""

# -- guards --
GUARD: Final = "verl.guard.name"
"""``nan``, ``kl``, ``reward_fall``, ``plateau`` or ``callback``."""
GUARD_TEXT: Final = "verl.guard.text"

# -- own health --
REASON: Final = "reason"
EXPORTER: Final = "exporter"

# -- conventions of others --
ERROR_TYPE: Final = "error.type"
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_MODEL: Final = "gen_ai.request.model"
GEN_AI_AGENT: Final = "gen_ai.agent.name"
GEN_AI_CONVERSATION: Final = "gen_ai.conversation.id"
GEN_AI_TOOL: Final = "gen_ai.tool.name"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

# -- resource --
SERVICE_NAME: Final = "service.name"
SERVICE_NAMESPACE: Final = "service.namespace"
SERVICE_INSTANCE: Final = "service.instance.id"
RUN_ID: Final = "verl.run.id"
RUN_ATTEMPT: Final = "verl.run.attempt"
PROJECT: Final = "verl.project"
EXPERIMENT: Final = "verl.experiment"
ROLE: Final = "verl.role"
INDEX: Final = "verl.index"
"""Number of a process among those of its role; it becomes a part of ``service.instance.id``."""
VERL_VERSION: Final = "verl.version"
HOST_NAME: Final = "host.name"
PROCESS_ID: Final = "process.pid"
RAY_JOB: Final = "ray.job.id"
RAY_NODE: Final = "ray.node.id"
RAY_ACTOR: Final = "ray.actor.id"
EARLIER_ACTORS: Final = "verl.earlier_actors"
"""Ids of the Ray actors that existed before telemetry was started, in ``run.json`` only."""
GPU_IDS: Final = "verl.gpu.ids"
REPLICA_MODE: Final = "verl.replica.mode"
