# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A made-up run of many steps, for pictures and for what is tried by hand: it learns, some of its steps are held by a tool."""

import math
import random

from tests.builders import stories

PHASES = {"reward": 0.02, "old_log_prob": 0.09, "ref": 0.07, "adv": 0.01, "update_actor": 0.21, "update_weights": 0.04}
MEMBERS = 32
HELD_EVERY = 487
DETAILED_EVERY = 250


def make_members(agent, server, number, begin, seconds, late, dice):
    """The trajectories of a step: a long tail, and one whose tool took ``late`` seconds longer."""
    made = []
    for index in range(MEMBERS):
        own = (seconds - late) * (0.15 + 0.8 * dice.betavariate(1.6, 3.2)) + (late if index == 11 else 0.0)
        at, calls, turns = begin, [], dice.randint(2, 4)
        for turn in range(turns):
            extra = late if index == 11 and turn == turns - 1 else 0.0
            each = (own - (late if index == 11 else 0.0)) / turns
            tool = "search" if extra else dice.choice(("search", "python"))
            calls += [
                ("llm", "qwen3-8b", at, at + 0.7 * each),
                ("tool", tool, at + 0.7 * each, at + 0.95 * each + extra),
            ]
            at += 0.95 * each + extra
        more = {"uid": f"{number:06x}{index // 4:02x}", "index": index % 4, "step": number, "server": server}
        made.append(stories.trajectory(agent, begin, begin + own, calls=calls, reward=(at, begin + own), **more))
    return made


def make(folder, steps, seed=1):
    """Write a run of some steps of about 30 seconds."""
    dice, story, at = random.Random(seed), stories.Story(folder, folder.name), 0.0
    trainer, agent, server = story.process("trainer"), story.process("agent_loop"), story.process("llm_server")
    for number in range(1, steps + 1):
        done = number / steps
        late = dice.uniform(20, 60) if number % HELD_EVERY == 60 else 0.0
        usual = 30 * dice.lognormvariate(0, 0.06) * (1 + 0.4 * done) + (240 if number == 1 else 0)
        gen = 0.56 * usual + late
        is_detailed = late or number % DETAILED_EVERY == 0
        members = make_members(agent, server, number, at + 0.1, gen - 0.2, late, dice) if is_detailed else ()
        phases, end = [("gen", at, at + gen)], at + gen
        for key, share in PHASES.items():
            phases.append((key, end, end + share * usual))
            end += share * usual
        stories.step(trainer, number, at, end, phases, members)
        reward = 0.15 + 0.6 * (1 - math.exp(-3 * done)) + dice.gauss(0, 0.03)
        for name, value in {
            "training.step": number,
            "critic.rewards.mean": reward,
            "actor.ppo_kl": abs(dice.gauss(0.004 + 0.01 * done, 0.002)),
            "actor.kl_loss": abs(dice.gauss(0.01 + 0.03 * done, 0.003)),
            "actor.pg_loss": dice.gauss(-0.01, 0.02),
            "actor.entropy": 0.9 * math.exp(-1.5 * done) + 0.1 + dice.gauss(0, 0.01),
            "actor.grad_norm": dice.lognormvariate(-1, 0.2),
            "response_length.mean": 400 + 500 * done + dice.gauss(0, 20),
            "perf.throughput": 90_000 / usual + dice.gauss(0, 60),
        }.items():
            trainer.scalar(f"verl.{name}", end, value)
        at = end + 0.05
    story.manifest(verl__project="search-agent", verl__experiment="qwen3-8b-grpo", verl__algorithm="grpo")
    last = {"step_seconds": usual + late, "reward": reward}
    story.status({"state": "finished", "time": stories.T0 + at, "step": steps, "total_steps": steps, **last})
    return story.write()
