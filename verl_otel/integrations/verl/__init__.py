# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl: steps, phases, worker calls, trajectories, LLM calls, tools, rewards, weight sync, scalars, lineage.

One module per subject, each with its ``HOOKS``. verl's names and lines are those of 0.9.1; where a version has moved something,
the hook is reported as missing and the rest goes on.
"""

from verl_otel.integrations.patch import register
from verl_otel.integrations.verl import (
    agent_loop,
    batches,
    lineage,
    llm,
    prometheus,
    reward,
    timers,
    tracking,
    trainer,
    weight_sync,
    workers,
)

HOOKS = (
    *timers.HOOKS,
    *trainer.HOOKS,
    *workers.HOOKS,
    *agent_loop.HOOKS,
    *llm.HOOKS,
    *reward.HOOKS,
    *weight_sync.HOOKS,
    *prometheus.HOOKS,
    *lineage.HOOKS,
    *batches.HOOKS,
    *tracking.HOOKS,
)


def install() -> None:
    """Register the hooks of verl."""
    llm.install()
    register(HOOKS)
