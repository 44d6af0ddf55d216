# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine over files, so that a rollout replica of its own gets weights without NCCL.

Select it by ``checkpoint_engine.backend=cpu_file`` and ``checkpoint_engine.custom_backend_module=cpu_checkpoint_engine``; the folder is
``CPU_BED_WEIGHTS``.
"""

import asyncio
import os
import time
from pathlib import Path

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("cpu_file")
class FileCheckpointEngine(CheckpointEngine):
    """The master rank writes every tensor into one file; the replicas wait for it and read it."""

    def __init__(self, bucket_size, is_master=False, **_):
        del bucket_size
        self.is_master = is_master
        self.folder = Path(os.environ["CPU_BED_WEIGHTS"])
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tag = None

    def prepare(self):
        return {}

    @classmethod
    def build_topology(cls, trainer_world_size, rollout_world_size, metadata):
        del metadata
        tag = f"{os.getpid()}-{time.time_ns()}"
        return {"tag": [tag] * trainer_world_size}, {"tag": [tag] * rollout_world_size}

    def init_process_group(self, tag=None, **_):
        self.tag = tag

    def finalize(self):
        pass

    async def send_weights(self, weights, global_steps=None):
        del global_steps
        named = {name: value.detach().to("cpu").clone() for name, value in weights}
        if self.is_master:
            part = self.folder / f"{self.tag}.part"
            torch.save(named, part)
            part.replace(self.folder / f"{self.tag}.pt")
        return {"checkpoint_engine/payload_mbytes": sum(value.nbytes for value in named.values()) / 2**20}

    async def receive_weights(self, global_steps=None):
        del global_steps
        path = self.folder / f"{self.tag}.pt"
        while not path.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
        for name, value in torch.load(path).items():
            yield name, value
