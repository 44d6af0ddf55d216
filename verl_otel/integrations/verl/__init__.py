# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl: steps, phases, worker calls, trajectories, LLM calls, tools, rewards, weight sync, scalars, lineage.

One module per subject, each with its ``HOOKS``. Names are those of verl 0.9.1. If another version has moved a symbol, its hook is
reported as missing and all other hooks work.
"""

from verl_otel.integrations.patch import register
from verl_otel.integrations.verl import (
    agent_loop,
    batch_lineage,
    guards,
    lineage,
    llm,
    prometheus,
    timers,
    tracking,
    trainer,
    uni_agent,
    workers,
)

HOOKS = (
    *timers.HOOKS,
    *trainer.HOOKS,
    *workers.HOOKS,
    *agent_loop.HOOKS,
    *llm.HOOKS,
    *prometheus.HOOKS,
    *lineage.HOOKS,
    *batch_lineage.HOOKS,
    *tracking.HOOKS,
    *guards.HOOKS,
    *uni_agent.HOOKS,
)


def install() -> None:
    """Register the hooks of verl."""
    llm.install()
    register(HOOKS)
