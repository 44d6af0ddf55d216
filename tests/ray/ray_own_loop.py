# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own under Ray, without verl, that keeps a log of its own.

Usage: ray_own_loop.py MODE   (settings by environment)

MODE: ``enabled`` (by the environment), ``before`` or ``after``: `verl_otel.init` before or after ``ray.init``.
"""

import json
import os
import sys
import time

import ray

import verl_otel

MODE = sys.argv[1]
STEPS, SAMPLES, SLOW = 4, 6, ("p3", 4)


class Agent:
    """Runs trajectories with a tool and a reward, and keeps a log of them."""

    def __init__(self):
        self.log = []

    @verl_otel.tool("python")
    def run_python(self, seconds):
        time.sleep(seconds)

    @verl_otel.reward("math")
    def compute_score(self, index):
        return float(index % 3)

    def roll_out(self, uid, index, step):
        with verl_otel.trajectory(uid, index):
            with verl_otel.turn(0):
                self.run_python(1.0 if (uid, index) == SLOW else 0.02)
            self.log.append([uid, index, step, self.compute_score(index)])

    def get_log(self):
        return self.log


def start_ray():
    ray.init("local", num_cpus=3, include_dashboard=False)


def main():
    if MODE == "after":
        start_ray()
    if MODE != "enabled":
        verl_otel.init(run_dir=os.environ["OWN_RUN_DIR"])
    if MODE != "after":
        start_ray()
    agents = [ray.remote(Agent).remote() for _ in range(3)]
    for number in range(1, STEPS + 1):
        with verl_otel.step(number):
            with verl_otel.phase("gen"):
                ray.get([agents[i % 3].roll_out.remote(f"p{number}", i, number) for i in range(SAMPLES)])
            with verl_otel.phase("update_actor"):
                time.sleep(0.05)
    log = [row for agent in agents for row in ray.get(agent.get_log.remote())]
    ray.shutdown()
    print("RESULT " + json.dumps({"log": log}), flush=True)


if __name__ == "__main__":
    main()
