# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Three steps of training with two ranks of a worker class, on real Ray and verl's worker group; no GPU is needed.

Usage: VERL_OTEL_ENABLED=1 python train.py
"""

import ray
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from worker import PolicyWorker

import verl_otel

RANKS = 2
BATCHES = [
    [[1, 2, 3], [4, 5, 6]],
    [[1, 2, 3], list(range(4, 64))],  # rank 1 gets 20 times as much: the other one waits for it
    [[3, 6, 9], [7, 8, 9]],
]
"""Of each step, the samples of each rank."""


def main() -> None:
    """Train, and print the metrics of each step."""
    ray.init("local", num_cpus=RANKS, include_dashboard=False)  # a Ray of its own, also where one is running
    pool = RayResourcePool([RANKS], use_gpu=False, max_colocate_count=1)
    workers = RayWorkerGroup(pool, RayClassWithInitArgs(ray.remote(PolicyWorker)), device_name="cpu")
    for number, batches in enumerate(BATCHES, start=1):
        with verl_otel.step(number), verl_otel.phase("update_actor"):
            metrics = workers.update_actor(batches)
        loss = sum(rank["loss"] for rank in metrics) / RANKS
        print(f"step {number}: loss {loss:.2f}, clipped {sum(rank['clipped'] for rank in metrics):.0f}")


if __name__ == "__main__":
    # No `verl_otel.init()`: `import verl` loads the plug-in in this process, and its hook in `ray.init` does in the workers.
    main()
