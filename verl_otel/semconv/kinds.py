# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of verdicts: kinds of work, what to do about them, what a verdict is about, causes of GPU time, and sentences for steps without a verdict.

Commands, JSON, pages and their colours take names and words from here. A new cause is one row here, the rule that finds it, and its row in
``docs/how-to/act-on-verdicts.md``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# -- What to do: one sentence for each kind of cause; docs/how-to/act-on-verdicts.md has a row for each key. In brackets stand settings of verl --

ADVICE: Final = {
    "slow tool": "give the tool a time-out, and run blocking code in a thread (asyncio.to_thread)",
    "slow reward": "give the reward function a time-out, cache what it looks up, or compute more rewards at once [reward.num_workers]",
    "agent loop": "look for a blocking call in the agent loop or its tools, which holds all trajectories of the process; use asyncio.to_thread",
    "lost calls": "pass verl_otel.bind_context(function) to threads and executors instead of the function: calls that it made there belong to no "
    "trajectory, so that what took the time is not known",
    "failed trajectory": "look at why it failed (verl-otel report lists the slowest trajectories): its samples are lost, and a shorter time-out "
    "for what it waited for would have ended it earlier",
    "cancelled trajectory": "look at what cancelled it, and when (verl-otel report lists the slowest trajectories): its samples are lost, and a "
    "shorter time-out would have ended it earlier",
    "failed calls": "look at why the calls failed (their spans have the exception), give them a shorter time-out, or try again less often",
    "blocked loop": "call blocking code with await asyncio.to_thread(...), or use an asynchronous client for it",
    "paused process": "look at what is named: collections (gc.freeze after start-up), CPUs and other programs of the node, calls into C "
    "that keep the interpreter lock, also of the main thread (in a process of its own such a call blocks nothing else), a signal or a debugger",
    "no free slot": "let more trajectories start at once [rollout.agent.num_workers]",
    "noticed late": "beyond the trainer's interval of 2 s between two looks, look at your own sampler, and at the processes and the network of TransferQueue",
    "long generation": "limit the length of responses [data.max_response_length] and the number of turns, or train asynchronously",
    "engine queue": "let the engine run more requests at once [rollout.max_num_seqs, rollout.gpu_memory_utilization], or add replicas",
    "slow replica": "compare the GPU and the host of this replica with the others, and its load",
    "late rank": "compare the GPU, CPU load and data of this rank with the others; balance their tokens [trainer.balance_batch]",
    "slow worker": "compare the tokens of this step with others, and look at the process that is named",
    "transport": "look at the size of the batch, and at what the worker that is named did before",
    "spilling": "give Ray's object store more memory (object_store_memory of ray.init, --object-store-memory of ray start), or a faster disk, and keep "
    "fewer batches at a time",
    "weight sync": "look at the network, and at how much is sent at once [rollout.checkpoint_engine.update_weights_bucket_megabytes]",
    "checkpoint": "write to faster storage, or less often [trainer.save_freq]",
    "validation": "validate less often [trainer.test_freq] or on fewer samples [data.val_max_samples]",
    "logging": "give the tracker that is named a time-out or its offline mode, and log less often or in a thread",
    "data loading": "load with more workers [data.dataloader_num_workers], and look at what the dataset does for one item",
    "between steps": "look at what your code does after a step (dumps, callbacks), and add spans to it",
    "slow phase": "add spans to what runs in this phase, so that its parts are visible",
    "no link": "begin trajectories inside of the step (copy the context into threads), pass step=, or call verl_otel.consume",
    "not kept": "keep more trajectories whole (VERL_OTEL_TRAJECTORIES_PER_STEP, OTEL_TRACES_SAMPLER): what this one did was sampled out",
    "unknown": "run verl-otel check: spans of a process are missing",
}

# -- Sentences for steps without a verdict --

NOTHING_DELAYED: Final = "nothing delayed any of {steps} noticeably"
TOO_FEW: Final = "too few steps to say what is usual"
TOO_FEW_COMPARED: Final = TOO_FEW + ": {usual} of {of:,} can be compared, {needed} are needed"


# -- Kinds of work: the segments of a critical path --


class Work(NamedTuple):
    """A kind of work."""

    words: str
    """Noun phrase, as in "33% 2.00 s event loop blocked"."""
    advice: str
    """Key of `ADVICE`."""
    look: tuple[str, str, str]
    """Hue, pattern and label on the page."""
    latency: str = ""
    """Noun phrase for a change of its time between two runs; empty: `words`."""
    is_named: bool = False
    """Whether the words are followed by the name of the tool, phase or method."""


