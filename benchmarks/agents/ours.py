# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The step as verl-otel tells it: the verbs, every trajectory sampled, all spans kept."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import verl_otel
from benchmarks.agents.step import AGENT, MODEL, SOURCE, TOOL, Agents, Answer, Output
from verl_otel import session
from verl_otel.recording.state import RECORDER

MEMORY_MIB: Final = 1024
"""Limit of what may wait. Minutes of a step are pressed into seconds here: with the default's 64 most spans would be dropped, and cheap."""


class OurAgents(Agents):
    """verl-otel, on.

    Args:
        exporters: Where it goes.
        endpoint: Address of the OTLP server, for the exporter ``otlp``.
    """

    def __init__(self, exporters: str, endpoint: str = "") -> None:
        if endpoint:
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        self._files = exporters == "file"
        verl_otel.init(exporters=exporters, memory_mib=MEMORY_MIB)

    def llm(self, function: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
        """Decorate with ``llm``."""
        return verl_otel.llm(MODEL)(function)

    def tool(self, function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        """Decorate with ``tool``."""
        return verl_otel.tool(TOOL)(function)

    def reward(self, function: Callable[..., float]) -> Callable[..., float]:
        """Decorate with ``reward``."""
        return verl_otel.reward(SOURCE)(function)

    def trajectory(self, uid: str, index: int) -> AbstractContextManager[Any]:
        """Return the verb, for a block."""
        return verl_otel.trajectory(uid, index, step=1, agent=AGENT)

    def finish(self, span: Any, output: Output) -> None:
        """Set attributes."""
        span.set_attribute("verl.response.tokens", len(output.response_ids))
        span.set_attribute("verl.turns", output.num_turns)
        span.set_attribute("verl.reward.score", output.reward_score)

    def turn(self, index: int) -> AbstractContextManager[Any]:
        """Return the verb, for a block."""
        return verl_otel.turn(index)

    def deliver(self) -> None:
        """Have every exporter send or write what there is.

        Raises:
            RuntimeError: Spans were dropped, so that what was measured is less than the work.
        """
        session.flush(120.0)
        if RECORDER.dropped:
            raise RuntimeError(f"{RECORDER.dropped} spans were dropped: the measurement is invalid")

    def written(self) -> int:
        """Return the size of the files."""
        if not self._files:
            return 0
        folder = Path(os.environ["VERL_OTEL_RUN_DIR"])
        return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))

    def close(self) -> None:
        """End the session."""
        verl_otel.shutdown()
