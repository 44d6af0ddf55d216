# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of segments of a critical path, and causes and states of GPU time."""

from __future__ import annotations

from typing import Final

KINDS: Final = (
    "step",  # the trainer itself, in no phase
    "phase",  # the trainer itself, in a phase
    "call",  # a worker group's call: dispatch and transport
    "worker",  # a method on a rank
    "weight_sync",
    "checkpoint",
    "validation",
    "between",  # the trainer itself, between two steps
    "logging",  # a tracker, in `Tracking.log`
    "data_loading",  # the next batch of the data loader
    "poll",  # all rollouts had ended; the trainer had not noticed yet
    "start",  # submitted, not started: the agent loop had no free slot, or was not running yet
    "trajectory",  # the agent loop's own code and waiting time
    "llm",  # an LLM call outside its server: transport and routing, or all of it where no server is recorded
    "server",  # an LLM server whose engine reports no states
    "queue",  # the three states that an engine reports
    "prefill",
    "decode",
    "tool",
    "reward",
    "blocked",  # the event loop of its process was blocked
    "paused",  # its process was paused: collection of garbage, no CPU, interpreter lock, no free thread, stopped
    "unknown",  # covered by no span
)
"""Kinds of segment of a critical path."""

STATES: Final = ("productive", "overhead", "idle")
CAUSES: Final = {
    "train": "productive", "rollout": "productive",
    "validation": "overhead", "weight_sync": "overhead", "checkpoint": "overhead", "switch": "overhead", "start_up": "overhead",
    "tail_wait": "idle", "tool_wait": "idle", "reward_wait": "idle", "loop_wait": "idle", "rollout_wait": "idle",
    "train_wait": "idle", "sync_wait": "idle", "checkpoint_wait": "idle", "validation_wait": "idle",
    "data_loading": "idle", "logging": "idle", "data": "idle", "unknown": "idle",
}  # fmt: skip
"""Causes of GPU time and the state that each belongs to."""
