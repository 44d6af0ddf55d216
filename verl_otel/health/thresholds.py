# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table of thresholds: their names, their defaults and the reasons for them. Prometheus' ``thresholds.rules.yml`` is generated from it.

A threshold that is off by default depends on the scale of the reward, on the model or on the algorithm. Its text says
which value to begin with.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Final, NamedTuple

OFF: Final = math.nan
"""Nothing compares with NaN, in PromQL as in Python."""


class Threshold(NamedTuple):
    """One threshold."""

    name: str
    value: float
    """Default; `OFF` for none."""
    text: str
    """Alert that compares with it, its unit, and the reason for the default. Empty: the text before goes for it, too."""


# fmt: off
AREAS: Final[dict[str, tuple[Threshold, ...]]] = {
    "learning": (
        Threshold("stagnation_steps", 100,
            "RewardStagnation: this many steps without a new best mean of five steps ..."),
        Threshold("stagnation_trend", 0.3,
            "... while Kendall's tau of the last 20 values is below this. 20 values of noise alone reach 0.32 once in 40 times."),
        Threshold("stagnation_seconds", OFF,
            "RewardStagnation by time: seconds without a new best mean. Off: a step takes seconds in one run and hours in another. Try 5400."),
        Threshold("reward_low", OFF, "RewardOutOfRange: the mean reward is below this ..."),
        Threshold("reward_high", OFF,
            "... or above this. Both are off, since they depend on the scale of the reward. Try 1, and the highest reward that is plausible."),
        Threshold("reward_range_steps", 20, "RewardOutOfRange: for this many steps."),
        Threshold("reward_zero_steps", 3,
            "RewardZero: steps with a mean reward of exactly 0, in a run that had another one before."),
        Threshold("reward_noise", OFF,
            "RewardNoisy: standard deviation as a share of the mean. Off: rewards of 0 and 1 are above it until 4 of 5 are right. Try 0.5."),
        Threshold("reward_noise_steps", 20, "RewardNoisy: for this many steps."),
        Threshold("groups_silent", 0.9,
            "GroupsWithoutSignal: share of the groups of a step whose scores are all equal, from which GRPO learns nothing, for this many steps."),
        Threshold("groups_silent_steps", 10, ""),
        Threshold("reward_fall", 0.5,
            "RewardCliff: fall from the best 5 minute mean of the last 6 hours, as a share of it ..."),
        Threshold("reward_fall_deviations", 1,
            "... and in standard deviations of one batch, so that noise about 0 is no cliff ..."),
        Threshold("reward_fall_steps", 5, "... for this many steps."),
        Threshold("critic_loss_factor", 3,
            "RewardCliff, critic diverged: loss of the value function, as a multiple of its mean over the last 6 hours."),
        Threshold("reference_kl", 15,
            "KLExplosion: KL to the reference policy (use_kl_loss, or use_kl_in_reward), for 10 minutes."),
        Threshold("policy_kl_high", 0.1,
            "PolicyKLHigh: KL between the old and the new policy: warning, and critical ..."),
        Threshold("policy_kl_stop", 0.2, ""),
        Threshold("policy_kl_steps", 5, "... for this many steps."),
        Threshold("policy_kl_low", OFF,
            "PolicyKLTooLow: off, because one update per batch has a policy KL of 0 by definition. Try 0.005 with several updates per batch."),
        Threshold("policy_kl_low_steps", 50, ""),
        Threshold("entropy", 0.02, "EntropyCollapse: nats per token ..."),
        Threshold("entropy_fall_factor", 5, "... after it was this many times as high in the last day ..."),
        Threshold("entropy_steps", 5, "... for this many steps."),
        Threshold("policy_loss_positive_steps", OFF,
            "PolicyLossPositive: steps with a policy loss above 0. Off: its sign depends on how the loss is averaged. Try 20."),
        Threshold("policy_loss_size", OFF,
            "PolicyLossLarge: size of the policy loss. Off: it depends on the advantages. Try 0.5."),
        Threshold("policy_loss_steps", 10, "PolicyLossLarge: for this many steps."),
        Threshold("policy_loss_jump", OFF,
            "PolicyLossJump: largest size of the policy loss in three steps, as a multiple of the median of the 20 before. Off: of losses near 0 any is a multiple. Try 5."),
        Threshold("rollout_gap", 0.01,
            "RolloutGapJump: mean difference between the engine's and the trainer's probabilities of the same tokens; verl's FAQ has this level ..."),
        Threshold("rollout_gap_factor", 5, "... and as a multiple of its median in the 20 steps before."),
        Threshold("response_short", OFF,
            "ResponseTooShort: mean length as a share of the configured bound. Off: it depends on the task. Try 0.78 (400 of 512 tokens)."),
        Threshold("response_near", OFF,
            "ResponseNearBound: mean length as a share of the configured bound. Off: in some trainings it is meant to be there. Try 0.9."),
        Threshold("response_cut", OFF,
            "ResponseTooLong: share of responses cut off at the configured bound. Off: a base model begins with all of them. Try 0.5."),
        Threshold("response_steps", 10, "ResponseTooShort, ResponseNearBound, ResponseTooLong: for this many steps."),
    ),
    "bands": (
        Threshold("reward_band_low", OFF,
            "Mean reward. Off: it depends on the scale of the reward. Try 2 and 4 for a reward model of such a scale."),
        Threshold("reward_band_high", OFF, ""),
        Threshold("policy_kl_band_low", OFF,
            "KL between the old and the new policy. The low end is off: one update per batch has 0 by definition. Try 0.01."),
        Threshold("policy_kl_band_high", 0.05, ""),
        Threshold("policy_loss_band_low", OFF, "Policy loss. Off: it depends on the advantages. Try -0.5 and -0.1."),
        Threshold("policy_loss_band_high", OFF, ""),
        Threshold("response_band_low", OFF,
            "Mean length of responses, as a share of the configured bound. Off: it depends on the task. Try 0.1 and 0.9."),
        Threshold("response_band_high", OFF, ""),
    ),
    "running": (
        Threshold("slow_factor", 2,
            "Slowdown: steps, generation or tools (median of three steps), as a multiple of the median of the 20 steps before."),
        Threshold("rank_late_factor", 1.5,
            "RankLate: time in the calls of one method, of the slowest rank to the median, or of the median to the fastest ..."),
        Threshold("rank_late_steps", 10, "... for this many steps."),
        Threshold("stall_factor", 3,
            "TrainingStalled: age of the last step as a multiple of the longest usual time between two steps of this run ..."),
        Threshold("stall_seconds", 600, "... never below these seconds ..."),
        Threshold("stall_moving_seconds", 3600,
            "... nor below these, while a validation or a checkpoint is open (the first one of a run has no example) or other work still ends ..."),
        Threshold("stall_quiet_seconds", 300,
            "... that is, a worker call, phase, turn or trajectory has ended within these ..."),
        Threshold("stall_start_seconds", 3600, "... nor below these, before the first step of a process has ended."),
        Threshold("stuck_factor", 4,
            "TrajectoryStuck: age of the oldest open trajectory as a multiple of the 99th percentile of this run ..."),
        Threshold("stuck_seconds", 600, "... never below these seconds; without a percentile it is the second."),
        Threshold("stuck_unknown_seconds", 3600, ""),
        Threshold("tail_share", 0.5,
            "TailHoldsStep: share of the step spent waiting for the slowest 5 % of its trajectories, for this many steps."),
        Threshold("tail_steps", 5, ""),
        Threshold("staleness_steps", 3,
            "StalenessBound: steps in which the stalest trajectory was at the configured bound."),
        Threshold("weights_behind_steps", 3,
            "WeightsBehind: steps in which a trajectory was generated with older weights than were synced before it began."),
        Threshold("held_share", 0.2,
            "StepsHeld: time by which steps of half an hour took longer or began later than those before, as a share of their time,"),
        Threshold("held_steps", 2, "... of at least so many steps that the same cause has held."),
        Threshold("loop_blocked_share", 0.1,
            "EventLoopBlocked: share of the time in which the event loop of a process runs no callback because of another one."),
        Threshold("checkpoint_factor", 2,
            "CheckpointLate: steps since the last checkpoint as a multiple of the configured frequency."),
    ),
    "hardware": (
        Threshold("gpu_utilization_low", 0.5,
            "GPUUnderused: utilisation over 10 minutes in which its role worked: warning, and info."),
        Threshold("gpu_utilization_fair", 0.7, ""),
        Threshold("gpu_memory", 0.95,
            "GPUMemoryHigh: most of the memory that was in use in an hour. An engine with gpu_memory_utilization=0.9 holds less."),
        Threshold("gpu_throttled", 0.1,
            "GPUThrottled: share of the time. For power it is off: many GPUs run at their power limit whenever they have work. Try 0.5."),
        Threshold("gpu_throttled_power", OFF, ""),
        Threshold("host_memory_soon", 0.98,
            "HostMemorySlope: share that would be in use in 4 hours, at the slope of the last 30 minutes, and share in use now."),
        Threshold("host_memory_now", 0.7, ""),
    ),
    "engines": (
        Threshold("engine_queue_factor", 2,
            "EngineQueueLong: requests that wait, as a multiple of those that run, for 15 minutes."),
        Threshold("kv_cache", 0.98, "KVCacheFull: share of the KV cache in use."),
        Threshold("preemptions_per_second", 1, "PreemptionStorm: preemptions per second of one replica."),
        Threshold("engine_imbalance", 2,
            "EngineImbalance: requests of the busiest replica as a multiple of the mean of all, with work waiting."),
    ),
    "pipeline": (
        Threshold("queue", 0.7, "CollectorQueueFilling: share of an exporter's queue."),
    ),
}
# fmt: on
"""Thresholds by area. ``bands`` are the ranges in which the core indicators are healthy; no alert compares with them."""
DEFAULTS: Final = {row.name: row.value for row in chain.from_iterable(AREAS.values())}
"""Defaults by name."""
