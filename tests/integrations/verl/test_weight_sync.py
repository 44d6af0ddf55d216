# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes and parts of a weight sync, on stand-ins of verl's workers that pass weights through a generator as these do."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from verl_otel.integrations.verl import workers

WEIGHTS = [("a", SimpleNamespace(nbytes=1000)), ("b", SimpleNamespace(nbytes=24))]
GATHER, TAKE = 0.02, 0.03
"""Seconds for each weight: to make it, and to take it."""


class Engine:
    closed = False

    def get_per_tensor_param(self, **_):
        def make():
            try:
                for weight in WEIGHTS:
                    time.sleep(GATHER)
                    yield weight
            finally:
                self.closed = True

        return make(), None


class Consumer:
    """An engine of the own device, or a checkpoint engine."""

    fails = False

    async def update_weights(self, weights, **_):
        for number, _ in enumerate(weights):
            await asyncio.sleep(TAKE)
            if self.fails and number == 0:
                raise RuntimeError("on purpose")

    send_weights = update_weights


class Trainer:
    """As verl's ``ActorRolloutRefWorker``."""

    _rank = 0

    def __init__(self):
        self.actor = SimpleNamespace(engine=Engine())
        self.rollout, self.checkpoint_engine = Consumer(), Consumer()

    async def update_weights(self, mode):
        weights, _ = self.actor.engine.get_per_tensor_param()
        if mode == "naive":
            return await self.rollout.update_weights(weights)
        return await self.checkpoint_engine.send_weights(weights)


class Replica:
    """As verl's ``CheckpointEngineWorker``."""

    _rank = 0

    def __init__(self):
        self.checkpoint_engine, self.server_adapter = self, SimpleNamespace(update_weights=self.load)

    async def receive_weights(self, **_):
        for weight in WEIGHTS:
            await asyncio.sleep(GATHER)
            yield weight

    async def load(self, weights, **_):
        async for _ in weights:
            await asyncio.sleep(TAKE)

    async def update_weights(self):
        await self.server_adapter.update_weights(self.checkpoint_engine.receive_weights())


def wrap(kind):
    return type(
        kind.__name__, (kind,), {"update_weights": workers._wrap(kind.update_weights, "worker", "update_weights")}
    )


def read(recorded, name):
    span = [span for span in recorded.spans if span.name == f"verl.worker {name}.update_weights"][-1]
    prefix = "verl.weight_sync."
    parts = {
        key.removeprefix(prefix).removesuffix(".time"): value
        for key, value in span.attributes.items()
        if key.startswith(prefix)
    }
    return span, parts


@pytest.mark.parametrize(("kind", "mode", "made", "taken"), [
    (Trainer, ("naive",), "gather", "load"), (Trainer, ("nccl",), "gather", "send"), (Replica, (), "receive", "load"),
])  # fmt: skip
async def test_a_sync_has_its_bytes_and_its_parts(recorded, kind, mode, made, taken):
    """Those of the last sync, of which there were two; the parts do not overlap."""
    worker = wrap(kind)()
    for _ in range(2):
        await worker.update_weights(*mode)
    span, parts = read(recorded, kind.__name__)
    assert span.attributes["verl.bytes"] == recorded.value("verl.weight_sync.size") == 1024
    assert set(parts) == {made, taken}
    assert parts[made] >= 2 * GATHER
    assert parts[taken] >= 2 * TAKE
    assert sum(parts.values()) <= (span.end_ns - span.start_ns) / 1e9
    for part, seconds in parts.items():
        assert recorded.value("verl.weight_sync.part.duration", verl_part=part) == seconds


async def test_a_failure_passes_and_ends_the_generator(recorded):
    """As it does without us."""
    worker = wrap(Trainer)()
    worker.rollout.fails = True
    with pytest.raises(RuntimeError, match="on purpose"):
        await worker.update_weights("naive")
    assert worker.actor.engine.closed


async def test_weights_of_another_form_are_passed_on(recorded):
    """Nothing is known of them."""
    worker = wrap(Trainer)()
    worker.actor.engine.get_per_tensor_param = lambda: ([("a", 1)], None)
    await worker.update_weights("naive")
    _, parts = read(recorded, "Trainer")
    assert parts == {}
