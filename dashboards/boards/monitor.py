# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Verl RL Training Monitor: the board of the older guides.

The first row has four charts whose PromQL is that of a guide for monitoring verl, to the letter: it names no run. The variable "Filters" narrows them,
since Grafana adds it to queries. The other rows follow the second guide.
"""

from __future__ import annotations

from typing import Final

from dashboards.parts import panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric, scalar
from dashboards.parts.panels import Panel
from dashboards.parts.queries import TRAINED, buckets, grouped, query
from dashboards.parts.thresholds import find_threshold

CHARTS: Final = {
    "Training progress": f"rate({metric.TRAINING_STEPS}[5m])",
    "Generation latency P95": f"histogram_quantile(0.95, sum(rate({metric.SAMPLE_GENERATION}_bucket[5m])) by (le))",
    "GPU memory": f"{metric.GPU_MEMORY_USED} / 1024 / 1024 / 1024",
    "Average reward": metric.AVERAGE_REWARD,
}
"""Four charts of a guide for monitoring verl, to the letter."""


def progress() -> Panel:
    """Does the training go on?"""
    text = "Steps for a second over five minutes, of all runs unless filtered. Steps of more than five minutes show as single humps."
    return panels.timeseries("Training progress", text, "short", query(CHARTS["Training progress"]), width=6, low=0)


def latency() -> Panel:
    """How long does the generation of a step take?"""
    text = (
        "95th percentile of the generation of a step, from the first start to the last token of the trajectories that it trained on; over five "
        "minutes and all runs together. Empty where no step ended in five minutes. In modes that generate ahead the trainer waits for less."
    )
    target = query(CHARTS["Generation latency P95"], "p95", exemplars=True)
    return panels.timeseries("Generation latency P95", text, "s", target, width=6, low=0)


def memory() -> Panel:
    """How much GPU memory is used?"""
    text = "Memory that tensors of the framework occupy, in GiB, by device. The engine's KV cache is not in it."
    return panels.timeseries(
        "GPU memory", text, "gbytes", query(CHARTS["GPU memory"], "{{instance}} {{device}}"), width=6, low=0
    )


def average() -> Panel:
    """What is the average reward?"""
    text = "Mean reward of the last step of each run. It steps once a step: a flat line may be one long step."
    return panels.timeseries("Average reward", text, "short", query(CHARTS["Average reward"]), width=6)


def reward_mean() -> Panel:
    """Does the reward rise?"""
    text = "Core signal, should rise steadily. It says nothing about the quality of the model when the reward can be tricked: see KL."
    target = grouped("avg", f"{label.RUN_ID}, {label.DATA_SOURCE}", f"{metric.REWARD_SCORE_MEAN}{{run}}")
    return panels.timeseries("Reward mean", text, "short", target)


def divergence() -> Panel:
    """How far is the policy from the reference?"""
    text = (
        "KL to the reference model, as a loss term or as a part of the reward. Too large is a sign of reward hacking. It is empty where "
        "neither is configured."
    )
    return panels.timeseries(
        "KL divergence",
        text,
        "short",
        query(f"{scalar('actor/kl_loss')}{{run}} or {scalar('actor/reward_kl_penalty')}{{run}}"),
        steps=((None, "transparent"), (find_threshold("reference_kl"), "red")),
    )


def entropy() -> Panel:
    """Does the policy collapse?"""
    text = "Entropy per token. Too low is a mode collapse; what is low depends on the task."
    return panels.timeseries("Entropy", text, "short", query(f"{scalar('actor/entropy')}{{run}}"), low=0)


def critic_loss() -> Panel:
    """Does the critic learn?"""
    text = "Value loss, should fall smoothly. Empty without a critic."
    return panels.timeseries("Critic loss", text, "short", query(f"{scalar('critic/vf_loss')}{{run}}"), width=12)


def actor_loss() -> Panel:
    """Is the actor's loss sane?"""
    text = "Loss of the policy gradient. Its size depends on advantages; it need not fall."
    return panels.timeseries("Actor loss", text, "short", query(f"{scalar('actor/pg_loss')}{{run}}"), width=12)


def gpu_utilization() -> Panel:
    """Are the GPUs used?"""
    text = (
        "Utilisation of each GPU, in percent, one above the other and all chosen runs together: the height is the number of busy GPUs times "
        "100. Dips while the rollout waits are normal; the board GPU and hosts knows the phases. Where only DCGM's exporter reads a GPU, "
        "its value is shown for each run that computes on it."
    )
    nvml = f"max by ({label.RUN_ID}, {label.HW_ID}) ({metric.HW_GPU_UTILIZATION}{{run}}) * 100"
    dcgm = f'max by ({label.HW_ID}) (label_replace(DCGM_FI_DEV_GPU_UTIL, "{label.HW_ID}", "$1", "UUID", "(.+)"))'
    owned = (
        f"max by ({label.RUN_ID}, {label.HW_ID}) ({metric.GPU_OWNER}{{run}}) * on ({label.HW_ID}) group_left () {dcgm}"
    )
    target = query(f"{nvml} or on ({label.HW_ID}) {owned}", f"{legend.RUN_ID} {legend.HW_ID}")
    return panels.stacked("GPU utilization", text, "percent", target, width=12)


def rollout_latency() -> Panel:
    """How long are rollouts?"""
    text = (
        "Trajectories by their duration, all chosen runs together, without those of validations: rollout_latency_seconds_bucket. The gauge "
        "rollout_latency_seconds is the generation of a whole step. Big swings may be memory or the network; see Rollout and long tail."
    )
    target = buckets(f"sum by (le) (increase({metric.ROLLOUT_TRAJECTORY_DURATION}_bucket{TRAINED}[rate]))")
    return panels.heatmap("Rollout latency, seconds", text, "s", target)


def throughput() -> Panel:
    """How many tokens a second?"""
    text = "Tokens of a step (prompt and response) for each second of the step and each GPU, as verl logs it; see the board Run overview."
    return panels.timeseries("Throughput", text, "short", query(f"{scalar('perf/throughput')}{{run}}"), width=12, low=0)


def memory_by_rank() -> Panel:
    """How much memory does each rank use?"""
    text = "Memory of the GPU that tensors of each process occupy. The engine's KV cache is not in it."
    target = query(f"{metric.GPU_MEMORY_USED}{{run}}", "{{instance}} {{device}}")
    return panels.timeseries("Memory usage", text, "bytes", target, width=12, low=0)


BOARD: Final = Board(
    name="monitor",
    title="Verl RL Training Monitor",
    text="Four charts of a guide for monitoring verl with its own PromQL, then the rows of another one.",
    rows=(
        Row("Training monitor", (progress, latency, memory, average)),
        Row("Row 1: reward, KL, entropy", (reward_mean, divergence, entropy)),
        Row("Row 2: losses", (critic_loss, actor_loss)),
        Row("Row 3: GPUs and rollouts", (gpu_utilization, rollout_latency)),
        Row("Row 4: throughput and memory", (throughput, memory_by_rank)),
    ),
    variables=(
        variables.data_source,
        *variables.RUNS,
        variables.filters,
    ),
)
