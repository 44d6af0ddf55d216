# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The trainings in which levers are pulled: what is slow in which steps, and which two of these are compared.

A training consists of sections of some steps. In each of them other things are slow, so one lever is pulled from one section to the next;
what needs another configuration is pulled in a training of its own.
"""

from typing import NamedTuple

from tests.verl_cpu import cpu_train

GROUP = 8
"""Trajectories of a step."""
WARM_UP = 2
"""Steps before the first section: they contain the start-up."""
STEPS = 4
"""Steps of a section; the first one is not compared, because what came before is still in it."""
WAITS = {"tool": 0.8, "reward": 0.5, "sync": 0.6, "item": 0.1, "log": 0.6, "metrics": 0.4}
"""Seconds by kind of plant (`cpu_plant`)."""
BLOCKING = {"block": 0.25}
TAIL, TWO = {"tail": (2.0, (4,))}, {"tail": (2.0, (3, 6))}
"""Seconds, and which of the tool calls of a step take that long."""
SLOTS = {"server": 0.3, "tool": 0.5}
AHEAD = {"tool": 2.5, "rank": 1.0}
SEPARATE = (
    "actor_rollout_ref.hybrid_engine=False", "trainer.v1.separate_async.parameter_sync_step=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", *cpu_train.MODES["sync"][3:],
)  # fmt: skip
LIMITED = "actor_rollout_ref.rollout.max_num_seqs=2"
NOTHING_AHEAD, ONE_AHEAD, TWO_AHEAD = (f"trainer.v1.separate_async.num_warmup_batches={n}" for n in range(3))


class Training(NamedTuple):
    """One training of the series."""

    sections: dict
    """By name, what is slow in it."""
    overrides: tuple = ()
    mode: str = "sync"
    agents: int = 1
    """Agent loop workers, each of which counts its own calls."""

    @property
    def steps(self):
        """Number of its steps."""
        return WARM_UP + STEPS * len(self.sections) + 1

    def find_steps(self, section):
        """Return the first and the last step of a section."""
        first = WARM_UP + STEPS * list(self.sections).index(section) + 1
        return first, first + STEPS - 1


class Pull(NamedTuple):
    """A lever that is pulled from one section to another."""

    kind: str
    subject: str
    before: tuple
    """Training and section."""
    after: tuple
    how: str


TRAININGS = {
    "sync": Training(
        {
            "waits": WAITS,
            "faster tool": {**WAITS, "tool": 0.4},
            "faster reward": {**WAITS, "reward": 0.25},
            "faster logging": {**WAITS, "log": 0.3},
            "shorter between": {**WAITS, "log": 0.3, "metrics": 0.2},
            "faster data": {**WAITS, "item": 0.05},
            "background": {**WAITS, "background": 1},
            "waits again": WAITS,
            "blocking": BLOCKING,
            "in a thread": {"tool": 0.25},
            "faster blocking": {"block": 0.125},
            "tail": TAIL,
            "no tail": {},
            "two": TWO,
            "one of two": TAIL,
        }
    ),
    "two agent loop workers": Training(
        {"blocking": BLOCKING, "waits": WAITS}, ("actor_rollout_ref.rollout.agent.num_workers=2",), agents=2
    ),
    "slots": Training(
        {"slots": SLOTS, "faster tool": {**SLOTS, "tool": 0.25}, "slots again": SLOTS},
        (*SEPARATE, LIMITED, NOTHING_AHEAD),
        "separate_async",
    ),
    "two replicas": Training(
        {"slots": SLOTS},
        (
            *SEPARATE, LIMITED, NOTHING_AHEAD, "actor_rollout_ref.rollout.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=3",
        ),
        "separate_async",
    ),
    "slots ahead": Training({"slots": SLOTS}, (*SEPARATE, LIMITED, ONE_AHEAD), "separate_async"),
    "two reward workers": Training({"waits": WAITS}, ("reward.num_workers=2",)),
    "ahead": Training(
        {"ahead": AHEAD, "faster tool": {**AHEAD, "tool": 1.25}, "ahead again": AHEAD},
        (*SEPARATE, ONE_AHEAD),
        "separate_async",
    ),
    "two ahead": Training({"ahead": AHEAD}, (*SEPARATE, TWO_AHEAD), "separate_async"),
}  # fmt: skip
_WAITS, _BLOCKING = ("sync", "waits"), ("sync", "blocking")
_SLOTS, _AHEAD = ("slots", "slots"), ("ahead", "ahead")
PULLS = {
    "a tool of 0.8 s takes half": Pull("tool", "add", _WAITS, ("sync", "faster tool"), "0.8 s → 0.4 s"),
    "a reward of 0.5 s takes half": Pull("reward", "toy/add", _WAITS, ("sync", "faster reward"), "0.5 s → 0.25 s"),
    "a tracker of 0.6 s takes half": Pull("logging", "file", _WAITS, ("sync", "faster logging"), "0.6 s → 0.3 s"),
    "half of the time between steps": Pull(
        "between", "", _WAITS, ("sync", "shorter between"), "tracker 0.6 s → 0.3 s, own code 0.4 s → 0.2 s"
    ),
    "data loading of 0.4 s takes half": Pull("data_loading", "", _WAITS, ("sync", "faster data"), "0.1 s → 0.05 s an item"),
    "weights of 0.6 s in the background": Pull("weight_sync", "", _WAITS, ("sync", "background"), "sent by a thread"),
    "two reward workers": Pull("reward_workers", "", _WAITS, ("two reward workers", "waits"), "`reward.num_workers=2`"),
    "two agent loop workers where nothing blocks": Pull(
        "agent_loop_workers", "", _WAITS, ("two agent loop workers", "waits"), "`agent.num_workers=2`"
    ),
    "a blocking tool of 0.25 s in a thread": Pull(
        "unblocked_tool", "add", _BLOCKING, ("sync", "in a thread"), "`asyncio.sleep` for `time.sleep`"
    ),
    "a blocking tool of 0.25 s takes half": Pull(
        "tool", "add", _BLOCKING, ("sync", "faster blocking"), "0.25 s → 0.125 s"
    ),
    "two agent loop workers for a blocking tool": Pull(
        "agent_loop_workers", "", _BLOCKING, ("two agent loop workers", "blocking"), "`agent.num_workers=2`"
    ),
    "no tail": Pull(
        "tail", "5%", ("sync", "tail"), ("sync", "no tail"), "no call of 2 s in a step instead of one"
    ),
    "one of two in the tail": Pull(
        "tail", "1%", ("sync", "two"), ("sync", "one of two"), "one call of 2 s in a step instead of two"
    ),
    "a tool of 0.5 s takes half, behind two slots": Pull("tool", "add", _SLOTS, ("slots", "faster tool"), "0.5 s → 0.25 s"),
    "two replicas of two slots": Pull("replicas", "", _SLOTS, ("two replicas", "slots"), "`rollout.n_gpus_per_node=2`"),
    "one batch ahead": Pull("asynchrony", "", _SLOTS, ("slots ahead", "slots"), "`num_warmup_batches=1`"),
    "a tool of 2.5 s takes half, one batch ahead": Pull("tool", "add", _AHEAD, ("ahead", "faster tool"), "2.5 s → 1.25 s"),
    "two batches ahead": Pull("asynchrony", "", _AHEAD, ("two ahead", "ahead"), "`num_warmup_batches=2`"),
}  # fmt: skip
EQUAL = (
    (_WAITS, ("sync", "waits again")),
    (("sync", "tail"), ("sync", "one of two")),
    (_SLOTS, ("slots", "slots again")),
    (_AHEAD, ("ahead", "ahead again")),
)
"""Sections that are equal: how far they are apart is the noise."""


def find_plants(training):
    """Return what is planted in a training, as `cpu_plant` reads it."""
    plants = []
    for section, slow in training.sections.items():
        first, last = training.find_steps(section)
        calls = {"tool": GROUP // training.agents, "block": GROUP // training.agents, "reward": GROUP}
        for kind, value in slow.items():
            if kind == "tail":
                seconds, which = value
                plants += [
                    f"tool:{seconds}:{GROUP * (step - 1) + call}" for step in range(first, last + 1) for call in which
                ]
            elif kind == "server":
                plants += [f"server:{value}:*:{replica}" for replica in range(3)]
            elif kind == "rank":
                plants.append(f"rank:{value}:*")
            else:
                each = calls.get(kind, 1)
                when = f"{each * (first - 1) + 1}-{each * last}" if len(training.sections) > 1 else "*"
                plants.append(f"{kind}:{value}:{when}")
    return ",".join(dict.fromkeys(plants))
