# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Determines why a GPU is idle: from the state of the trainer, and from what the open trajectories wait for.

These tables contain all decisions; `accounting` applies them to the spans of a run, `live_estimate` to what the trainer knows live.
"""

from __future__ import annotations

import re
from typing import Final

STATES: Final = (
    "validation",
    "checkpoint",
    "weight_sync",
    "switch",
    "reward",
    "training",
    "missing",
    "train",
    "samples",
    "data_loading",
    "logging",
    "data",
)
"""States of a trainer in the order of precedence: of several at once the first counts. ``training``: a worker of its computes now;
``missing``: it waits for workers that record nothing; ``train``: it is in a phase of training, and no worker computes;
``samples``: it waits for rollouts; ``data_loading``: for the next batch of the data loader; ``logging``: for a tracker;
``data``: anything else."""

_PHASES: Final = {
    "gen": "samples",
    "switch_wait": "samples",
    "wait_for_enough_samples": "samples",
    "reward": "reward",
    "old_log_prob": "train",
    "ref": "train",
    "values": "train",
    "update_critic": "train",
    "update_actor": "train",
    "save_checkpoint": "checkpoint",
    "update_weights": "weight_sync",
    "param_sync": "weight_sync",
    "sync_rollout_weights": "weight_sync",
    "testing": "validation",
    "data_loading": "data_loading",
    "logging": "logging",
    "switch_to_trainer": "switch",
    "switch_to_rollout": "switch",
}
"""verl's phases (0.5 to 0.9); any other one is the trainer's own work (``submit``, ``adv``), and ``generate_async`` runs beside it."""

_METHODS: Final = (
    (re.compile(r"(save|load).*checkpoint"), "checkpoint"),
    (re.compile(r"weight|checkpoint_engine|param_sync"), "weight_sync"),
    (re.compile(r"wake_up|sleep|onload|offload|switch|_model_(to|from)_cpu|clear_cpu_model|_mode$"), "switch"),
    (re.compile(r"generate_sequences|compute_rm_score"), "rollout"),
    (re.compile(r"^(init|reset$|build_|get_|set_)"), "start_up"),
)
"""First match wins; any other method of a worker is training: log-probabilities, values, updates."""

IN_STATE: Final = {
    "validation": "validation_wait",
    "checkpoint": "checkpoint_wait",
    "weight_sync": "sync_wait",
    "switch": "switch",
    "reward": "reward_wait",
    "training": "train_wait",
    "missing": "unknown",
    "train": "data",
    "samples": "rollout_wait",
    "data_loading": "data_loading",
    "logging": "logging",
    "data": "data",
}
"""Cause of idle time of the trainer's GPUs, by the state of the trainer."""
AWAITED: Final = {
    "server": "tail_wait",
    "tool": "tool_wait",
    "reward": "reward_wait",
    "own": "rollout_wait",
    "blocked": "loop_wait",
    "hidden": "unknown",
    "saturated": "rollout",
    "": "rollout_wait",
}
"""Cause of idle time of a GPU that could generate, by what the open trajectories wait for: see `find_awaited`. ``blocked``: the event
loop of their process is blocked."""


def find_state(phase: str) -> str:
    """Return the state of the trainer in a phase, one of `STATES`."""
    return _PHASES.get(phase, "data")


def find_work(method: str) -> str:
    """Return the cause of GPU time while a worker's method runs."""
    return next((cause for pattern, cause in _METHODS if pattern.search(method)), "train")


def find_awaited(servers: int, tools: int, rewards: int, trajectories: int, hidden: int, replicas: int) -> str:
    """Return what the open trajectories wait for, as a key of `AWAITED`; empty if none is open.

    Args:
        servers: 1 while LLM requests run on any replica, 0 while none does.
        tools: Number of open trajectories that are in a tool.
        rewards: Number of open trajectories whose reward is being computed.
        trajectories: Number of open trajectories whose work is known.
        hidden: Number of those that may be generating anywhere: only their root was kept, or their requests name no replica.
        replicas: Number of LLM servers. As many hidden trajectories keep all of them busy (``saturated``), with fewer it is unknown.
    """
    if hidden:
        return "saturated" if hidden >= max(1, replicas) else "hidden"
    if servers:
        return "server"
    if not trajectories:
        return ""
    most = max(tools, rewards, trajectories - tools - rewards)
    return "tool" if tools == most else "reward" if rewards == most else "own"


def find_cause(lane: str, state: str, awaited: str, *, asleep: bool, validating: bool, recorded: bool) -> str:
    """Return the cause of idle time.

    Args:
        lane: Use of the GPU (`devices.Device.lane`).
        state: State of the trainer, one of `STATES`.
        awaited: What the open trajectories wait for, a key of `AWAITED`.
        asleep: True: the trainer has taken its GPUs back from the rollouts (``switch_to_trainer``).
        validating: True: a validation is running, in the trainer or in parallel to it.
        recorded: True: a trajectory has begun, so that trajectories are recorded, and none is open if none is awaited. Not after a crash.
    """
    if lane == "other":
        return "unknown"
    if state == "samples" and recorded and not awaited and not validating:
        return "none_open"
    if lane in ("rollout", "reward"):
        return _find_cause_elsewhere(lane, state, awaited, validating=validating)
    if lane == "hybrid" and state == "samples" and not asleep:
        return AWAITED[awaited]
    return "data" if lane == "train" and state == "switch" else IN_STATE[state]


def _find_cause_elsewhere(lane: str, state: str, awaited: str, *, validating: bool) -> str:
    """Return the cause of idle time of a GPU outside of the trainer: the open trajectories take precedence over the trainer's state."""
    if lane == "reward" and awaited == "reward":
        return "rollout"  # the engine of a reward model has no spans: computing a reward counts as its work
    if state == "weight_sync":
        return "sync_wait"
    if awaited:
        return AWAITED[awaited] if lane == "rollout" else "rollout_wait"
    if validating:
        return "validation_wait"
    return "train_wait" if state in ("switch", "training", "missing", "train") else IN_STATE[state]
