# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Why a GPU is idle: from what the trainer does just then, and from what the open trajectories wait for.

These tables are all that is decided; `ledger` applies them to the spans of a run, the live form to what the trainer knows by itself.
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
    "data",
)
"""What a trainer can be doing, the strongest first: of several at once the first counts. ``training``: a worker of its computes now;
``missing``: it waits for workers of which nothing is recorded; ``train``: it is in a phase of training, and no worker computes;
``samples``: it waits for rollouts; ``data``: anything else."""

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
    "data": "data",
}
"""Why a GPU of the trainer is idle, by what the trainer does."""
AWAITED: Final = {
    "server": "tail_wait",
    "tool": "tool_wait",
    "reward": "reward_wait",
    "own": "rollout_wait",
    "hidden": "unknown",
    "crowd": "rollout",
    "": "rollout_wait",
}
"""Why a GPU that could generate does not, by what the open trajectories are at: see `find_awaited`."""


def find_state(phase: str) -> str:
    """Return what the trainer does in a phase, one of `STATES`."""
    return _PHASES.get(phase, "data")


def find_work(method: str) -> str:
    """Return what a GPU does while a worker's method runs on it: the cause that its time goes to."""
    return next((cause for pattern, cause in _METHODS if pattern.search(method)), "train")


def find_awaited(servers: int, tools: int, rewards: int, trajectories: int, hidden: int, replicas: int) -> str:
    """Return what the open trajectories are at, as a key of `AWAITED`; empty if none is open.

    Args:
        servers: 1 while LLM requests run on any replica, 0 while none does.
        tools: Open trajectories that are in a tool.
        rewards: Open trajectories whose reward is computed.
        trajectories: Open trajectories in all whose work is known.
        hidden: Those that may be generating anywhere: only their root was kept, or their requests say no replica.
        replicas: LLM servers. As many hidden trajectories keep all of them busy (``crowd``), fewer leave it open which.
    """
    if hidden:
        return "crowd" if hidden >= max(1, replicas) else "hidden"
    if servers:
        return "server"
    if not trajectories:
        return ""
    most = max(tools, rewards, trajectories - tools - rewards)
    return "tool" if tools == most else "reward" if rewards == most else "own"


def find_cause(lane: str, state: str, awaited: str, *, asleep: bool, validating: bool) -> str:
    """Return why a GPU is not at work.

    Args:
        lane: What it is for (`devices.Device.lane`).
        state: What the trainer does, one of `STATES`.
        awaited: What the open trajectories are at, a key of `AWAITED`.
        asleep: The trainer has taken its GPUs back from the rollouts (``switch_to_trainer``).
        validating: A validation runs, beside the trainer or in it.
    """
    if lane == "other":
        return "unknown"
    if lane in ("rollout", "reward"):
        return _find_cause_elsewhere(lane, state, awaited, validating=validating)
    if lane == "hybrid" and state == "samples" and not asleep:
        return AWAITED[awaited]
    return "data" if lane == "train" and state == "switch" else IN_STATE[state]


def _find_cause_elsewhere(lane: str, state: str, awaited: str, *, validating: bool) -> str:
    """Return why a GPU that is not the trainer's is not at work: the open trajectories count first, then what the trainer does."""
    if lane == "reward" and awaited == "reward":
        return "rollout"  # the engine of a reward model has no spans: a reward that is computed is taken for its work
    if state == "weight_sync":
        return "sync_wait"
    if awaited:
        return AWAITED[awaited] if lane == "rollout" else "rollout_wait"
    if validating:
        return "validation_wait"
    return "train_wait" if state in ("switch", "training", "missing", "train") else IN_STATE[state]
