# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The work: prompts, several trajectories each, ten turns a trajectory. Nobody computes anything: models and tools are waited for.

What is spent is the event loop's, which everybody pays, and the backend's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

ROLLOUTS: Final = 8
TURNS: Final = 10
TASKS: Final = 1024
"""Trajectories at a time."""
STEP: Final = 1024 * ROLLOUTS
"""Trajectories of a whole step."""
SPANS: Final = 1 + 3 * TURNS + 1
"""Of a trajectory: itself, a turn, a call of the model and one of a tool in each turn, and the reward."""
MODEL: Final = "qwen3-8b"
TOOL: Final = "python"
AGENT: Final = "tool_agent"
SOURCE: Final = "gsm8k"
_TOKENS: Final = 3
"""Times that a model's answer is waited for; a tool's is once."""


@dataclass(frozen=True)
class Usage:
    """What an answer took."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Answer:
    """What a model says, in the form of OpenAI's."""

    text: str
    usage: Usage
    finish_reason: str


@dataclass(frozen=True)
class Output:
    """What a trajectory ends with."""

    response_ids: tuple[int, ...]
    num_turns: int
    reward_score: float


class Agents:
    """No telemetry. Others override how the functions are decorated and what surrounds a trajectory and a turn."""

    def llm(self, function: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
        """Return the call of a model as a span and a value of a histogram."""
        return function

    def tool(self, function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        """Return the call of a tool likewise."""
        return function

    def reward(self, function: Callable[..., float]) -> Callable[..., float]:
        """Return the computation of a reward likewise."""
        return function

    def trajectory(self, uid: str, index: int) -> AbstractContextManager[Any]:
        """Return what surrounds a trajectory: the root of a trace, and a value of a histogram."""
        del uid, index
        return nullcontext()

    def finish(self, span: Any, output: Output) -> None:
        """Say on the span of a trajectory what it ended with."""

    def turn(self, index: int) -> AbstractContextManager[Any]:
        """Return what surrounds a turn."""
        del index
        return nullcontext()

    def deliver(self) -> None:
        """Bring everything to where it goes."""

    def written(self) -> int:
        """Return how many bytes went elsewhere than to the server."""
        return 0

    def elsewhere(self) -> float:
        """Return the CPU seconds of its processes besides this one."""
        return 0.0

    def close(self) -> None:
        """Stop its threads."""


async def _generate(prompt: str) -> Answer:
    for _ in range(_TOKENS):
        await asyncio.sleep(0)
    return Answer("print(1 + 2)", Usage(len(prompt), 128), "stop")


async def _run(code: str) -> str:
    await asyncio.sleep(0)
    return code


def _score(data_source: str, solution: str) -> float:
    del data_source
    return float(bool(solution))


class Step:
    """One step, reported to a backend.

    Args:
        agents: The backend.
        trajectories: How many; a multiple of `ROLLOUTS`.
    """

    def __init__(self, agents: Agents, trajectories: int) -> None:
        self._agents = agents
        self._waiting: Iterator[int] = iter(range(trajectories))
        self._tasks = min(TASKS, trajectories)
        self._llm, self._tool, self._reward = agents.llm(_generate), agents.tool(_run), agents.reward(_score)
        self._left = self._tasks
        self.delays: list[float] = []
        """Seconds of each pass of the event loop: what somebody waits in it who has nothing to wait for."""

    def run(self) -> None:
        """Do it."""
        asyncio.run(self._all())

    async def _all(self) -> None:
        await asyncio.gather(self._probe(), *(self._work() for _ in range(self._tasks)))

    async def _probe(self) -> None:
        while self._left:
            begin = time.perf_counter()
            await asyncio.sleep(0)
            self.delays.append(time.perf_counter() - begin)

    async def _work(self) -> None:
        for number in self._waiting:
            await self._trajectory(f"prompt-{number // ROLLOUTS}", number % ROLLOUTS)
        self._left -= 1

    async def _trajectory(self, uid: str, index: int) -> None:
        agents, text = self._agents, uid
        with agents.trajectory(uid, index) as span:
            for turn in range(TURNS):
                with agents.turn(turn):
                    answer = await self._llm(text)
                    text = await self._tool(answer.text)
            score = self._reward(SOURCE, text)
            agents.finish(span, Output((1,) * 16, TURNS, score))
