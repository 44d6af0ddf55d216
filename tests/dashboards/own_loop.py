# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own, without verl, in which everything happens that a board shows: for `test_boards_own_loop`.

Usage: VERL_OTEL_ENABLED=1 VERL_OTEL_MEMORY_MIB=1 OTEL_METRIC_EXPORT_INTERVAL=500 own_loop.py
"""

import asyncio
import contextlib
import time

import verl_otel

STEPS, SAMPLES, WORKERS = 16, 4, 2
SLOW_STEPS, BLOCKED_STEPS, BROKEN_STEPS = (6, 9, 12), (7, 10), (8, 11, 13)
USUAL, LONG, BLOCKED = 0.05, 1.5, 0.5
SCALARS = (
    "actor/pg_loss", "actor/grad_norm", "actor/kl_loss", "actor/ppo_kl", "actor/entropy", "actor/lr", "actor/pg_clipfrac", "critic/vf_loss",
    "critic/vf_explained_var", "critic/advantages/mean", "critic/returns/mean", "critic/rewards/mean", "response_length/mean",
    "response_length/clip_ratio", "perf/mfu/actor", "perf/throughput", "rollout_corr/kl", "rollout_corr/ppl_ratio",
    "training/rollout_probs_diff_mean", "training/off_policy_trajectory_staleness/mean",
)  # fmt: skip
"""Keys of verl whose values this loop sets as gauges of the same name."""


@verl_otel.llm("toy")
async def generate():
    await asyncio.sleep(USUAL)
    return {"usage": {"prompt_tokens": 12, "completion_tokens": 5}, "num_preempted": 1}


@verl_otel.tool("python")
async def run_python(number, index):
    if number in BLOCKED_STEPS and index == 0:
        time.sleep(BLOCKED)  # noqa: ASYNC251 - blocks the event loop on purpose
    await asyncio.sleep(LONG if number in SLOW_STEPS and index == 1 else USUAL)
    if number in BROKEN_STEPS and index == 2:
        raise TimeoutError("no answer")


@verl_otel.reward("math")
def compute_score(number, index):
    return {"score": number / STEPS + index / 10, "progress": number / STEPS}


async def roll_out(number, index):
    with contextlib.suppress(TimeoutError), verl_otel.trajectory(f"p{number}", index, agent="toy"):
        with verl_otel.turn(0):
            await generate()
            await run_python(number, index)
        compute_score(number, index)


def misuse(number):
    """Open more spans than there is memory for, and close two of them in the wrong order."""
    for _ in range(2000 * (number in SLOW_STEPS)):
        with verl_otel.span("many"):
            pass
    outer, inner = verl_otel.span("outer"), verl_otel.span("inner")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)


class Learner:
    def __init__(self, rank):
        self.rank = rank

    @verl_otel.update("actor")
    async def update(self):
        await asyncio.sleep(USUAL * (self.rank + 1))


async def train(learners):
    for number in range(1, STEPS + 1):
        with contextlib.suppress(ValueError), verl_otel.step(number):
            with verl_otel.phase("gen"):
                await asyncio.gather(*(roll_out(number, index) for index in range(SAMPLES)))
            with verl_otel.phase("update_actor"):
                await asyncio.gather(*(learner.update() for learner in learners))
                if number in BROKEN_STEPS:
                    raise ValueError("the loss is not finite")
            misuse(number)
            for key in SCALARS:
                verl_otel.gauge("verl." + key.replace("/", ".")).set(number)
        await asyncio.sleep(USUAL)


if __name__ == "__main__":
    asyncio.run(train([Learner(rank) for rank in range(WORKERS)]))
