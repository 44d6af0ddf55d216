# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Three steps of rollouts with a tool and a reward function, without verl and without a model.

Usage: python rollout.py
"""

import asyncio

from reward import compute_score
from tool import add

import verl_otel

STEPS, SAMPLES = 3, 2
TASKS = {"small": (6, 7), "large": (600, 70), "rejected": (5000, 1), "slow": (10, 20)}
"""Prompts by their uid: the two numbers that are to be added."""


async def ask_model(seconds: float = 0.02) -> None:
    """Stand for a call of the model."""
    with verl_otel.llm("stub"):
        await asyncio.sleep(seconds)


async def run_trajectory(uid: str, index: int, step: int) -> float:
    """Ask the model, call the tool, ask again and compute the score."""
    a, b = TASKS[uid]
    with verl_otel.trajectory(uid, index, step=step, agent="calculator") as trajectory:
        with verl_otel.turn(0):
            await ask_model()
            try:
                answer = await add(a, b)
            except ValueError as error:  # the model gets the text; the span of the call has the status ERROR
                answer = str(error)
        with verl_otel.turn(1):
            # The slowest trajectory of the run is in step 2.
            await ask_model(1.5 if (uid, step) == ("slow", 2) else 0.02)
        score = compute_score("arithmetic", answer, str(a + b))["score"]
        trajectory.set_attribute("verl.reward.score", score)
        return score


async def train() -> None:
    """Run the steps, and print the mean score of each."""
    for step in range(1, STEPS + 1):
        with verl_otel.step(step):
            with verl_otel.rollout():
                scores = await asyncio.gather(
                    *(run_trajectory(uid, index, step) for uid in TASKS for index in range(SAMPLES))
                )
            with verl_otel.phase("update_actor"):
                await asyncio.sleep(0.05)  # stands for the update
        print(f"step {step}: {len(scores)} trajectories, mean score {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    # With VERL_OTEL_ENABLED=1 this call is not needed: the first use of verl_otel starts telemetry.
    verl_otel.init()
    asyncio.run(train())
    # Runs at exit by itself; here it makes sure that the files are complete before anything else reads them.
    verl_otel.shutdown()
