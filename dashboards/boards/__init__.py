# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The boards: one module each. A new one is a module, its row here and its uid in `dashboards.parts.links`."""

from __future__ import annotations

from typing import Final

from dashboards.boards import engines, gpus, monitor, overview, pipeline, rollouts, steps, training
from dashboards.parts.board import Board

BOARDS: Final[tuple[Board, ...]] = (
    overview.BOARD,
    steps.BOARD,
    rollouts.BOARD,
    engines.BOARD,
    training.BOARD,
    gpus.BOARD,
    pipeline.BOARD,
    monitor.BOARD,
)
