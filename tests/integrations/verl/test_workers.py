# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans of worker methods: what they say of the CPU time of the thread that ran them."""

import asyncio
import time
import types

import pytest

from verl_otel.integrations.verl import workers


def hooked(function):
    """A worker's method with the wrapper that verl's ``register`` gets from us, bound to as much of a worker as is looked at."""
    method = workers._wrap(function, "worker", function.__name__)
    return getattr(type("Worker", (), {"_rank": 3, function.__name__: method})(), function.__name__)


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.full
def test_cpu_time_of_a_method_is_that_of_its_thread(verl_otel_capture):
    """What the method computed is counted; what it waited for is not, and its span is longer by that."""

    def update(self):
        burn(0.05)
        time.sleep(0.1)  # what is tested: waiting is no CPU time
        return "result"

    assert hooked(update)() == "result"
    span = verl_otel_capture.span("verl.worker Worker.update")
    cpu = span.attributes["verl.cpu.time"]
    assert 0.05 <= cpu < (span.end_ns - span.start_ns) / 1e9 - 0.09
    assert span.attributes["verl.rank"] == 3


def test_a_method_that_fails_says_it_too(verl_otel_capture):
    """The time until the failure is counted, and the failure is the caller's own."""

    def update(self):
        burn(0.02)
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        hooked(update)()
    assert verl_otel_capture.span("verl.worker Worker.update").attributes["verl.cpu.time"] >= 0.02


def test_a_coroutine_says_nothing_of_cpu_time(verl_otel_capture):
    """Its thread runs others in between: their time is not its own."""

    async def generate(self):
        await asyncio.sleep(0)
        return 1

    async def other():
        burn(0.02)

    async def both():
        return (await asyncio.gather(hooked(generate)(), other()))[0]

    assert asyncio.run(both()) == 1
    assert "verl.cpu.time" not in verl_otel_capture.span("verl.worker Worker.generate").attributes


@pytest.mark.full
def test_a_clock_that_fails_costs_the_attribute_and_nothing_else(verl_otel_capture, monkeypatch, swallow):
    """Where the platform cannot report CPU time, the method runs and returns as before."""

    def update(self):
        # The module's own name, not ``time.thread_time`` itself: the drain thread reads that clock, too.
        monkeypatch.setattr(workers, "time", types.SimpleNamespace(thread_time=lambda: 1 / 0))
        return 5

    assert hooked(update)() == 5
    assert "verl.cpu.time" not in verl_otel_capture.span("verl.worker Worker.update").attributes
