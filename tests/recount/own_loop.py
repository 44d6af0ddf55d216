# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own that keeps a log of what it does, in ``OUT/log`` as the bed does.

Usage: own_loop.py asyncio|threads|ray|failed OUT [STEPS]    (telemetry by environment; ``failed``: the last step raises after its trajectories;
with STEPS so many of about a second each, in which no call is slower than others by more than chance)

Each trajectory has two turns, with a tool between them. The samples of a prompt are spread over two threads, tasks or actors so that each of these
sees equal scores, and both together different ones.
"""

import asyncio
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path

import psutil

import verl_otel
from tests.verl_cpu import cpu_log

STEPS, PROMPTS, GROUP = 4, 3, 4
PROMPT, ANSWER, OBSERVATION = 12, 5, 3
"""Tokens."""
SECONDS = 0.02
SLOW = 0.4
"""Seconds of the last tool call of each step, for which the step waits."""


def score_of(uid, index):
    """Prompt 0 is solved always, prompt 1 by every second sample, prompt 2 never."""
    return {"0": 1.0, "1": float(index % 2), "2": 0.0}[uid.rpartition("-")[2]]


def one_slow(uid, index):
    return SLOW if (uid.rpartition("-")[2], index) == (str(PROMPTS - 1), GROUP - 1) else SECONDS


def alike(uid, index):
    return random.Random(f"{uid}/{index}").uniform(SLOW, 2 * SLOW)


class Agent:
    """Runs trajectories. ``seconds_of`` returns how long the tool call of one takes."""

    def __init__(self, seconds_of=one_slow):
        self.seconds_of = seconds_of

    @verl_otel.llm("toy")
    def generate(self):
        begin = time.time()
        time.sleep(SECONDS)
        cpu_log.write("llm", start=begin, end=time.time(), tokens=ANSWER, prompt_tokens=PROMPT)
        return {"usage": {"prompt_tokens": PROMPT, "completion_tokens": ANSWER}}

    @verl_otel.tool("python")
    def run_tool(self, seconds):
        with cpu_log.stamped("tool", name="python"):
            time.sleep(seconds)

    @verl_otel.reward("math")
    def compute_score(self, uid, index):
        score = score_of(uid, index)
        return {"score": score, "acc": float(score >= 1), "form": score - float(score >= 1)}

    @verl_otel.trajectory
    def roll_out(self, uid, index, step):
        for turn in range(2):
            with verl_otel.turn(turn):
                self.generate()
                if turn == 0:
                    self.run_tool(self.seconds_of(uid, index))
        self.compute_score(uid, index)
        return {
            "prompt_ids": [1] * PROMPT,
            "response_ids": [2] * (2 * ANSWER + OBSERVATION),
            "response_mask": [1] * ANSWER + [0] * OBSERVATION + [1] * ANSWER,
        }

    def work(self, uid, index, step):
        with cpu_log.stamped("own", uid=uid, index=index, step=step, score=score_of(uid, index)):
            self.roll_out(uid, index, step)


class AsyncAgent(Agent):
    """Runs trajectories in the event loop."""

    @verl_otel.llm("toy")
    async def generate(self):
        begin = time.time()
        await asyncio.sleep(SECONDS)
        cpu_log.write("llm", start=begin, end=time.time(), tokens=ANSWER, prompt_tokens=PROMPT)
        return {"usage": {"prompt_tokens": PROMPT, "completion_tokens": ANSWER}}

    @verl_otel.tool("python")
    async def run_tool(self, seconds):
        with cpu_log.stamped("tool", name="python"):
            await asyncio.sleep(seconds)

    @verl_otel.trajectory
    async def roll_out(self, uid, index, step):
        for turn in range(2):
            with verl_otel.turn(turn):
                await self.generate()
                if turn == 0:
                    await self.run_tool(self.seconds_of(uid, index))
        self.compute_score(uid, index)
        return {
            "prompt_ids": [1] * PROMPT,
            "response_ids": [2] * (2 * ANSWER + OBSERVATION),
            "response_mask": [1] * ANSWER + [0] * OBSERVATION + [1] * ANSWER,
        }

    async def work(self, uid, index, step):
        with cpu_log.stamped("own", uid=uid, index=index, step=step, score=score_of(uid, index)):
            await self.roll_out(uid, index, step)


@verl_otel.update("actor")
def update():
    with cpu_log.stamped("rank", method="update", rank=0):
        time.sleep(SECONDS)


def samples_of(step):
    return [(f"{step}-{prompt}", index, step) for prompt in range(PROMPTS) for index in range(GROUP)]


def train(roll_out, steps=STEPS, *, fails=False):
    """Train. ``roll_out`` runs trajectories, given as (uid, index, step), to their end. ``fails``: the last step raises after that."""
    for step in range(1, steps + 1):
        with verl_otel.step(step), cpu_log.stamped("step", step=step):
            with verl_otel.phase("gen"):
                roll_out(samples_of(step))
                if fails and step == steps:
                    raise RuntimeError("failed on purpose")
            with verl_otel.phase("update_actor"):
                update()
        cpu_log.write("pause", step=step)
        time.sleep(SLOW / 2)  # what lies between two steps is no part of them


def with_asyncio(*args, steps):
    agent = AsyncAgent(*args)

    async def together(samples):
        await asyncio.gather(*(agent.work(*sample) for sample in samples))

    train(lambda samples: asyncio.run(together(samples)), steps)


def with_threads(*args, steps, fails=False):
    agent = Agent(*args)
    with ThreadPoolExecutor(PROMPTS * GROUP) as threads:

        def roll_out(samples):
            for future in [threads.submit(copy_context().run, agent.work, *sample) for sample in samples]:
                future.result()

        train(roll_out, steps, fails=fails)


def with_ray(*args, steps):
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False)
    agents = [ray.remote(Agent).options(max_concurrency=PROMPTS * GROUP).remote(*args) for _ in range(2)]
    train(lambda samples: ray.get([agents[sample[1] % 2].work.remote(*sample) for sample in samples]), steps)
    ray.shutdown()


if __name__ == "__main__":
    mode, out, *steps = sys.argv[1:]
    Path(out, "log").mkdir(exist_ok=True)
    os.environ[cpu_log.FOLDER] = f"{out}/log"
    runners = {"asyncio": with_asyncio, "threads": with_threads, "ray": with_ray}
    try:
        runner = runners.get(mode, partial(with_threads, fails=True))
        runner(alike, steps=int(steps[0])) if steps else runner(steps=STEPS)
    finally:
        cpu_log.write("ended", cpu=time.process_time(), memory=psutil.Process().memory_info().rss)
