# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of faults, and for each what names it rightly. They are written down before detectors are made for them.

A kind that is ``held_out`` is only counted: no detector is changed because of it.
"""

from typing import NamedTuple

ASYNCHRONOUS = ("separate_async", "fully_async")
"""Modes of verl in which rollouts go on while a step trains."""
MODES = ("sync", *ASYNCHRONOUS)
"""Modes of verl in which faults are planted."""
GROUP = 8
"""Trajectories of a step; each has one tool call, one reward, one write to TransferQueue and two LLM calls."""
VALIDATION = 8
"""Trajectories of a validation."""
VALIDATE_EVERY = SAVE_EVERY = 6
"""Steps between two validations, and between two checkpoints, of trainings that have them."""
SLOW, HUNG, CRASHED, DATA = "slow", "hung", "crashed", "wrong data"
"""Series: held for seconds, for longer than the limits of the watchdog, ended, and going on with other values."""


class Kind(NamedTuple):
    """One kind of fault: how it is planted in a step, and what names it rightly."""

    sort: str
    """As in the table of the page."""
    where: str
    plant: str
    """``<place>[!<action>][:<which>]``, as `cpu_plant` reads it."""
    number: str
    """How the number of a step becomes that of the call: a key of `NUMBERS`."""
    right: tuple[str, ...]
    """Verdicts ``<kind> <cause> <name>``, of which the name may be a part or missing; for other series events
    ``<stall or crash> <instance> <span>``, or ``failed <error>``."""
    series: str = SLOW
    needs: str = ""
    """``validation`` or ``checkpoint``: its step ends with one."""
    held_out: bool = False


NUMBERS = {
    "step": lambda step, *_: step,
    "steps": lambda step, *_: f"{step}-{step + 3}",
    "before": lambda step, *_: step - 1,
    "after": lambda step, *_: step + 1,
    "call": lambda step, validations, _: GROUP * step - 4 + VALIDATION * validations,
    "llm call": lambda step, validations, _: 2 * (GROUP * step - 4 + VALIDATION * validations),
    "update": lambda step, _, updates: updates * (step - 1) + 1,
    "old": lambda step, _, updates: 2 * updates * (step - 1) + 1,
    "ref": lambda step, _, updates: 2 * updates * (step - 1) + 2,
    "checkpoint": lambda step, *_: step // SAVE_EVERY,
}
"""Number of a call from the number of its step, that of the validations before it, and that of the updates in a step."""
UPDATES = {"sync": 1, "separate_async": 2, "fully_async": 2}
"""Updates in a step. Asynchronous modes set new weights after every second one."""
_ANY_TRAJECTORY = ("trajectory trajectory",)
_STOPPED = "did not run"
_GC = "garbage collection"
NO_CPU = "no CPU"
"""Name of the cause where other programs take the CPU."""

KINDS = {
    # slow
    "slow tool": Kind("slow", "tool", "tool", "call", ("trajectory tool add", "tool tool add")),
    "slow reward": Kind("slow", "reward", "reward", "call", ("trajectory reward", "reward reward")),
    "slow request on one replica": Kind("slow", "replica", "server:1", "before", ("trajectory server", "replica server")),
    "slow weight sync": Kind("slow", "rank", "sync", "step", ("phase weight_sync", "phase worker update_weights")),
    "slow checkpoint": Kind("disk", "checkpoint", "checkpoint:*", "checkpoint", ("phase checkpoint", "phase worker save_checkpoint"), needs="checkpoint"),
    "late rank": Kind("slow", "rank", "rank:1", "update", ("rank worker",)),
    "slow advantage": Kind("slow", "trainer", "advantage", "step", ("phase phase adv",)),
    "slow tracker": Kind("network", "tracker", "log", "step", ("between logging file",)),
    "slow dataset item": Kind("disk", "data loader", "item", "step", ("phase data_loading",)),
    "slow code after a step": Kind("slow", "trainer", "metrics", "step", ("between between",)),
    "slow start of an agent": Kind("slow", "agent loop", "agent", "call", _ANY_TRAJECTORY),
    "slow way to the replica": Kind("network", "agent loop", "llm", "llm call", ("trajectory llm",), held_out=True),
    "slow sampling from the buffer": Kind("slow", "trainer", "sample", "step", ("phase poll", "phase phase gen")),
    "slow read from TransferQueue": Kind("network", "TransferQueue", "get", "step", ("phase poll", "phase phase gen")),
    "slow write to TransferQueue": Kind("network", "TransferQueue", "put", "call", _ANY_TRAJECTORY, held_out=True),
    "slow log probabilities on all ranks": Kind("slow", "rank", "infer:*", "old", ("phase worker compute_log_prob",)),
    "slow reference on all ranks": Kind("slow", "rank", "infer:*", "ref", ("phase worker compute_ref_log_prob",), held_out=True),
    "slow update on all ranks": Kind("slow", "rank", "rank:*", "update", ("phase worker update_actor",)),
    "slow validation": Kind("slow", "trainer", "validate", "step", ("between validation",), needs="validation"),
    "slow loading of weights": Kind("slow", "replica", "weights:1", "after", ("phase weight_sync", "phase worker update_weights"), held_out=True),
    "slow submission": Kind("slow", "Ray", "submit", "step", ("phase phase submit",)),
    "slow code in a step, outside its phases": Kind("slow", "trainer", "balance", "step", ("phase step",), held_out=True),
    "slow clearing of TransferQueue": Kind("network", "TransferQueue", "clear", "step", ("between between",), held_out=True),
    # starved: blocked, stopped, without CPU, without a thread
    "tool that blocks the event loop": Kind("blocked", "tool", "block", "call", ("loop blocked tool add",)),
    "replica that blocks its event loop": Kind("blocked", "replica", "hold:1", "before", ("loop blocked",)),
    "reward worker that blocks its event loop": Kind("blocked", "reward", "rewardloop!sleep", "call", ("loop blocked",), held_out=True),
    "agent that blocks its event loop": Kind("blocked", "agent loop", "agent!sleep", "call", ("loop blocked",)),
    "collections of garbage in the agent loop": Kind("starved", "agent loop", "agent!collect", "call", (f"loop blocked {_GC}", f"process paused {_GC}")),
    "collections of garbage in the trainer": Kind("starved", "trainer", "advantage!collect", "step", (f"process paused {_GC}",)),
    "collections of garbage on a rank": Kind("starved", "rank", "rank!collect:1", "update", (f"process paused {_GC}",), held_out=True),
    "interpreter lock held in the agent loop": Kind("starved", "agent loop", "tool!lock", "call", ("loop blocked interpreter lock", "process paused interpreter lock")),
    "no free thread in the agent loop": Kind("starved", "agent loop", "agent!threads", "call", ("process paused no free thread",)),
    "no free thread in the reward worker": Kind("starved", "reward", "rewardloop!threads", "call", ("process paused no free thread",), held_out=True),
    "stopped agent loop": Kind("starved", "agent loop", "tool!stop", "call", (f"loop blocked the process {_STOPPED}", f"process paused the process {_STOPPED}")),
    "stopped replica": Kind("starved", "replica", "server!stop:1", "before", (f"loop blocked the process {_STOPPED}", f"process paused the process {_STOPPED}"), held_out=True),
    "stopped rank": Kind("starved", "rank", "rank!stop:1", "update", (f"process paused the process {_STOPPED}",), held_out=True),
    "stopped trainer": Kind("starved", "trainer", "advantage!stop", "step", (f"process paused the process {_STOPPED}",)),
    "stopped reward worker": Kind("starved", "reward", "reward!stop", "call", (f"loop blocked the process {_STOPPED}", f"process paused the process {_STOPPED}"), held_out=True),
    "stopped storage of TransferQueue": Kind("starved", "TransferQueue", "advantage!storage", "step", (f"process paused the process {_STOPPED}",)),
    "stopped raylet": Kind("starved", "Ray", "submit!raylet", "step", ("process paused raylet",)),
    "CPU taken by other programs": Kind("starved", "node", "submit!hog", "step", (f"process paused {NO_CPU}", f"loop blocked {NO_CPU}")),
    # hung
    "hanging tool": Kind("hung", "tool", "tool", "call", ("stall agent_loop execute_tool add",), HUNG),
    "hanging reward": Kind("hung", "reward", "reward", "call", ("stall reward verl.reward",), HUNG),
    "hanging request": Kind("hung", "replica", "server:1", "before", ("stall llm_server verl.generate",), HUNG),
    "rank that never comes": Kind("hung", "rank", "rank:1", "update", ("stall actor_rollout_ref-1",), HUNG),
    "hanging tracker": Kind("hung", "tracker", "log", "step", ("stall trainer verl.logging",), HUNG, held_out=True),
    "hanging checkpoint": Kind("hung", "checkpoint", "checkpoint:*", "checkpoint", ("stall actor_rollout_ref verl.worker", "stall actor_rollout_ref verl.checkpoint"), HUNG, needs="checkpoint"),
    "hanging dataset item": Kind("hung", "data loader", "item", "step", ("stall trainer verl.data_loading",), HUNG, held_out=True),
    "hanging weight sync": Kind("hung", "rank", "sync", "step", ("stall actor_rollout_ref",), HUNG),
    "agent loop stopped for long": Kind("hung", "agent loop", "tool!stop", "call", ("stall agent_loop",), HUNG, held_out=True),
    "replica stopped for long": Kind("hung", "replica", "server!stop:1", "before", ("stall llm_server",), HUNG),
    # crashed
    "killed agent loop": Kind("crashed", "agent loop", "tool!kill", "call", ("crash agent_loop",), CRASHED),
    "killed rank": Kind("crashed", "rank", "rank!kill:1", "update", ("crash actor_rollout_ref",), CRASHED),
    "killed replica": Kind("crashed", "replica", "server!kill:1", "before", ("crash llm_server",), CRASHED),
    "killed reward worker": Kind("crashed", "reward", "reward!kill", "call", ("crash reward",), CRASHED, held_out=True),
    "killed storage of TransferQueue": Kind("crashed", "TransferQueue", "advantage!kill_storage", "step", ("crash transfer_queue",), CRASHED),
    "exception in the trainer": Kind("crashed", "trainer", "advantage!fail", "step", ("failed RuntimeError",), CRASHED),
    "no memory on a rank": Kind("crashed", "rank", "rank!memory:1", "update", ("failed OutOfMemoryError",), CRASHED),
    "full disk at a checkpoint": Kind("disk", "checkpoint", "checkpoint!full:1", "checkpoint", ("failed OSError",), CRASHED, needs="checkpoint"),
    # wrong data
    "tool that raises": Kind("wrong data", "tool", "tool!fail", "call", ("tool add failed",), DATA),
    "rewards without a signal": Kind("wrong data", "reward", "score!equal", "step", ("zero_variance",), DATA),
}  # fmt: skip
"""All kinds, by name. Four that were held out no longer are, since a detector was made for them: a slow read from TransferQueue, a stopped raylet, a
killed storage, a full disk."""
_OF_REPLICA = (
    "slow request on one replica", "slow loading of weights", "replica that blocks its event loop", "stopped replica",
    "hanging request", "replica stopped for long", "killed replica", "slow weight sync",
)  # fmt: skip


def _set_apart(replica):
    """Return what differs where only one replica, of its own, makes the rollouts of a training, and goes on while others train."""
    plants = {name: KINDS[name].plant.partition(":")[0] for name in _OF_REPLICA}
    return {
        **{name: {"plant": f"{place}:{replica}"} for name, place in plants.items()},
        # Its weights are received in a process of its own.
        "hanging weight sync": {"plant": f"sync:{replica}", "right": ("stall rollout",)},
        "rewards without a signal": {"number": "steps"},  # those of one step are computed during several
    }


_OTHERWISE = {
    "separate_async": _set_apart(2),  # after those of the ranks, which make the validations
    "fully_async": {
        **_set_apart(0),
        # It logs within its step, of two local steps, and ends the first of them there, too. It saves after its step.
        "slow tracker": {"right": ("between logging file", "phase logging file")},
        "slow code after a step": {"right": ("between between", "phase step")},
        "slow validation": {"number": "checkpoint"},
        "slow checkpoint": {"right": ("between checkpoint", "between worker save_checkpoint")},
        # Its ranks are of the role ``actor``.
        "rank that never comes": {"right": ("stall actor-1",)},
        "hanging checkpoint": {"right": ("stall actor verl.worker", "stall actor verl.checkpoint")},
        "killed rank": {"right": ("crash actor",)},
        "slow reference on all ranks": {"number": "update"},
        "stopped raylet": {"plant": "advantage!raylet"},
        "CPU taken by other programs": {"plant": "advantage!hog"},
    },
}
"""What differs in other modes than ``sync``."""
_NO_QUEUE = "has no TransferQueue"
_AHEAD = "loads up to 128 prompts ahead"
UNPLANTED = {
    "separate_async": {},
    "fully_async": {
        "slow read from TransferQueue": _NO_QUEUE,
        "slow write to TransferQueue": _NO_QUEUE,
        "slow clearing of TransferQueue": _NO_QUEUE,
        "stopped storage of TransferQueue": _NO_QUEUE,
        "killed storage of TransferQueue": _NO_QUEUE,
        "slow log probabilities on all ranks": "trains on those of its rollouts",
        "slow submission": "has a rollouter that submits by itself",
        "slow dataset item": _AHEAD,
        "hanging dataset item": _AHEAD,
    },
}
"""Kinds that cannot be planted in a mode, and why: the mode ..."""


def of_mode(mode):
    """Return the kinds that are planted in a mode, by name."""
    otherwise, unplanted = _OTHERWISE.get(mode, {}), UNPLANTED.get(mode, {})
    return {name: kind._replace(**otherwise.get(name, {})) for name, kind in KINDS.items() if name not in unplanted}


IN_ROLLOUTS = tuple(
    name for name, kind in KINDS.items() if kind.series == SLOW and kind.number in ("call", "llm call", "before")
)
"""Kinds that hold the rollouts of their step."""
_AFTER = ("advantage", "rank", "infer", "sync", "log", "metrics", "item", "balance")
IN_UPDATE = tuple(
    name for name, kind in KINDS.items() if kind.series == SLOW and kind.plant.split("!")[0].split(":")[0] in _AFTER
)
"""Kinds that hold what follows them. Stopped storage, and the like, last from one into the other, and are in neither."""
