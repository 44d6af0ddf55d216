# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What to do about a verdict: one sentence for each kind of cause, and the page that has the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from verl_otel.analysis.model import Step, Verdict
from verl_otel.analysis.traces.timeline import UNLINKED

PAGE: Final = "docs/how-to/act-on-verdicts.md"
"""The page. Its table has a row for each key of `ADVICE`."""
ADVICE: Final = {
    "slow tool": "give the tool a time-out, and run blocking code in a thread (asyncio.to_thread)",
    "slow reward": "give the reward function a time-out, cache what it looks up, or raise reward.num_workers",
    "agent loop": "look for a blocking call in the agent loop or its tools, which holds all trajectories of the process; use asyncio.to_thread",
    "blocked loop": "call blocking code with await asyncio.to_thread(...), or use an asynchronous client for it",
    "paused process": "look at what is named: collections (gc.freeze after start-up), CPUs and other programs of the node, threads that compute, a debugger",
    "no free slot": "raise rollout.agent.num_workers, so that more trajectories start at once",
    "noticed late": "nothing in your code: the trainer polls for the end of the rollouts; longer steps lose a smaller share",
    "long generation": "limit data.max_response_length and the number of turns, or use an asynchronous trainer",
    "engine queue": "raise rollout.max_num_seqs or rollout.gpu_memory_utilization, or add replicas",
    "slow replica": "compare the GPU and the host of this replica with the others, and its load",
    "late rank": "compare the GPU, CPU load and data of this rank with the others; balance tokens with trainer.balance_batch",
    "slow worker": "compare the tokens of this step with others, and look at the process that is named",
    "transport": "look at the size of the batch, and at what the worker that is named did before",
    "weight sync": "look at the network, and at rollout.checkpoint_engine.update_weights_bucket_megabytes",
    "checkpoint": "write to faster storage, or less often (trainer.save_freq)",
    "validation": "validate less often (trainer.test_freq) or on fewer samples (data.val_max_samples)",
    "logging": "give the tracker that is named a time-out or its offline mode, and log less often or in a thread",
    "data loading": "raise data.dataloader_num_workers, and look at what the dataset does for one item",
    "between steps": "look at what your code does after a step (dumps, callbacks), and add spans to it",
    "slow phase": "add spans to what runs in this phase, so that its parts are visible",
    "no link": "begin trajectories inside of the step (copy the context into threads), pass step=, or call verl_otel.consume",
    "unknown": "run verl-otel check: spans of a process are missing",
}
"""Sentences by kind of cause."""
_KEYS: Final = {
    "tool": "slow tool",
    "reward": "slow reward",
    "trajectory": "agent loop",
    "blocked": "blocked loop",
    "paused": "paused process",
    "start": "no free slot",
    "poll": "noticed late",
    "llm": "long generation",
    "server": "long generation",
    "prefill": "long generation",
    "decode": "long generation",
    "queue": "engine queue",
    "worker": "slow worker",
    "call": "transport",
    "weight_sync": "weight sync",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "logging": "logging",
    "data_loading": "data loading",
    "between": "between steps",
    "phase": "slow phase",
    "step": "slow phase",
}
"""Keys of `ADVICE` by kind of segment."""
_NO_LINK: Final = "no link"
_OWN_KEYS: Final = {"rank": "late rank", "replica": "slow replica"}
"""Kinds of verdict whose subject determines what to do, whatever the cause."""


def find_key(verdict: Verdict) -> str:
    """Return the key of a verdict in `ADVICE`."""
    return _OWN_KEYS.get(verdict.kind) or _KEYS.get(verdict.cause, "unknown")


def find_keys(steps: Iterable[Step], unexplained: Iterable[Step]) -> tuple[str, ...]:
    """Return the keys of what can be done about some steps, each once.

    Args:
        steps: Steps whose verdicts are shown.
        unexplained: Slow steps without a verdict: what takes most of their critical path is the place to look at.
    """
    keys = [_NO_LINK if _lacks_link(step) else find_key(verdict) for step in steps for verdict in step.verdicts]
    keys += [
        _NO_LINK if _lacks_link(step) else _KEYS.get(step.groups[0][0], "unknown")
        for step in unexplained
        if step.groups
    ]
    return tuple(dict.fromkeys(keys))


def _lacks_link(step: Step) -> bool:
    """Return whether trajectories ran in a step that are linked to none, so that its cause is unknown."""
    return any(kind == "unknown" and name == UNLINKED for kind, name, _ in step.groups)
