# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own, without verl, that keeps a log of its own, with Ray.

Usage: ray_own_loop.py MODE   (settings by environment)

MODE: ``enabled`` (by the environment), ``before`` or ``after``: `verl_otel.init` before or after ``ray.init``; ``late``: after the agents were created and used; ``nodes``: as ``enabled``, on a cluster of two nodes. A tool is slow in
step 3, a reward in step 4, a worker in step 5.
"""

import json
import os
import sys
import time

import ray

import verl_otel

MODE = sys.argv[1]
STEPS, SAMPLES, WORKERS = 5, 6, 3
SLOW_TOOL, SLOW_REWARD, LATE_WORKER = ("p3", 4), ("p4", 2), (5, 1)
USUAL, SLOW = 0.02, 1.0


class Agent:
    """Runs trajectories with an LLM call, a tool and a reward, and keeps a log of them."""

    def __init__(self):
        self.log = []

    @verl_otel.llm("toy")
    def generate(self):
        time.sleep(USUAL)
        return {"usage": {"prompt_tokens": 12, "completion_tokens": 5}}

    @verl_otel.tool("python")
    def run_python(self, seconds):
        time.sleep(seconds)

    @verl_otel.reward("math")
    def compute_score(self, index, seconds):
        time.sleep(seconds)
        return float(index % 3)

    @verl_otel.trajectory
    def roll_out(self, uid, index, step):
        with verl_otel.turn(0):
            self.generate()
            self.run_python(SLOW if (uid, index) == SLOW_TOOL else USUAL)
        score = self.compute_score(index, SLOW if (uid, index) == SLOW_REWARD else USUAL)
        self.log.append([uid, index, step, score])
        return {"prompt_ids": [1] * 12, "response_ids": [2] * 5, "num_turns": 1}

    def describe(self):
        return self.log, ray.get_runtime_context().get_node_id()


class Learner:
    """One of the workers that update the model."""

    def __init__(self, rank):
        self.rank = rank

    @verl_otel.update("actor")
    def update(self, step):
        time.sleep(SLOW if (step, self.rank) == LATE_WORKER else USUAL)


def create(kind, *arguments):
    return ray.remote(kind).options(scheduling_strategy="SPREAD").remote(*arguments)


def start_ray():
    if MODE != "nodes":
        return ray.init("local", num_cpus=6, include_dashboard=False)
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 3, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    cluster.add_node(**options)
    return ray.init(cluster.address)


def main():
    if MODE == "before":
        verl_otel.init(run_dir=os.environ["OWN_RUN_DIR"])
    start_ray()
    if MODE == "after":
        verl_otel.init(run_dir=os.environ["OWN_RUN_DIR"])
    agents = [create(Agent) for _ in range(3)]
    if MODE == "late":
        ray.get([agent.roll_out.remote("unrecorded", 0, 0) for agent in agents])
        verl_otel.init(run_dir=os.environ["OWN_RUN_DIR"])
    learners = [create(Learner, rank) for rank in range(WORKERS)]
    for number in range(1, STEPS + 1):
        with verl_otel.step(number):
            with verl_otel.phase("gen"):
                ray.get([agents[i % 3].roll_out.remote(f"p{number}", i, number) for i in range(SAMPLES)])
            with verl_otel.phase("update_actor"):
                ray.get([learner.update.remote(number) for learner in learners])
    described = ray.get([agent.describe.remote() for agent in agents])
    ray.shutdown()
    log = [row for rows, _ in described for row in rows]
    print("RESULT " + json.dumps({"log": log, "nodes": len({node for _, node in described})}), flush=True)


if __name__ == "__main__":
    main()
