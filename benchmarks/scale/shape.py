# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the simulated run is made of."""

from __future__ import annotations

from typing import Final

from benchmarks.hooks.stand_ins import SPANS as SPANS_OF_TRAJECTORY

GPUS: Final = 1024
NODES: Final = 128
WORKERS: Final = 64
"""Of the agent loop, and as many of the reward."""
REPLICAS: Final = 512
"""Of the LLM server, on two GPUs each."""
TRAJECTORIES: Final = 8192
"""Of a step."""
STEPS: Final = 10_000
STEP_SECONDS: Final = 300
"""Seconds of a step; no second is waited for."""
SPANS: Final = TRAJECTORIES * SPANS_OF_TRAJECTORY
"""Of the trajectories of a step."""
PROCESSES: Final = 1 + GPUS + 2 * WORKERS + REPLICAS
FILE_BYTES: Final = 1 << 30
"""Bytes that the traces of a process may have: `VERL_OTEL_FILE_MIB` times `VERL_OTEL_FILE_COUNT`."""
PLAIN_BYTES: Final = 128 << 20
"""Of these, bytes that are not compressed: the current file and the part before it."""
PER_WORKER: Final = TRAJECTORIES // WORKERS
