# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A replay buffer whose batch order does not depend on which trajectory finished first (verl's own ``custom_sampler``)."""

import os

import cpu_plant
import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

CRASH = "CPU_BED_CRASH"
"""``<n>``: the n-th batch is never handed out, the trainer crashes instead."""
NOTE = "CPU_BED_NOTE"
"""Set: the sampler adds fields to the run log, as a user's code in the process that trains does."""


class OrderedReplayBuffer(ReplayBuffer):
    """Orders a batch by its tokens, and polls ten times as often as verl's, so that steps take a second and not three."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.poll_interval = 0.2
        self.batches = 0

    def sample(self, *args, **kwargs):
        self.batches += 1
        if self.batches == int(os.environ.get(CRASH, "0")):
            raise RuntimeError("crashed on purpose")
        batch, metrics = super().sample(*args, **kwargs)
        cpu_plant.reach("sample", cpu_plant.Trainer.step)
        data = transfer_queue.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["prompts", "responses"]
        )
        prompts, responses = data["prompts"].unbind(), data["responses"].unbind()
        order = sorted(range(len(batch.keys)), key=lambda i: (prompts[i].tolist(), responses[i].tolist()))
        batch.reorder(order)
        if os.environ.get(NOTE):
            import verl_otel  # not above: a test hides it from the workers

            verl_otel.log("rollout", sampled=len(order))
            verl_otel.log("sampler", batches=self.batches, level="debug")
        return batch, metrics
