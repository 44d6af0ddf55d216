# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which processes a run has, and which rows of the catalogue each of them records, with how many label sets: for counting series.

Processes are those of verl's defaults: eight workers of the agent loop, eight of the reward, replicas of two GPUs. Labels have as many values
as the recorded PPO training gave them (a critic, one agent with validation, a tool that also fails, checkpoints, eleven phases), and where
it shows less than another may have, those of the catalogue: every method, cause and bin, every GPU slowed down, something wrong of each kind.
"""

from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from verl_otel.semconv import metric_names
from verl_otel.semconv.buckets import REWARD_BINS
from verl_otel.semconv.kinds import GPU_CAUSES
from verl_otel.semconv.metric_names import METRICS

GPUS_OF_NODE: Final = 8
GPUS_OF_REPLICA: Final = 2
WORKERS: Final = 8
"""Of the agent loop, and as many of the reward."""

TRAINING: Final = tuple(takewhile(lambda name: name != metric_names.ROLLOUT_TRAJECTORY_DURATION, METRICS))
"""The rows of the run, its steps, phases and workers, which are before those of trajectories."""
SYNC: Final = {"verl.weight_sync.size": 1, "verl.weight_sync.part.duration": 2}
"""Rows of the rank that sends weights, and of the replica that receives them."""
TRAINER: Final = {
    **{name: 1 for name in TRAINING if "worker" not in name and name not in SYNC},
    "verl.training.steps_since_best": 3,
    "verl.training.trend": 3,
    "verl.training.change": 4,
    "verl.limit": 4,
    "verl.step.held": 4,
    "verl.logging.time": 2,
    "verl.phase.duration": 11,
    "verl.phase.active": 11,
    "verl.validation.score": 20,
    "verl.rollout.staleness": 1,
    "verl.rollout.weights.behind": 1,
    "verl.rollout.groups": 4,
    "verl.rollout.groups.wanted": 1,
    "verl.rollout.trajectory.preemptions": 3,
    "verl.rollout.tail.duration": 3,
    "verl.rollout.tail.share": 1,
    "verl.rollout.slowest.duration": 3,
    "verl.rollout.slowest.preemptions": 1,
    "verl.rollout.slowest.tokens": 2,
    **dict.fromkeys((name for name in METRICS if name.startswith("verl.reward.score.")), 1),
    "verl.reward.groups": 4,
    "verl.reward.component": 12,
    "verl.rollout.dropped": 5,
    "verl.gpu.time": len(GPU_CAUSES),
    "verl.gpu.waiting.share": 3,
    "verl.gpu.memory.peak": 4,
    "verl.host.memory.used": 2,
    "verl.stalls": 5,
    "verl.event_loop.lag": 2,
    "verl.otel.errors": 1,
    "verl.otel.spans.dropped": 1,
    "verl.otel.points.dropped": 1,
    "verl.otel.logs.dropped": 1,
}
"""Rows of the process that trains, and how many label sets each has there; something went wrong in it, too."""
OPT_IN: Final = {"gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration"}
"""Second names of other rows, with ``OTEL_SEMCONV_STABILITY_OPT_IN`` only."""
AGENT_LOOP: Final = {
    "verl.rollout.trajectory.duration": 2,
    "verl.rollout.trajectories": 4,
    "verl.rollout.turn.duration": 2,
    "verl.tool.call.duration": 4,
    "verl.tool.setup.time": 2,
    "verl.rollout.active": 1,
    "verl.rollout.oldest.age": 1,
    "verl.rollout.tokens": 6,
    "verl.rollout.sequence.length": 4,
    "verl.rollout.turns": 2,
    "verl.rollout.preemptions": 1,
    "gen_ai.client.inference.duration": 2,
    "gen_ai.client.inference.usage.input_tokens": 2,
    "gen_ai.client.inference.usage.output_tokens": 2,
    "gen_ai.client.inference.usage.cache_read.input_tokens": 2,
    "verl.event_loop.lag": 2,
}
REWARD: Final = {"verl.reward.duration": 2, "verl.reward.samples": 2 * (len(REWARD_BINS) + 1), "verl.event_loop.lag": 2}
RANK: Final = {
    "verl.worker.restarts": 1,
    "verl.worker.calls": 10,
    "verl.worker.call.time": 10,
    "verl.gpu.owner": 1,
    "verl.gpu.memory.used": 1,
    "verl.gpu.memory.reserved": 1,
}
SERVER: Final = {"verl.gpu.owner": GPUS_OF_REPLICA, "verl.event_loop.lag": 2}
EVERYWHERE: Final = {
    "verl.otel.export.duration": 1,
    "verl.otel.overhead": 3,
    "verl.otel.budget.used": 1,
    "process.cpu.time": 2,
    "process.memory.usage": 1,
}
"""Rows of every process."""
NODE: Final = {
    "system.cpu.time": 5,
    "system.memory.usage": 3,
    "system.network.io": 4,
    "system.disk.io": 4,
    "verl.host.memory.limit": 1,
    "verl.host.memory.available": 1,
    "verl.gpu.unreadable": 1,
    "verl.ray.spill.io": 2,
    "verl.ray.spill.time": 2,
    "verl.event_loop.blocked": 1,
}
"""Rows that one process of a node reads; one of its GPUs could not be read, and the event loop of one of its processes was blocked."""
GPU: Final = {
    "hw.gpu.utilization": 1,
    "hw.gpu.memory.usage": 1,
    "hw.gpu.memory.limit": 1,
    "hw.power": 1,
    "hw.energy": 1,
    "hw.temperature": 2,
    "hw.errors": 7,
    "hw.network.io": 2,
    "verl.gpu.clock": 1,
    "verl.gpu.memory.io.utilization": 1,
    "verl.gpu.throttled": 2,
    "verl.gpu.throttling": 1,
    "verl.gpu.link.io": 2,
}
"""Rows that the same process reads of each GPU of its node, and of the network port that belongs to it."""


@dataclass(frozen=True)
class Member:
    """A process of a run, and how many label sets it gives each row."""

    role: str
    rank: int
    rows: dict[str, int]


def members_of(gpus, workers=WORKERS):
    """Return the processes of a run with this many GPUs, and workers of the agent loop and of the reward."""
    found = [Member("trainer", 0, TRAINER)]
    for rank in range(gpus):
        reads = NODE | {name: count * min(gpus, GPUS_OF_NODE) for name, count in GPU.items()}
        syncs = SYNC if rank == 0 else {}
        found.append(Member("actor_rollout_ref", rank, RANK | syncs | (reads if rank % GPUS_OF_NODE == 0 else {})))
    for rank in range(workers):
        found += [Member("agent_loop", rank, AGENT_LOOP), Member("reward", rank, REWARD)]
    server = SERVER | {"verl.engine.memory.asleep": min(gpus, GPUS_OF_REPLICA)}
    found += [Member("llm_server", rank, server | ({} if rank else SYNC)) for rank in range(replicas_of(gpus))]
    return [Member(each.role, each.rank, EVERYWHERE | each.rows) for each in found]


def replicas_of(gpus):
    """Return how many replicas such a run has."""
    return max(1, gpus // GPUS_OF_REPLICA)


def series_of(name, label_sets):
    """Return how many series a row has in Prometheus with so many label sets: those of a histogram are its buckets, sum and count."""
    row = METRICS[name]
    return label_sets * (len(row.bounds) + 3 if row.kind == "histogram" else 1)
