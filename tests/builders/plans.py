# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings cases step by step, for verdicts: what each step usually takes, and what was slow."""

import random

from tests.builders import forests as f
from verl_otel.analysis.verdicts.judge import Judge, examine

S = 10**9
UPDATES = ("ref", "update_actor")


def judge(*cases):
    """Final verdicts of steps, each given as (root, members)."""
    judged = Judge()
    steps = []
    for number, (root, members, *more) in enumerate(cases, 1):
        steps.append(f.tell(root, members, number)._replace(**(more[0] if more else {})))
        judged.judge(steps[-1], examine(steps[-1], root, members))
    settled = judged.settle()
    return [settled.get(step.trace_id, ()) for step in steps]


class Plan:
    """A step of an ordinary training of 8 trajectories on 2 replicas, and what is slow in it, in seconds."""

    updates = UPDATES

    def __init__(self, number, *, noise=0.0, seed=0, **slow):
        self.number, self.slow = number, slow
        self.random = random.Random(f"{number} {seed}")
        self.noise = noise
        self.now = 0
        self.first = 3.0 if number == 1 else 1.0

    def takes(self, seconds, extra=0.0):
        """Nanoseconds that something takes on a machine that is busy with other things, too."""
        return round((seconds * (1 + self.noise * self.random.random()) + extra) * S)

    def member(self, index, begin):
        replica, now = 3 + index % 2, begin + self.takes(0.02)
        turns = []
        for turn in range(2):
            start = now
            served = now + self.takes(0.01)
            behind = served + self.takes(0.2, self.slow.get(f"replica {replica}", 0))
            now = behind + self.takes(0.01)
            chat = f.chat(start, now, served=(served, behind), at=replica)
            used = now + self.takes(0.1, self.slow.get(f"tool {index}/{turn}", self.slow.get("tool", 0)))
            turns.append(f.turn(turn, start, used, chat, f.tool("search", now, used)))
            now = used
        scored = now + self.takes(0.05, self.slow.get(f"reward {index}", self.slow.get("reward", 0)))
        return f.roll(
            begin, scored + self.takes(0.01), *turns, f.reward(now, scored), uid=f"u{self.number}", index=index
        )

    def phase(self, key, begin, seconds, slow):
        end = begin + self.takes(seconds * self.first, slow)
        work = f.worker(key, begin + self.takes(0.01), end - 1000)
        return f.phase(key, begin, end, f.call(key, begin, end, work))

    def tell(self):
        submitted = self.takes(20.0 if self.number == 1 else 0.02, self.slow.get("submit", 0))
        members = [self.member(index, submitted + self.takes(0.03)) for index in range(8)]
        gen_end = max(each.end_ns for each in members) + self.takes(0.05)
        phases = [f.phase("submit", 0, submitted), f.phase("gen", submitted, gen_end, f.consume(gen_end, *members))]
        for key in self.updates:
            phases.append(self.phase(key, phases[-1].span.end_ns, 0.4, self.slow.get(key, 0)))
        begin = phases[-1].span.end_ns
        if "save" in self.slow:
            end = begin + self.takes(0.1, self.slow["save"])
            phases.append(f.phase("save_checkpoint", begin, end, f.span("verl.checkpoint", begin, end)))
            begin = end
        end = begin + self.takes(0.04, self.slow.get("weight_sync", 0))
        work = f.worker("update_weights", begin + self.takes(0.005), end)
        call = f.call("update_weights", begin, begin + 1000, work, blocking=False)
        phases.append(f.phase("update_weights", begin, end, f.span("verl.weight_sync", begin, end, call)))
        return f.step(0, end + self.takes(0.02), *phases, number=self.number), members


def plan(steps=3, *, noise=0.1, seed=0, **slow):
    """Judge a run in which steps are slow as cases: ``at2={...}`` says what is slow in the second one."""
    everywhere = slow.pop("everywhere", {})
    plans = [
        Plan(each, noise=noise, seed=seed, **everywhere, **slow.get(f"at{each}", {})) for each in range(1, steps + 1)
    ]
    return judge(*(each.tell() for each in plans))


class LongPlan(Plan):
    """A step with a third phase, so that two others tell how fast it went."""

    updates = ("old_log_prob", *UPDATES)
