# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as a process: a loop that trains nothing and says what verl's trainer says, through the real SDK, until its standard input ends.

Usage: pipeline_loop.py [kl] [rank] [slow]    kl: from the fifth step on the KL to the reference policy is what it must not be
                                       slow: from step 150 on each step is reported as longer than the one before
                                       rank: the update is the work of a second process, whose id is printed, and the trainer waits for it
"""

import subprocess
import sys
import threading
import time

import verl_otel
from verl_otel import session
from verl_otel.integrations.verl import tracking

TRAJECTORIES = 32
PAUSE = 0.3
CALM, EXPLODED = 0.02, 40.0
"""KL to the reference policy; the alert is at 15."""
CALM_STEPS = 4
SLOWER, EVEN_STEPS = 1.1, 150
"""Factor from one step to the next one: the last three are then three times as long as the median of the 20 before."""


class Rank:
    """The other process: one line for every update."""

    def __init__(self):
        words = [sys.executable, __file__, "--update"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(self._process.pid, flush=True)

    def update(self):
        self._process.stdin.write("update\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)


def update():
    """Be the rank."""
    session.describe_resource({"verl.role": "actor_rollout_ref", "verl.rank": 0})
    verl_otel.init()
    for _ in sys.stdin:
        with verl_otel.update("actor"):
            time.sleep(0.01)
        print("done", flush=True)
    verl_otel.shutdown()


def make_scalars(number, *, kl, slow):
    """Return the scalars of a step of a training that learns."""
    return {
        "critic/rewards/mean": 0.2 + 0.01 * number,
        "critic/score/mean": 0.2 + 0.01 * number,
        "actor/entropy": 1.5,
        "actor/grad_norm": 0.8,
        "actor/kl_loss": EXPLODED if kl and number > CALM_STEPS else CALM,
        "actor/pg_loss": -0.01,
        "actor/ppo_kl": 0.001,
        "response_length/mean": 120.0,
        "timing_s/step": PAUSE * (SLOWER ** max(0, number - EVEN_STEPS) if slow else 1),
    }


def step(number, rank):
    """One step."""
    with verl_otel.step(number):
        with verl_otel.phase("gen"):
            for index in range(TRAJECTORIES):
                begun = verl_otel.trajectory(f"uid-{number}", index, step=number, agent="toy")
                with begun, verl_otel.turn(0), verl_otel.llm("toy"):
                    pass
        with verl_otel.phase("update_actor"):
            if rank is not None:
                rank.update()


def train(words):
    """Be the trainer."""
    session.describe_resource({"verl.role": "trainer", "verl.rank": 0})
    verl_otel.init()
    tracking.describe_run("pipeline", "loop", {})
    rank = Rank() if "rank" in words else None
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    number = 0
    while not over.wait(PAUSE):
        number += 1
        step(number, rank)
        tracking.record(make_scalars(number, kl="kl" in words, slow="slow" in words), number)
    tracking.end_run(failed=False)
    if rank is not None:
        rank.close()
    verl_otel.shutdown()


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        train(sys.argv[1:])
