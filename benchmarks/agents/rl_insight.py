# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The same step as RL-Insight tells it: each span is an event, and each event a call of its one actor in Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from rl_insight import api

from benchmarks.agents.step import AGENT, MODEL, SOURCE, TOOL, Agents, Answer
from benchmarks.cases.ray_peers import Cluster


class InsightAgents(Agents):
    """RL-Insight 0.3.0 with its real actor, its server stood for by a sink."""

    def __init__(self) -> None:
        Cluster.start()

    def llm(self, function: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
        """Decorate with ``trace_op``."""
        traced: Callable[..., Awaitable[Answer]] = api.trace_op("llm", model=MODEL)(function)
        return traced

    def tool(self, function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        """Decorate with ``trace_op``."""
        traced: Callable[..., Awaitable[str]] = api.trace_op("tool", tool=TOOL)(function)
        return traced

    def reward(self, function: Callable[..., float]) -> Callable[..., float]:
        """Decorate with ``trace_op``."""
        traced: Callable[..., float] = api.trace_op("reward", data_source=SOURCE)(function)
        return traced

    @contextmanager
    def trajectory(self, uid: str, index: int) -> Iterator[None]:
        """Report with ``trace_span`` at its end."""
        begin = time.time_ns()
        yield
        attributes = {"agent": AGENT, "uid": uid, "index": index}
        api.trace_span(name="trajectory", start_time_ns=begin, end_time_ns=time.time_ns(), attributes=attributes)

    @contextmanager
    def turn(self, index: int) -> Iterator[None]:
        """Report with ``trace_span`` at its end."""
        begin = time.time_ns()
        yield
        api.trace_span(name="turn", start_time_ns=begin, end_time_ns=time.time_ns(), attributes={"turn": index})

    def deliver(self) -> None:
        """Wait until the actor has done what it was asked for."""
        Cluster.rest()

    def written(self) -> int:
        """Return what has come in at the actor's server."""
        return Cluster.sink.read()["bytes"] if Cluster.sink is not None else 0

    def elsewhere(self) -> float:
        """Return the CPU seconds of the actor's process. Those of Ray's own processes are in no figure."""
        actor: Any = Cluster.hub
        pid = ray.get(actor.__ray_call__.remote(_number_of_process), timeout=60)
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Stop Ray."""
        Cluster.stop()


def _number_of_process(_: object) -> int:
    return os.getpid()
