# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""User code that is only type-checked (mypy strict): a decorated function keeps its type."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from typing_extensions import assert_type

import verl_otel


@verl_otel.reward("math")
async def compute_score(data_source: str, solution: str, ground_truth: str) -> float:
    return float(solution == ground_truth)


@verl_otel.reward
def plain_score(solution: str, *, scale: float = 1.0) -> dict[str, float]:
    return {"score": scale * len(solution)}


@verl_otel.tool("python")
def stream(code: str) -> Iterator[str]:
    yield code


@verl_otel.span
async def chunks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b""


@verl_otel.timed("tokenizer.encode")
def encode(text: str, /, *, limit: int = 8) -> list[int]:
    return [ord(char) for char in text[:limit]]


@verl_otel.timed
def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


class MyWorker:
    @verl_otel.update("actor")
    def update_actor(self, batch: list[int]) -> int:
        return len(batch)

    @verl_otel.rollout
    def generate(self, prompts: list[str]) -> list[str]:
        return prompts

    @staticmethod
    @verl_otel.step
    def train(number: int) -> None:
        return None


def my_extract(arguments: Mapping[str, Any], result: Any) -> dict[str, Any]:
    return {"verl.batch.size": len(arguments["batch"]), "loss": result}


@verl_otel.update("critic", extract=my_extract)
def update_critic(batch: list[int]) -> float:
    return 0.0


async def my_agent(uid: str, index: int) -> None:
    with verl_otel.trajectory(uid, index, step=3, agent="mine"):
        with verl_otel.turn(), verl_otel.llm("qwen", provider="vllm") as call:
            call.set_attribute("temperature", 1.0)
        with verl_otel.tool("python"):
            pass


def check() -> None:
    assert_type(plain_score("x", scale=2.0), dict[str, float])
    assert_type(list(stream("x")), list[str])
    assert_type(encode("x", limit=2), list[int])
    assert_type(decode([1]), str)
    assert_type(MyWorker().update_actor([1]), int)
    assert_type(MyWorker().generate(["x"]), list[str])
    assert_type(update_critic([1]), float)
    function: Callable[[list[int]], str] = decode
    function([1])
    with verl_otel.step(3), verl_otel.phase("gen"), verl_otel.timed("x"):
        pass
    verl_otel.counter("my.count").add(2, kind="a")
    verl_otel.gauge("my.level", unit="By").set(1.5)
    verl_otel.histogram("my.length", bounds=(1, 2, 4)).record(3, source="a")
    verl_otel.init(exporters="none")
    verl_otel.shutdown()