WORK: Final = {
    # the trainer
    "step": Work("the trainer, between its phases", "slow phase", ("grey", "solid", "trainer, in no phase"), "the trainer between phases"),
    "phase": Work("the trainer itself", "slow phase", ("blue", "level", "trainer"), "the trainer's own code", is_named=True),
    "call": Work("transport to the workers and back", "transport", ("blue", "dots", "call of the workers"), is_named=True),
    "spill": Work("transport, while Ray read spilled objects back from disk", "spilling", ("vermillion", "rising", "spilled objects")),
    "worker": Work("the workers", "slow worker", ("blue", "rising", "worker"), "the workers' methods", is_named=True),
    "weight_sync": Work("the weight sync", "weight sync", ("purple", "solid", "weight sync")),
    "checkpoint": Work("the checkpoint", "checkpoint", ("purple", "rising", "checkpoint")),
    "validation": Work("the validation", "validation", ("purple", "dots", "validation")),
    "between": Work("the trainer itself, between two steps", "between steps", ("grey", "level", "trainer, between two steps")),
    "logging": Work("logging", "logging", ("yellow", "level", "logging"), is_named=True),  # a tracker, in `Tracking.log`
    "data_loading": Work("loading the next batch", "data loading", ("orange", "cross", "loading data")),
    "poll": Work(
        "waiting for rollouts that had ended unnoticed", "noticed late", ("grey", "dots", "trainer had not noticed"),
        "rollouts that had ended unnoticed",
    ),
    # a trajectory
    "start": Work(  # submitted, not started: the agent loop had no free slot, or was not running yet
        "the awaited trajectory had not started", "no free slot", ("grey", "rising", "waiting to start"), "waiting for room in the agent loop"
    ),
    "trajectory": Work(
        "own code and waiting time", "agent loop", ("yellow", "cross", "agent loop"), "the agent loop's own code and waiting time"
    ),
    "llm": Work(  # transport and routing, or all of the call where no server is recorded
        "LLM call, outside of recorded servers", "long generation", ("green", "dots", "LLM call, outside its server"),
        "LLM calls outside their servers",
    ),
    "server": Work("LLM server", "long generation", ("green", "solid", "LLM server"), "LLM servers"),  # whose engine reports no states
    "queue": Work("queue of the engine", "engine queue", ("yellow", "dots", "engine: queue"), "the engines' queues"),
    "prefill": Work("prefill in the engine", "long generation", ("green", "level", "engine: prefill"), "prefill"),
    "decode": Work("decoding in the engine", "long generation", ("green", "rising", "engine: decode"), "decoding"),
    "tool": Work("tool", "slow tool", ("vermillion", "solid", "tool"), "tool latency", is_named=True),
    "reward": Work("reward", "slow reward", ("orange", "rising", "reward")),
    # any process
    "blocked": Work("event loop blocked", "blocked loop", ("vermillion", "cross", "event loop blocked"), is_named=True),
    "paused": Work("process paused", "paused process", ("vermillion", "dots", "process paused"), is_named=True),
    "unknown": Work("unknown: covered by no span", "unknown", ("grey", "cross", "covered by no span")),
}  # fmt: skip
"""By name, as in JSON and on paths."""


# -- Phases of a step, as verl names them --

PHASES: Final = {
    "gen": ("green", "solid"),
    "update_actor": ("blue", "solid"),
    "update_critic": ("blue", "cross"),
    "old_log_prob": ("sky", "solid"),
    "ref": ("sky", "rising"),
    "values": ("sky", "dots"),
    "adv": ("yellow", "solid"),
    "reward": ("orange", "solid"),
    "update_weights": ("purple", "solid"),
    "save_checkpoint": ("purple", "rising"),
    "testing": ("purple", "dots"),
    "submit": ("grey", "rising"),
    "no phase": ("grey", "solid"),
    "other": ("grey", "dots"),
}
"""Hue and pattern of a phase on the page. What looks like a kind of work is the same as that."""


# -- What a verdict is about --


class Subject(NamedTuple):
    """What a verdict may be about."""

    sentence: str
    """What it did. Fields: ``subject``, ``cause`` (words of the work that took the time), ``more`` (its excess), ``at`` (turn and process),
    ``within`` (the part of the phase), ``where`` (line of code), ``waited`` (what else was held up), ``during`` (the phase of a pause)."""
    advice: str = ""
    """Key of `ADVICE`; empty: that of the work that took the time."""


