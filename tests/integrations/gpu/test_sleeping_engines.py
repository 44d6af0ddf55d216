# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the processes of an engine hold on GPUs after verl has put it to sleep, with servers and a driver that are made up, and real processes."""

import asyncio
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tests.integrations.gpu.fake_nvml import GIB
from verl_otel.integrations.gpu import sleeping_engines

PROGRAM = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '600'], start_new_session=True);"
    "print(child.pid, flush=True); sys.stdin.read(); child.kill(); child.wait()"
)
"""A process of an engine that has one of its own, which it ends with its input."""


@pytest.fixture
def engine():
    """Two processes below this one: their ids."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process.pid, int(process.stdout.readline())
    process.communicate()


@pytest.fixture
def sleep(library, monkeypatch):
    """Put a server of verl to sleep, and wait for what is measured."""
    monkeypatch.setitem(sys.modules, "pynvml", library)

    class Server:
        def __init__(self, mode, *, frees, node_rank):
            self.config, self.node_rank = SimpleNamespace(free_cache_engine=frees), node_rank
            self.rollout_mode = SimpleNamespace(name=mode)

        async def sleep(self):
            return "slept"

    module = ModuleType("verl.workers.rollout.vllm_rollout.vllm_async_server")
    module.vLLMHttpServer = Server
    sleeping_engines.HOOKS[0].install(module)

    def put_to_sleep(mode="HYBRID", *, frees=True, node_rank=0):
        assert asyncio.run(Server(mode, frees=frees, node_rank=node_rank).sleep()) == "slept"
        if sleeping_engines._Reading.thread is not None:
            sleeping_engines._Reading.thread.join()

    monkeypatch.setattr(sleeping_engines._Reading, "thread", None)
    return put_to_sleep


def test_an_engine_keeps_what_its_processes_hold(library, engine, sleep, recorded):
    """Those of the server and of all below it, of each GPU, and not those of the trainer, which are there, too."""
    server, worker = engine
    library.gpus[0].processes = {server: 3 * GIB, worker: 4 * GIB, os.getpid(): None, 1: 50 * GIB}
    library.gpus[1].processes = {1: 60 * GIB}
    sleep()
    assert recorded.value("verl.engine.memory.asleep") == 7 * GIB, "of one GPU only"
    assert recorded.value("verl.engine.memory.asleep", hw_id=library.gpus[0].uuid) == 7 * GIB
    assert library.inits == 0, "the driver is closed again"


@pytest.mark.parametrize("given", [{"mode": "STANDALONE"}, {"frees": False}, {"node_rank": 1}], ids=str)
def test_one_that_stays_awake_is_not_measured(library, engine, sleep, recorded, given):
    """``sleep`` is called on each server; one with GPUs of its own ignores it, and of a replica only the first node sleeps."""
    library.gpus[0].processes = {engine[0]: GIB}
    sleep(**given)
    assert not recorded.points
    assert not library.calls


def test_a_driver_that_fails_costs_the_metric_only(library, engine, sleep, recorded):
    """As without permission to see processes."""
    library.gpus[0].fails = {"nvmlDeviceGetComputeRunningProcesses": "no_permission"}
    sleep()
    assert not recorded.points
    library.gpus[0].fails, library.gpus[0].processes = {}, {engine[1]: GIB}
    sleep()
    assert recorded.value("verl.engine.memory.asleep") == GIB