SUBJECTS: Final = {
    "trajectory": Subject("Trajectory {subject} delayed it: {cause}{at} took {more} longer than for its peers{where}."),
    "replica": Subject(
        "Replica {subject} delayed it: its calls took {more} longer than those of the others{at}.", "slow replica"
    ),
    "tool": Subject("Tool {subject} delayed it: {more} longer than usual{at}{where}."),
    "reward": Subject("The reward delayed it: {more} longer than usual{at}{where}."),
    "code": Subject("Several trajectories delayed it: {cause} took {more} longer than usual{at}{where}."),
    "phase": Subject("Phase {subject} delayed it: {more} longer than in other steps{within}{at}{where}."),
    "step": Subject("It was delayed by {cause}: {more} longer than in other steps{at}{where}."),
    "rank": Subject("{Subject} delayed it: the others of its group waited {more} for it in {cause}{at}.", "late rank"),
    "worker": Subject("{Subject} was late: {more} later than the others in {cause}{at}.", "late rank"),
    "between": Subject("The next step started late: {cause} took {more} longer than between other steps{at}{where}."),
    "loop": Subject("{Cause_name} blocked the event loop of {subject} for {more}{where}{waited}."),
    "paused loop": Subject(
        "The event loop of {subject} was paused for {more}: {cause_name}{waited}.", "paused process"
    ),
    "process": Subject("{subject} was paused for {more}{during}: {cause_name}."),
}
"""By the kind of the verdict. Those of ``worker`` have the kind ``rank``: in an own loop the others need not wait. Those of ``step`` have the kind
``phase``: the time was in no phase. Those of ``paused loop`` have the kind ``loop``: no code blocked it."""
EVIDENCE: Final = {
    "spans": "the lengths of spans, compared with those of others",
    "stacks": "a callback that an event loop did not run in time, and the stack of the loop meanwhile",
    "counters": "what the kernel, the interpreter and Ray count: run queue and CPU time, collections of garbage, the state of a process, bytes from disk",
}
"""What a verdict rests on."""
VERDICTS: Final = tuple(kind for kind in SUBJECTS if kind not in ("worker", "paused loop"))
"""Kinds of verdicts."""


# -- Causes of GPU time --


class GpuCause(NamedTuple):
    """What a GPU did, or why it did nothing."""

    state: str
    """One of `GPU_STATES`."""
    look: tuple[str, str, str]
    """Hue, pattern and label on the page."""


GPU_STATES: Final = ("productive", "overhead", "idle")
GPU_CAUSES: Final = {
    "train": GpuCause("productive", ("blue", "solid", "training")),
    "rollout": GpuCause("productive", ("green", "solid", "rollout")),
    "validation": GpuCause("overhead", ("purple", "dots", "validation")),
    "weight_sync": GpuCause("overhead", ("purple", "level", "weight sync")),
    "checkpoint": GpuCause("overhead", ("purple", "rising", "checkpoint")),
    "switch": GpuCause("overhead", ("yellow", "dots", "switching roles")),
    "start_up": GpuCause("overhead", ("grey", "dots", "start-up")),
    "tail_wait": GpuCause("idle", ("green", "level", "waiting for the tail")),
    "tool_wait": GpuCause("idle", ("vermillion", "rising", "waiting for tools")),
    "reward_wait": GpuCause("idle", ("orange", "rising", "waiting for rewards")),
    "loop_wait": GpuCause("idle", ("vermillion", "cross", "waiting for a blocked event loop")),
    "rollout_wait": GpuCause("idle", ("green", "rising", "waiting for rollouts")),
    "none_open": GpuCause("idle", ("green", "cross", "waiting, no trajectory open")),
    "train_wait": GpuCause("idle", ("blue", "rising", "waiting for training")),
    "sync_wait": GpuCause("idle", ("grey", "level", "waiting for weights")),
    "checkpoint_wait": GpuCause("idle", ("grey", "rising", "waiting for the checkpoint")),
    "validation_wait": GpuCause("idle", ("purple", "cross", "waiting for the validation")),
    "data_loading": GpuCause("idle", ("orange", "cross", "loading data")),
    "logging": GpuCause("idle", ("yellow", "level", "logging")),
    "data": GpuCause("idle", ("blue", "level", "the trainer's own work")),
    "unknown": GpuCause("idle", ("grey", "cross", "unknown")),
}
"""By name, as in JSON and as label ``verl.gpu.cause``."""


# -- Learning --

GROUP_RELATIVE: Final = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
)
"""verl's estimators (0.9.1, ``core_algos.py``) in which equal scores of a group give advantages of zero."""
